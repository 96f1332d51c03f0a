"""The lexical head of a classifier: what it counts and how it is fitted are chosen on the validation documents."""

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from scipy.sparse import csr_matrix
from scipy.special import log_expit, log_softmax
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_parts import NOTHING, LexicalFeatures, LexicalHead
from torch_linformer.tasks.linear_classifiers import (
    CLASSIFIERS,
    MANY_DOCUMENTS,
    MAX_COEFFICIENTS,
    REGRESSIONS,
    Known,
    LinearModel,
    choose,
    mean_square_score,
    one_hot,
    one_label_score,
    searched,
    several_labels_score,
)

MOST_BUCKETS = 2**18
LEAST_BUCKETS = 2**10
TOKENS, PAIRS = "tokens", "tokens and pairs of tokens"
ONE, SEVERAL, NUMBER = "single_label_classification", "multi_label_classification", "regression"
_TRIALS: dict[str, tuple[Sequence[LinearModel], Callable[[np.ndarray, np.ndarray], float]]] = {
    ONE: (CLASSIFIERS, one_label_score),
    SEVERAL: (CLASSIFIERS, several_labels_score),
    NUMBER: (REGRESSIONS, mean_square_score),
}
_SEARCH_TOKENS = 1_500_000  # of the documents that a head is chosen with
_MOST_SCALE = 4.0  # the logarithm of the factor of logits, either way


class Labeled(NamedTuple):
    """Token ids of whole documents; of each its label's number, 1, 0 or NaN (unknown) for each label, or a number."""

    documents: Sequence[Sequence[int]]
    known: Any

    def first(self, most: int) -> "Labeled":
        """The first documents, at most so many, and no more than a search reads; at least one."""
        fitting = np.searchsorted(np.cumsum([len(ids) for ids in self.documents]), _SEARCH_TOKENS, side="right")
        number = max(1, min(most, int(fitting)))
        return Labeled(self.documents[:number], self.known[:number])


class HeadChoice(NamedTuple):
    """How a lexical head is fitted: with pairs of tokens or without, by which model, and the factor of its logits."""

    pairs: bool
    model: LinearModel
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{PAIRS if self.pairs else TOKENS}: {self.model}"


def buckets_for(tokens: int, vocab_size: int, labels: int) -> int:
    """Buckets for the pairs that two documents of this many tokens in all can share, with few enough weights."""
    buckets = LEAST_BUCKETS
    while buckets < min(tokens // 2, MOST_BUCKETS):
        buckets *= 2
    while buckets > LEAST_BUCKETS and (vocab_size + buckets) * labels > MAX_COEFFICIENTS:
        buckets //= 2
    return buckets


def choose_head(
    tokenizer: PreTrainedTokenizerFast,
    sizes: tuple[int, int],
    train: Labeled,
    validation: Labeled,
    problem: str,
    *,
    balanced: bool = False,
) -> HeadChoice:
    r"""The head that is best for the validation documents: with pairs of tokens or without, and how it is fitted.

    Its logits z get the factor s that makes them most likely, as those of a support vector machine are no logarithms of
    probabilities: s minimizes :math:`n L(s z) + (\ln s)^2 / 2` for n documents and the loss L of the task.

    Args:
        tokenizer: of the documents.
        sizes: token ids and labels of the head.
        train: documents to learn from, of which no more than :func:`searched` are taken; and
        validation: those that choose.
        problem: ``config.problem_type`` of the model.
        balanced: give rare labels more weight, where a document has one label.
    """
    vocab_size, labels = sizes
    most = searched(labels if problem == SEVERAL else 1)
    train, validation = (part.first(most) for part in (train, validation))
    targets, validation_targets = (_targets(part.known, problem, labels) for part in (train, validation))
    buckets = buckets_for(sum(map(len, train.documents)), vocab_size, labels)

    def kinds() -> Iterator[tuple[str, Known, Known]]:
        for kind, number in ((TOKENS, 0), (PAIRS, buckets)):
            head = LexicalHead(vocab_size, number, labels)
            known = learned_features(head, tokenizer, train.documents)
            yield (
                kind,
                Known(known, targets),
                Known(_features(head, tokenizer, validation.documents), validation_targets),
            )

    models, score = _TRIALS[problem]
    choice = choose(kinds(), models, score, balanced=balanced)
    return HeadChoice(choice.kind == PAIRS, choice.model, _scale(choice.decisions, validation_targets, problem))


def _scale(decisions: np.ndarray, targets: np.ndarray, problem: str) -> float:
    """The factor s of :func:`choose_head`; numbers have none."""
    if problem == NUMBER:
        return 1.0

    def unlikely(logarithm: float) -> float:
        logits = np.exp(logarithm) * decisions
        if problem == ONE:
            return float(-(log_softmax(logits, axis=1) * targets).sum() + logarithm**2 / 2)
        log_likelihood = log_expit(logits) * targets + log_expit(-logits) * (1 - targets)
        return float(-len(logits) * np.nanmean(log_likelihood) + logarithm**2 / 2)

    return float(np.exp(minimize_scalar(unlikely, bounds=(-_MOST_SCALE, _MOST_SCALE), method="bounded").x))


def _targets(known: Any, problem: str, labels: int) -> np.ndarray:
    """What a linear model learns, ``(documents, labels)``."""
    if problem == ONE:
        return one_hot(list(known), range(labels))
    return np.asarray(known, dtype=np.float64).reshape(len(known), labels)


@torch.no_grad()
def fit_head(
    head: LexicalHead,
    tokenizer: PreTrainedTokenizerFast,
    learned: Labeled,
    problem: str,
    choice: HeadChoice,
    *,
    balanced: bool = False,
) -> None:
    """Fit a head to documents.

    Tokens count without their case and without the space before them; those that are only punctuation do not count.
    Of the pairs, the table takes those that most documents have.

    Args:
        head: is changed.
        tokenizer: of the documents.
        learned: from which the head is fitted.
        problem: ``config.problem_type`` of the model.
        choice: what is fitted.
        balanced: give rare labels more weight, where a document has one label.
    """
    features = learned_features(head, tokenizer, learned.documents)
    weight, bias = choice.model.fit(features, _targets(learned.known, problem, len(head.bias)), balanced=balanced)
    for tensor, values in ((head.weight, weight.T), (head.bias, bias)):
        tensor.copy_(torch.from_numpy(values * choice.scale))


@torch.no_grad()
def learned_features(
    head: LexicalHead, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[int]]
) -> csr_matrix:
    """What a head makes of the documents from which it gets its table of pairs and idf, ``(documents, features)``."""
    head.reset_parameters()
    _, tokens = counted(head, tokenizer, documents)
    if head.num_buckets:
        _fill(head, tokens)
    counts = counts_of(head, tokens)
    head.idf.copy_(torch.from_numpy(np.where(counts.getnnz(axis=0) > 0, TfidfTransformer().fit(counts).idf_, 0.0)))
    return _weighted(head, counts)


def _features(head: LexicalHead, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[int]]) -> csr_matrix:
    """What a head makes of other documents."""
    return _weighted(head, counts_of(head, counted(head, tokenizer, documents)[1]))


def _weighted(head: LexicalHead, counts: csr_matrix) -> csr_matrix:
    counts.data = 1 + np.log(counts.data)
    return normalize(counts.multiply(head.idf.numpy()).tocsr())


def counted(
    lexical: LexicalFeatures, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[int]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What each token id counts as, which ``lexical`` gets to know, and what the documents have of that."""
    counts_as = _counts_as(tokenizer, len(lexical.counts_as))
    lexical.counts_as.copy_(torch.from_numpy(counts_as))
    rows = (counts_as[np.asarray(document, dtype=np.int64)] for document in documents)
    return counts_as, [tokens[tokens != NOTHING] for tokens in rows]


def _counts_as(tokenizer: PreTrainedTokenizerFast, size: int) -> np.ndarray:
    """The first token of the same letters for every token id; −1 for special tokens and punctuation."""
    decoder, first, special = tokenizer.backend_tokenizer.decoder, dict[str, int](), set(tokenizer.all_special_ids)
    counts_as = np.full(size, NOTHING, dtype=np.int64)
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))):
        letters = (token if decoder is None else decoder.decode([token])).strip().lower()
        if number not in special and any(unicodedata.category(letter)[0] not in "PZC" for letter in letters):
            # What is no text of its own, a part of a character, is told apart by the token.
            counts_as[number] = first.setdefault(token if "\ufffd" in letters else letters, number)
    return counts_as


def _fill(head: LexicalHead, documents: Sequence[np.ndarray]) -> None:
    """Put the pairs that most documents have into the table; one whose two buckets are taken is left out."""
    codes = [np.unique(head.codes(tokens[:-1], tokens[1:])) for tokens in documents]  # type: ignore[arg-type]
    pairs, having = np.unique(np.concatenate(codes), return_counts=True)
    least = 2 if len(documents) >= MANY_DOCUMENTS else 1
    order = np.argsort(-having, kind="stable")[: min(np.count_nonzero(having >= least), 2 * head.num_buckets)]
    chosen = torch.from_numpy(pairs[order])
    places = torch.stack(head.buckets(chosen), dim=1).tolist()
    table: dict[int, int] = {}
    for pair, (one, other) in zip(chosen.tolist(), places, strict=True):
        if (bucket := one if one not in table else other) not in table:
            table[bucket] = pair
    head.pairs[list(table)] = torch.tensor(list(table.values()), dtype=torch.long)


def counts_of(lexical: LexicalFeatures, documents: Sequence[np.ndarray]) -> Any:
    """How often each document has each feature, ``(documents, features)``."""
    columns = []
    for tokens in documents:
        ids = torch.from_numpy(tokens)[None]
        features, known = lexical.features(ids, torch.ones_like(ids, dtype=torch.bool))
        columns.append(features[known].numpy())
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate(columns)
    counts = csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(columns), len(lexical.idf)))
    counts.sum_duplicates()
    return counts

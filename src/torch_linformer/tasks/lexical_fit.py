"""The lexical head of a classifier, fitted to the training documents."""

import unicodedata
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.linear_model import Ridge
from sklearn.preprocessing import normalize
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_features import NOTHING, LexicalFeatures
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.tasks.floors import MANY_DOCUMENTS, MAX_COEFFICIENTS, logistic_regression

MOST_BUCKETS = 2**18
LEAST_BUCKETS = 2**10
SMOOTHING = 0.3  # what is added to a feature's sum under each label; 1 was worse on film reviews
SELDOM = 1e-4  # the share of documents that a label without any, or that all have, is taken to have


def buckets_for(tokens: int, vocab_size: int, labels: int) -> int:
    """Buckets for the pairs that two documents of this many tokens in all can share, with few enough weights."""
    buckets = LEAST_BUCKETS
    while buckets < min(tokens // 2, MOST_BUCKETS):
        buckets *= 2
    while buckets > LEAST_BUCKETS and (vocab_size + buckets) * labels > MAX_COEFFICIENTS:
        buckets //= 2
    return buckets


@torch.no_grad()
def fit_head(
    head: LexicalHead,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[Sequence[int]],
    known: Sequence[Any] | np.ndarray,
    problem: str,
    *,
    balanced: bool = False,
) -> None:
    """Fit a head to documents: logistic regression for all labels or for each, ridge regression for numbers.

    Of two labels, each feature counts by the logarithm of the ratio of its shares under them, as in Wang and Manning,
    Baselines and Bigrams (ACL 2012); that factor becomes a part of W.

    Tokens count without their case and without the space before them; those that are only punctuation do not count.
    Of the pairs, the table takes those that most documents have.

    Args:
        head: is changed.
        tokenizer: of the documents.
        documents: token ids of whole documents.
        known: of each document the number of its label, a 1 or 0 for each label, or a number.
        problem: ``config.problem_type`` of the model.
        balanced: give rare labels more weight, where a document has one label.
    """
    head.reset_parameters()
    _, tokens = counted(head, tokenizer, documents)
    if len(head.pairs):
        _fill(head, tokens)
    counts = counts_of(head, tokens)
    idf = np.where(counts.getnnz(axis=0) > 0, TfidfTransformer().fit(counts).idf_, 0.0)
    counts.data = 1 + np.log(counts.data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early it still is a head
        features = normalize(counts.multiply(idf).tocsr())
        weight, bias = _FITS[problem](features, np.asarray(known), len(head.bias), balanced)
    for tensor, found in ((head.idf, idf), (head.weight, weight.T), (head.bias, bias)):
        tensor.copy_(torch.from_numpy(found))


def counted(
    lexical: LexicalFeatures, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[int]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What each token id counts as, which ``lexical`` gets to know, and what the documents have of that."""
    counts_as = _counts_as(tokenizer, len(lexical.counts_as))
    lexical.counts_as.copy_(torch.from_numpy(counts_as))
    found = (counts_as[np.asarray(document, dtype=np.int64)] for document in documents)
    return counts_as, [tokens[tokens != NOTHING] for tokens in found]


def _counts_as(tokenizer: PreTrainedTokenizerFast, size: int) -> np.ndarray:
    """The first token of the same letters for every token id; −1 for special tokens and punctuation."""
    decoder, first, special = tokenizer.backend_tokenizer.decoder, dict[str, int](), set(tokenizer.all_special_ids)
    found = np.full(size, NOTHING, dtype=np.int64)
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))):
        letters = (token if decoder is None else decoder.decode([token])).strip().lower()
        if number not in special and any(unicodedata.category(letter)[0] not in "PZC" for letter in letters):
            # What is no text of its own, a part of a character, is told apart by the token.
            found[number] = first.setdefault(token if "\ufffd" in letters else letters, number)
    return found


def _fill(head: LexicalHead, documents: Sequence[np.ndarray]) -> None:
    """Put the pairs that most documents have into the table; one whose two buckets are taken is left out."""
    codes = [np.unique(head.codes(tokens[:-1], tokens[1:])) for tokens in documents]  # type: ignore[arg-type]
    pairs, having = np.unique(np.concatenate(codes), return_counts=True)
    least = 2 if len(documents) >= MANY_DOCUMENTS else 1
    order = np.argsort(-having, kind="stable")[: min(np.count_nonzero(having >= least), 2 * len(head.pairs))]
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
        found, known = lexical.features(ids, torch.ones_like(ids, dtype=torch.bool))
        columns.append(found[known].numpy())
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate(columns)
    counts = csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(columns), len(lexical.idf)))
    counts.sum_duplicates()
    return counts


def _one_label(features: Any, known: np.ndarray, labels: int, balanced: bool) -> tuple[np.ndarray, np.ndarray]:
    """W and b of one logistic regression; of two labels each has half of the difference."""
    weight, bias, present = np.zeros((labels, features.shape[1])), np.full(labels, np.log(SELDOM)), np.unique(known)
    if len(present) == 1:
        bias[present] = 0.0
        return weight, bias
    model = logistic_regression(class_weight="balanced" if balanced else None)
    if len(present) > 2:
        model.fit(features, known)
        weight[present], bias[present] = model.coef_, model.intercept_
        return weight, bias
    occurs = features.getnnz(axis=0) > 0
    sums = (np.asarray(features[known == label].sum(axis=0)).ravel() for label in present)
    first, second = (found[occurs] + SMOOTHING for found in sums)
    ratio = np.zeros(features.shape[1])
    ratio[occurs] = np.log((second / second.sum()) / (first / first.sum()))
    model.fit(features.multiply(ratio).tocsr(), known)
    weight[present] = np.array([[-0.5], [0.5]]) * (model.coef_ * ratio)
    bias[present] = np.array([-0.5, 0.5]) * model.intercept_
    return weight, bias


def _several_labels(features: Any, known: np.ndarray, labels: int, balanced: bool) -> tuple[np.ndarray, np.ndarray]:
    """W and b of a logistic regression for each label."""
    weight, bias = np.zeros((labels, features.shape[1])), np.zeros(labels)
    for label, column in enumerate(known.T):
        if 0 < column.mean() < 1:
            model = logistic_regression().fit(features, column)
            weight[label], bias[label] = model.coef_[0], model.intercept_[0]
        else:
            bias[label] = -np.log(SELDOM) if column.all() else np.log(SELDOM)
    return weight, bias


def _number(features: Any, known: np.ndarray, labels: int, balanced: bool) -> tuple[np.ndarray, np.ndarray]:
    """W and b of a ridge regression."""
    model = Ridge().fit(features, known)
    return model.coef_[None], np.atleast_1d(model.intercept_)


_FITS = {
    "single_label_classification": _one_label,
    "multi_label_classification": _several_labels,
    "regression": _number,
}

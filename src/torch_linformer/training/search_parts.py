"""The parts of a search, words and vectors: each is learned, and kept where it wins on queries that it never saw."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset
from scipy import sparse
from torch import Tensor

from torch_linformer.data.parts import GROUP
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.tasks.lexical_vector_fit import MOST_DOCUMENTS, fit_vector, learn_weights, surprise
from torch_linformer.tasks.metrics import is_more_than_chance
from torch_linformer.tasks.retrieval import Retrieval, asked_of, judgments_of
from torch_linformer.tasks.retrieval_metrics import SCALE, Judgments, retrieval_metrics
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.word_rows import know_words, sketches_of, word_rows
from torch_linformer.training.fitted_pieces import Lessons, fit_map
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.verdict import Weighing
from torch_linformer.training.words_and_reader import least_factors

FOLDS = 3
MOST_JUDGED = 4_000_000  # similarities of a fold
NO_WORDS = NO_VECTORS = "none"
AS_COUNTED, LEARNED = "idf", "learned weights"  # of words
AS_READ, MAPPED = "as read", "mapped"  # vectors


class SearchChoice(NamedTuple):
    """Which words and which vectors a search has, their factors, 0 for what it has not, and nDCG@10 of each query."""

    words: str
    vectors: str
    factors: tuple[float, float]
    gains: np.ndarray

    @property
    def share(self) -> float:
        """That of words, from 0 to 1."""
        return self.factors[0] / sum(self.factors)

    @property
    def score(self) -> float:
        """nDCG@10."""
        return float(self.gains.mean())

    @property
    def is_learned(self) -> bool:
        """Whether it has more than the factors from queries."""
        return self.words == LEARNED or self.vectors == MAPPED

    def __str__(self) -> str:
        names = [f"words by {self.words}"] * (self.words != NO_WORDS)
        names += [f"vectors {self.vectors}"] * (self.vectors != NO_VECTORS)
        return " + ".join(names)


@dataclass
class Fold:
    """Queries that nothing was learned from, and what each candidate of words and of vectors says of documents.

    Attributes:
        judgments: of these queries and these documents only; each query has something to find.
        groups: what the queries belong to, ``(Q,)``.
        words: similarities ``(Q, D)`` by the names of candidates, and
        vectors: likewise.
    """

    judgments: Judgments
    groups: np.ndarray
    words: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)


def choose(folds: Sequence[Fold], always: bool = False) -> tuple[SearchChoice, list[SearchChoice]]:
    r"""The words and the vectors of a search, by nDCG@10 on all folds, and all that were tried.

    The factors a of words and b of vectors have the least

    .. math:: -\frac{1}{Q} \sum_i \ln
        \frac{\sum_{j \in R_i} e^{a\, w_{ij} + b\, v_{ij}}}{\sum_j e^{a\, w_{ij} + b\, v_{ij}}}

    for Q queries i and the documents :math:`R_i` that they should find. What is learned, weights of words or a map of
    vectors, is taken only where it is better than the best without by more than chance, the queries of a group counted
    as one: they are alike. ``always`` takes none without words.
    """
    tried = []
    for words in [NO_WORDS, *folds[0].words]:
        for vectors in [NO_VECTORS, *folds[0].vectors]:
            if words == NO_WORDS and (vectors == NO_VECTORS or (always and folds[0].words)):
                continue
            factors = _factors(folds, words, vectors)
            gains = []
            for fold in folds:
                parts = zip(factors, (fold.words, fold.vectors), (words, vectors), strict=True)
                scores = sum(factor * part[name] for factor, part, name in parts if name in part)
                gains.append(_gains(cast(Tensor, scores), fold.judgments))
            tried.append(SearchChoice(words, vectors, factors, np.concatenate(gains)))
    groups = np.unique(np.concatenate([fold.groups for fold in folds]), return_inverse=True)[1]
    simple = max((choice for choice in tried if not choice.is_learned), key=lambda choice: choice.score)

    def wins(choice: SearchChoice) -> bool:
        differences = choice.gains - simple.gains
        error = np.sqrt(np.square(np.bincount(groups, differences - differences.mean())).sum()) / len(differences)
        return is_more_than_chance(float(differences.mean()), float(error)) and choice.score > simple.score

    return max([simple, *filter(wins, tried)], key=lambda choice: choice.score), tried


def described(choice: SearchChoice, tried: Sequence[SearchChoice], judges: str) -> str:
    """What was tried and what was taken, as a line."""
    scores = ", ".join(f"{other} {other.score:.3f}" for other in tried)
    return f"nDCG@10 of queries for {judges}: {scores}; kept: {choice}, share of words {choice.share:.2f}"


def _gains(scores: Tensor, judgments: Judgments) -> np.ndarray:
    """nDCG@10 of each query, all of which have something to find."""
    metrics = retrieval_metrics(lambda begin, end: scores[begin:end], judgments)
    return cast(np.ndarray, metrics["tallies"]["ndcg_at_10"][:, 0])


def _factors(folds: Sequence[Fold], words: str, vectors: str) -> tuple[float, float]:
    if words == NO_WORDS or vectors == NO_VECTORS:
        return (0.0, 1.0) if words == NO_WORDS else (1.0, 0.0)
    width = max(len(fold.judgments.members.indptr) - 1 for fold in folds)
    parts: list[list[Tensor]] = [[], []]
    masks: tuple[list[Tensor], list[Tensor]] = ([], [])
    for fold in folds:
        rows = np.arange(len(fold.judgments.queries))
        missing = (0, width - fold.words[words].shape[1])
        for part, similarities in zip(parts, (fold.words[words], fold.vectors[vectors]), strict=True):
            part.append(torch.nn.functional.pad(similarities, missing))
        for known, mask in zip(fold.judgments.of(rows), masks, strict=True):
            mask.append(torch.nn.functional.pad(torch.from_numpy(known), missing))
    loss = partial(surprise, relevant=torch.cat(masks[0]), candidates=torch.cat(masks[1]))
    stacked = torch.stack([torch.cat(part) for part in parts], dim=-1)
    a, b = least_factors(stacked, [SCALE, SCALE], loss)[0].clamp(min=0).tolist()
    return (a, b) if a + b > 0 else (1.0, 1.0)


@dataclass
class Search:
    """Documents with what asks for them, as vectors and as counts of words.

    Attributes:
        documents: with their queries or labels.
        vectors: of the documents and then of their queries, ``(rows, C)`` or ``(rows, M, C)``, and
        counts: of the words of both, by the :func:`~torch_linformer.tasks.word_rows.counts_of`; None for no words.
        lessons: what a teacher says of them; None for no teacher.
    """

    documents: Dataset
    vectors: Tensor
    counts: tuple[Any, Any] | None
    lessons: Lessons | None = None

    @property
    def groups(self) -> np.ndarray:
        """The number of each document's group; each is one where nobody names any."""
        if GROUP not in self.documents.column_names:
            return np.arange(len(self.documents))
        return cast(np.ndarray, np.unique(self.documents[GROUP][:], return_inverse=True)[1])

    def folds(self, seed: int) -> np.ndarray:
        """The fold of each document; those of a group are in the same one."""
        groups, draws = self.groups, np.random.default_rng(seed)
        sizes, filled = np.bincount(groups), np.zeros(FOLDS)
        fold_of = np.zeros(len(sizes), dtype=np.int64)
        for group in sorted(draws.permutation(len(sizes)).tolist(), key=lambda group: -sizes[group]):
            fold_of[group] = np.argmin(filled)
            filled[fold_of[group]] += sizes[group]
        return cast(np.ndarray, fold_of[groups])

    def asked_by(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The queries that should find some of these documents only, and those that should find none of them."""
        judgments = judgments_of(self.documents)
        if "label" in self.documents.column_names:
            outside = np.setdiff1d(np.arange(len(self.documents)), inside)
            return inside, outside
        found = judgments.members[inside].getnnz(axis=0)[judgments.queries]
        whole = judgments.wanted
        return np.flatnonzero((found > 0) & (found == whole)), np.flatnonzero((found == 0) & (whole > 0))


def fitted_words(
    task: Retrieval, sources: Sequence[Dataset], channels: int, width: int
) -> tuple[LexicalVector, list[tuple[Any, Any]]]:
    """A lexical part that counts words of some documents, and its counts of each of these and of their queries."""
    lexical = LexicalVector(len(task.tokenizer), channels, width)
    know_words(lexical, task.tokenizer)
    return lexical, [task.counts(lexical, documents) for documents in sources]


def folds_of(
    search: Search,
    splits: Sequence[tuple[np.ndarray, np.ndarray]],
    lexical: LexicalVector | None,
    all_counts: Any,
    pieces: PieceVectors | None,
    seed: int,
    say: Callable[[str], object] | None = None,
) -> tuple[list[Fold], list[Fold]]:
    """What candidates, learned from some documents, say of others: with exact words, and with their sketches.

    Args:
        search: all of these documents.
        splits: the numbers of documents to learn from, and of those to judge by.
        lexical: counts words; None for none.
        all_counts: of the words of all documents whose words are known, by which those that few have weigh more.
        pieces: whose map is learned; None for vectors as they are.
        seed: of what is drawn.
        say: is told of the progress.
    """
    judgments = judgments_of(search.documents)
    documents_of, asking = asked_of(search.documents, search.vectors)
    exact, sketched = [], []
    for number, (inside, outside) in enumerate(splits):
        learns, judges = search.asked_by(inside)
        judges = np.random.default_rng(seed).permutation(judges)[: max(1, MOST_JUDGED // len(outside))]
        lessons_of, asked_for = judgments.among(inside, learns), judgments.among(outside, judges)
        judges, asked_for = judges[asked_for.wanted > 0], asked_for.of_queries(asked_for.wanted > 0)
        fold = Fold(asked_for, search.groups[outside[asked_for.first]])
        fold.vectors[AS_READ] = largest_products(asking[judges], documents_of[outside])
        if pieces is not None:
            if say is not None:
                said = f"learning from {len(learns):,} queries, judged by {len(judges):,} others"
                say(f"{said} ({number + 1} of {len(splits)})")
            mapped = learned_map(pieces, search, inside, learns, seed)
            fold.vectors[MAPPED] = largest_products(mapped.mapped(asking[judges]), mapped.mapped(documents_of[outside]))
        other = Fold(fold.judgments, fold.groups, vectors=fold.vectors)
        if lexical is not None and search.counts is not None:
            known, asked = search.counts
            fit_vector(lexical, all_counts)
            rows = word_rows(lexical, known[inside]), word_rows(lexical, asked[learns])
            theta = learn_weights(*rows, lessons_of, seed)
            fold.words, other.words = _similar_words(lexical, all_counts, theta, asked[judges], known[outside])
        exact.append(fold)
        sketched.append(other)
    return exact, sketched


def _similar_words(
    lexical: LexicalVector, all_counts: Any, theta: np.ndarray, asked: Any, known: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What each candidate of words says of queries and documents, ``(Q, D)``: by exact words, and by their sketches."""
    exact: dict[str, Tensor] = {}
    sketched: dict[str, Tensor] = {}
    for name, weights in ((AS_COUNTED, None), (LEARNED, theta)):
        fit_vector(lexical, all_counts, weights)
        for similarities, rows_of in ((exact, word_rows), (sketched, sketches_of)):
            products = rows_of(lexical, asked) @ rows_of(lexical, known).T
            similarities[name] = torch.from_numpy(products.toarray()).float()
    return exact, sketched


def learned_map(
    pieces: PieceVectors, search: Search, inside: np.ndarray, learns: np.ndarray, seed: int
) -> PieceVectors:
    """Another of ``pieces``, with a map that was learned from some documents and queries."""
    learned, inside = PieceVectors(**pieces.options), inside[inside < MOST_DOCUMENTS]
    documents_of, asking = asked_of(search.documents, search.vectors)
    judgments = judgments_of(search.documents).among(inside, learns)
    relevant, candidates = map(torch.from_numpy, judgments.of(np.arange(len(learns))))
    lessons = search.lessons
    if lessons is not None:
        lessons = Lessons(lessons.queries[learns][:, inside], lessons.texts, lessons.of_texts[:, inside])
    fit_map(learned, asking[learns], documents_of[inside], relevant, candidates, lessons, seed)
    return learned


def weigh_vectors(
    trainer: RetrievalTrainer,
    train: Dataset,
    validation: Examples,
    test: Examples,
    width: int,
    say: Callable[[str], object],
    *,
    always: bool,
) -> Weighing:
    """Join the words of documents to the vectors of a model that was trained, where validation queries gain by it."""
    task, seed = trainer.task, trainer.args.seed
    vectors = torch.from_numpy(np.asarray(trainer.answers_to(validation)))
    sources = (train, validation.documents, test.documents)
    lexical, counts = fitted_words(task, sources, int(vectors.shape[-1]), width)
    all_counts = sparse.vstack([known for known, _ in counts]).tocsr()
    fit_vector(lexical, all_counts)
    of_documents, of_queries = (word_rows(lexical, part) for part in counts[0])
    theta = learn_weights(of_documents, of_queries, judgments_of(train), seed)
    documents_of, asking = asked_of(validation.documents, vectors)
    judgments = judgments_of(validation.documents)
    judges = np.random.default_rng(seed).permutation(np.flatnonzero(judgments.wanted > 0))
    judges = judges[: max(1, MOST_JUDGED // len(documents_of))]
    asked_for = judgments.of_queries(judges)
    vectors_say = {AS_READ: largest_products(asking[judges], documents_of)}
    known, asked = counts[1]
    words_say = _similar_words(lexical, all_counts, theta, asked[judges], known)
    exact, sketched = (Fold(asked_for, asked_for.first, words, vectors_say) for words in words_say)
    choice, tried = choose([exact], always)
    say(described(choice, tried, "validation"))
    give_words(task, lexical, all_counts, choice, [sketched], theta)
    tested = torch.from_numpy(np.asarray(trainer.answers_to(test)))
    return weighing_of(task, choice, tested, test.documents)


def give_words(
    task: Retrieval,
    lexical: LexicalVector | None,
    all_counts: Any,
    choice: SearchChoice,
    sketched: Sequence[Fold],
    theta: np.ndarray | None,
) -> None:
    """Make the words of a choice a part of a search's vectors, with the share that their sketches should have."""
    if lexical is None or choice.words == NO_WORDS:
        return
    fit_vector(lexical, all_counts, theta if choice.words == LEARNED else None)
    a, b = _factors(sketched, choice.words, choice.vectors)
    lexical.exact_share, lexical.share = choice.share, a / (a + b)
    task.vectors.lexical = lexical


def weighing_of(task: Retrieval, choice: SearchChoice, tested: Tensor, documents: Dataset) -> Weighing:
    """What a choice and its parts score on the test documents."""
    lexical, kept = task.vectors.lexical, choice.words != NO_WORDS
    scores = {"both": task.scores(tested, documents)}
    task.vectors.lexical = None
    scores["rest"] = task.scores(tested, documents)
    if lexical is not None:
        task.vectors.lexical, share, lexical.exact_share = lexical, lexical.exact_share, 1.0
        scores["lexical"] = task.scores(tested, documents)
        lexical.exact_share = share
    return Weighing("words", choice.factors, scores, kept)

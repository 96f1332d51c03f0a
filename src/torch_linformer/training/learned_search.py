"""A search: words and a map of vectors are each learned, and kept where they win on queries that they never saw."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.data.parts import GROUP
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.opening.folder import Spent
from torch_linformer.tasks.lexical_vector_fit import (
    MOST_DOCUMENTS,
    fit_vector,
    know_words,
    learn_weights,
    sketches_of,
    surprise,
    word_rows,
)
from torch_linformer.tasks.metrics import is_more_than_chance
from torch_linformer.tasks.retrieval import Retrieval, asked_of, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import SCALE, Judgments, retrieval_metrics
from torch_linformer.tasks.task import Examples
from torch_linformer.training.encoder_baselines import embedder_vectors, window_baselines, window_vectors
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.kept_reading import windows_of_rows
from torch_linformer.training.prepared import Start
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.train_settings import LEXICAL_WIDTH
from torch_linformer.training.trainer import precision_of
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.vector_map import Lessons, fit_map, lessons_of
from torch_linformer.training.words_and_reader import least_factors

FIRST = 16  # documents that tell the time
FOLDS = 3
MOST_JUDGED = 4_000_000  # similarities of a fold
NO_WORDS = NO_VECTORS = "none"
AS_COUNTED, LEARNED = "idf", "learned weights"  # of words
AS_READ, MAPPED = "as read", "mapped"  # vectors


@dataclass(frozen=True)
class LearnedSearch:
    """Words beside the vectors of a search.

    Attributes:
        factors: of the similarities by words and by vectors, 0 or more.
        test: every score of the test documents by ``rest``, vectors without words; and of a search with words by
            ``lexical``, words alone, and by ``both``.
        baselines: scores of simple methods.
        hits: examples of what is found.
        spent: what it took, where nothing was trained step by step.
    """

    factors: tuple[float, float]
    test: dict[str, dict[str, Any]]
    baselines: dict[str, dict[str, Any]] = field(default_factory=dict)
    hits: list[tuple[str, list[str]]] = field(default_factory=list)
    spent: Spent = field(default_factory=Spent)

    @property
    def has_words(self) -> bool:
        return "both" in self.test

    @property
    def scores(self) -> dict[str, Any]:
        """Those of the model on the test documents."""
        return self.test["both" if self.has_words else "rest"]

    def name(self, model: str) -> str:
        """What a model that makes the vectors is called with what it has learned."""
        if not self.has_words:
            return model
        return f"{model} with its words" if self.factors[1] else "words only"


def learn_search(start: Start, trainer: RetrievalTrainer, screen: TrainingScreen) -> LearnedSearch:
    """Give a task whose encoder stays as it is the words and the map of vectors with which queries find documents.

    Everything is decided on folds of the documents to train on and for validation together, then learned from all of
    them; of ``--minutes`` as many documents are read as can be. Words count for less the more documents have them,
    held-out ones too, as in TF-IDF and BM25: what is searched is known, what is asked is not.
    """
    begin, settings, task, seed = time.monotonic(), start.settings, trainer.task, start.settings.seed
    train, validation, test = start.data.train, start.data.validation, start.data.test
    pieces = cast(PieceVectors, task.vectors.pieces)
    order = np.random.default_rng(seed).permutation(len(train.documents) + len(validation.documents))
    known = _some([train, validation], np.arange(len(order)))
    if settings.minutes and len(order) > FIRST:
        _read(trainer, pieces, [_some([known], order[:FIRST])], screen)
        number = max(FIRST, int(60 * settings.minutes / ((time.monotonic() - begin) / FIRST)) - FIRST)
        if number < len(order):
            screen.say(f"{number:,} of {len(order):,} documents can be read in that time")
            known = _some([known], order[:number])
    documents = known.documents
    (vectors, windows), (tested, tested_windows) = _read(trainer, pieces, [known, test], screen)
    counted = None
    if settings.lexical != "none":
        counted = SearchWords(task, [documents, test.documents], pieces.channels, LEXICAL_WIDTH)

    if windows is None:
        chunks = embedder_vectors(cast(FirstModel, start.first).source, documents, start.device, start.precision)
    else:
        chunks = window_vectors(documents, windows)
    search = Search(documents, vectors)
    lessons = None if chunks is None else lessons_of(chunks.chunks, chunks.means[1], search.drawn, seed)
    folds = judged_folds(search, folds_of(search.groups, seed), counted, lessons, pieces, seed, screen.say)
    choice, tried = choose(folds, always=settings.lexical == "always")
    screen.say(described(choice, tried, f"each of {FOLDS} folds, learned from the others"))
    if counted is not None:
        is_learned = choice.words == LEARNED
        theta = counted.learned(*counted.counts[0], search.judgments, seed) if is_learned else None
        counted.give(task, choice, folds, theta)
    if choice.vectors == MAPPED:
        everything = np.arange(len(documents)), np.arange(len(search.judgments.queries))
        fitted = learned_map(pieces, search, *everything, lessons, seed)
        tested = fitted.mapped(tested)
        with torch.no_grad():
            pieces.map.load_state_dict(fitted.map.state_dict())
    found = scored(task, choice, tested, test.documents)
    pieces.to(start.device)
    spent = Spent(time.monotonic() - begin, int(np.sum(np.asarray(known.windows["length"][:]))))
    baselines = {}
    if settings.baseline and tested_windows is not None:
        baselines = window_baselines(test.documents, window_vectors(test.documents, tested_windows))
    return replace(found, baselines=baselines, hits=task.hits(tested, test.documents), spent=spent)


def weigh_vectors(
    trainer: RetrievalTrainer,
    train: Dataset,
    validation: Examples,
    test: Examples,
    width: int,
    say: Callable[[str], object],
    *,
    always: bool,
) -> LearnedSearch:
    """Join the words of documents to the vectors of a model that was trained, where validation queries gain by it."""
    task, seed = trainer.task, trainer.args.seed
    search = Search(validation.documents, torch.from_numpy(np.asarray(trainer.answers_to(validation))))
    sources = (train, validation.documents, test.documents)
    words = SearchWords(task, sources, int(search.vectors.shape[-1]), width)
    theta = words.learned(*words.counts[0], judgments_of(train), seed)
    asking = np.flatnonzero(search.judgments.wanted > 0)
    fold, judges = search.fold(np.arange(len(search.vectors)), asking, seed)
    known, asked = words.counts[1]
    words.judge(fold, theta, known, asked[judges])
    choice, tried = choose([fold], always)
    say(described(choice, tried, "validation"))
    words.give(task, choice, [fold], theta)
    tested = torch.from_numpy(np.asarray(trainer.answers_to(test)))
    return scored(task, choice, tested, test.documents)


@dataclass
class Fold:
    """Queries that nothing was learned from, and what each candidate of words and of vectors says of documents.

    Attributes:
        judgments: of these queries and these documents only; each query has something to find.
        groups: what the queries belong to, ``(Q,)``.
        words: similarities ``(Q, D)`` by the names of candidates,
        sketched: those of the sketches of the same words, and
        vectors: of vectors.
    """

    judgments: Judgments
    groups: np.ndarray
    words: dict[str, Tensor] = field(default_factory=dict)
    sketched: dict[str, Tensor] = field(default_factory=dict)
    vectors: dict[str, Tensor] = field(default_factory=dict)


class Search:
    """Documents with their queries, or with the labels by which they ask for each other.

    Args:
        documents: with a column of groups where they have some.
        vectors: of the documents and then of their queries, ``(rows, C)`` or ``(rows, M, C)``.

    Attributes:
        drawn: numbers of the documents that a map of vectors is learned from, in their order.
    """

    def __init__(self, documents: Dataset, vectors: Tensor) -> None:
        self.vectors, self.asking = asked_of(documents, vectors)
        self.judgments, self.has_labels = judgments_of(documents), "label" in documents.column_names
        self.drawn = np.sort(np.random.default_rng(0).permutation(len(documents))[:MOST_DOCUMENTS])
        self.groups = np.arange(len(documents))
        if GROUP in documents.column_names:
            self.groups = np.unique(documents[GROUP][:], return_inverse=True)[1]

    def asked_by(self, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The queries that should find some of these documents only, and those that should find none of them."""
        if self.has_labels:
            return inside, np.setdiff1d(np.arange(len(self.groups)), inside)
        found, whole = self.judgments.members[inside].getnnz(axis=0)[self.judgments.queries], self.judgments.wanted
        return np.flatnonzero((found > 0) & (found == whole)), np.flatnonzero((found == 0) & (whole > 0))

    def fold(self, documents: np.ndarray, queries: np.ndarray, seed: int) -> tuple[Fold, np.ndarray]:
        """A fold of some documents, with vectors as they are, and those of the queries that judge."""
        judges = np.random.default_rng(seed).permutation(queries)[: max(1, MOST_JUDGED // len(documents))]
        judges = judges[self.judgments.among(documents, judges).wanted > 0]
        judgments = self.judgments.among(documents, judges)
        fold = Fold(judgments, self.groups[documents[judgments.first]])
        fold.vectors[AS_READ] = largest_products(self.asking[judges], self.vectors[documents])
        return fold, judges


class SearchWords:
    """The words of some collections, counted; the documents of all of them tell how much a word weighs.

    Attributes:
        lexical: counts them; its weights change with what is tried.
        counts: the :func:`~torch_linformer.tasks.lexical_vector_fit.counts_of` of each collection's documents and of
            their queries.
    """

    def __init__(self, task: Retrieval, collections: Sequence[Dataset], channels: int, width: int) -> None:
        self.lexical = LexicalVector(len(task.tokenizer), channels, width)
        know_words(self.lexical, task.tokenizer)
        self.counts = [task.counts(self.lexical, documents) for documents in collections]
        self.known = sparse.vstack([documents for documents, _ in self.counts]).tocsr()

    def learned(self, documents: Any, queries: Any, judgments: Judgments, seed: int) -> np.ndarray:
        """The :func:`~torch_linformer.tasks.lexical_vector_fit.learn_weights` of rows with these counts."""
        fit_vector(self.lexical, self.known)  # without what was learned from another fold
        rows = word_rows(self.lexical, documents), word_rows(self.lexical, queries)
        return learn_weights(*rows, judgments, seed)

    def judge(self, fold: Fold, theta: np.ndarray, documents: Any, queries: Any) -> None:
        """Tell a fold what words say of documents and queries with these counts, exactly and by their sketches."""
        for name, weights in ((AS_COUNTED, None), (LEARNED, theta)):
            fit_vector(self.lexical, self.known, weights)
            for similarities, rows_of in ((fold.words, word_rows), (fold.sketched, sketches_of)):
                products = rows_of(self.lexical, queries) @ rows_of(self.lexical, documents).T
                similarities[name] = torch.from_numpy(products.toarray()).float()

    def give(self, task: Retrieval, choice: "SearchChoice", folds: Sequence[Fold], theta: np.ndarray | None) -> None:
        """Make the words of a choice a part of a task's vectors, with the share that their sketches should have."""
        if choice.words == NO_WORDS:
            return
        fit_vector(self.lexical, self.known, theta if choice.words == LEARNED else None)
        a, b = _factors(folds, choice.words, choice.vectors, [fold.sketched for fold in folds])
        self.lexical.exact_share, self.lexical.share = choice.share, a / (a + b)
        task.vectors.lexical = self.lexical


def folds_of(groups: np.ndarray, seed: int) -> np.ndarray:
    """The fold of each document; those of a group are in the same one."""
    sizes, filled = np.bincount(groups), np.zeros(FOLDS)
    fold_of = np.zeros(len(sizes), dtype=np.int64)
    order = np.random.default_rng(seed).permutation(len(sizes)).tolist()
    for group in sorted(order, key=lambda group: -sizes[group]):
        fold_of[group] = np.argmin(filled)
        filled[fold_of[group]] += sizes[group]
    return cast(np.ndarray, fold_of[groups])


def judged_folds(
    search: Search,
    fold_of: np.ndarray,
    words: SearchWords | None,
    lessons: Lessons | None,
    pieces: PieceVectors,
    seed: int,
    say: Callable[[str], object],
) -> list[Fold]:
    """What candidates, learned from all other folds, say of the documents of each, whose words are counted first."""
    folds: list[Fold] = []
    parts = np.unique(fold_of)
    for part in parts:
        inside, outside = np.flatnonzero(fold_of != part), np.flatnonzero(fold_of == part)
        learns, judges = search.asked_by(inside)
        fold, judges = search.fold(outside, judges, seed)
        said = f"learning from {len(learns):,} queries, judged by {len(judges):,} others"
        say(f"{said} ({len(folds) + 1} of {len(parts)})")
        mapped = learned_map(pieces, search, inside, learns, lessons, seed).mapped
        fold.vectors[MAPPED] = largest_products(mapped(search.asking[judges]), mapped(search.vectors[outside]))
        if words is not None:
            known, asked = words.counts[0]
            theta = words.learned(known[inside], asked[learns], search.judgments.among(inside, learns), seed)
            words.judge(fold, theta, known[outside], asked[judges])
        folds.append(fold)
    return folds


def learned_map(
    pieces: PieceVectors, search: Search, inside: np.ndarray, learns: np.ndarray, lessons: Lessons | None, seed: int
) -> PieceVectors:
    """Another of ``pieces``, with a map that was learned from some documents and queries."""
    learned, inside = PieceVectors(**pieces.options), np.intersect1d(inside, search.drawn)
    taught = None if lessons is None else lessons.some(learns, np.searchsorted(search.drawn, inside))
    judgments = search.judgments.among(inside, learns)
    fit_map(learned, search.asking[learns], search.vectors[inside], judgments, taught, seed)
    return learned


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

    def __str__(self) -> str:
        names = [f"words by {self.words}"] * (self.words != NO_WORDS)
        names += [f"vectors {self.vectors}"] * (self.vectors != NO_VECTORS)
        return " + ".join(names)


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
            a, b = _factors(folds, words, vectors, [fold.words for fold in folds])
            gains = []
            for fold in folds:
                scores = a * fold.words.get(words, torch.zeros(())) + b * fold.vectors.get(vectors, torch.zeros(()))
                similarities = cast(Any, lambda begin, end, scores=scores: scores[begin:end])
                metrics = retrieval_metrics(similarities, fold.judgments)
                gains.append(metrics["tallies"]["ndcg_at_10"][:, 0])
            tried.append(SearchChoice(words, vectors, (a, b), np.concatenate(gains)))
    groups = np.unique(np.concatenate([fold.groups for fold in folds]), return_inverse=True)[1]
    unlearned = [choice for choice in tried if choice.words != LEARNED and choice.vectors != MAPPED]
    simple = max(unlearned, key=lambda choice: choice.score)

    def wins(choice: SearchChoice) -> bool:
        differences = choice.gains - simple.gains
        error = np.sqrt(np.square(np.bincount(groups, differences - differences.mean())).sum()) / len(differences)
        return is_more_than_chance(float(differences.mean()), float(error)) and choice.score > simple.score

    return max([simple, *filter(wins, tried)], key=lambda choice: choice.score), tried


def described(choice: SearchChoice, tried: Sequence[SearchChoice], judges: str) -> str:
    """What was tried and what was taken, as a line."""
    scores = ", ".join(f"{other} {other.score:.3f}" for other in tried)
    return f"nDCG@10 of queries for {judges}: {scores}; kept: {choice}, share of words {choice.share:.2f}"


def _factors(
    folds: Sequence[Fold], words: str, vectors: str, of_words: Sequence[dict[str, Tensor]]
) -> tuple[float, float]:
    """Those of :func:`choose`, by the words, or their sketches, of each fold."""
    if words == NO_WORDS or vectors == NO_VECTORS:
        return (0.0, 1.0) if words == NO_WORDS else (1.0, 0.0)
    width = max(fold.judgments.members.shape[0] for fold in folds)
    columns = []
    for fold, similarities in zip(folds, of_words, strict=True):
        judged = map(torch.from_numpy, fold.judgments.of(np.arange(len(fold.judgments.queries))))
        parts = similarities[words], fold.vectors[vectors], *judged
        columns.append([F.pad(part, (0, width - part.shape[1])) for part in parts])
    by_words, by_vectors, relevant, candidates = map(torch.cat, zip(*columns, strict=True))
    loss = partial(surprise, relevant=relevant, candidates=candidates)
    stacked = torch.stack([by_words, by_vectors], dim=-1)
    a, b = least_factors(stacked, [SCALE, SCALE], loss)[0].clamp(min=0).tolist()
    return (a, b) if a + b > 0 else (1.0, 1.0)


def scored(task: Retrieval, choice: SearchChoice, tested: Tensor, documents: Dataset) -> LearnedSearch:
    """What a choice and its parts score on the test documents."""
    lexical, task.vectors.lexical = task.vectors.lexical, None
    scores = {"rest": task.scores(tested, documents)}
    if lexical is not None:
        task.vectors.lexical, share, lexical.exact_share = lexical, lexical.exact_share, 1.0
        scores["lexical"] = task.scores(tested, documents)
        lexical.exact_share = share
        scores["both"] = task.scores(tested, documents)
    return LearnedSearch(choice.factors, scores)


def _read(
    trainer: RetrievalTrainer, pieces: PieceVectors, parts: Sequence[Examples], screen: TrainingScreen
) -> list[tuple[Tensor, list[Tensor] | None]]:
    """The vectors of the rows of each part, and their windows where an encoder reads these one by one."""
    if pieces.window is None:
        return [(torch.from_numpy(np.asarray(trainer.answers_to(part))), None) for part in parts]
    rows = [cast(Dataset, part.windows)["input_ids"][:] for part in parts]
    kept = windows_of_rows(cast(Any, trainer.model), pieces, str(trainer.args.device), precision_of(trainer.args))
    windows = iter(kept.of(list(chain.from_iterable(rows)), screen))
    reads: list[tuple[Tensor, list[Tensor] | None]] = []
    for part in rows:
        own = [next(windows) for _ in part]
        vectors = torch.cat([pieces.of_windows(own[begin : begin + 256]) for begin in range(0, len(own), 256)])
        reads.append((vectors, own))
    return reads


def _some(parts: Sequence[Examples], numbers: np.ndarray) -> Examples:
    """Some of the documents of all parts, by their numbers, with the windows of them and of each of their queries."""
    own, places, begin = list[int](), dict[str, int](), 0
    for part in parts:
        asking = begin + len(part.documents)
        own += range(begin, asking)
        places = {query: asking + place for place, query in enumerate(queries_of(part.documents))} | places
        begin += len(part.windows)
    documents = concatenate_datasets([part.documents for part in parts]).select(numbers)
    rows = [*np.array(own)[numbers], *(places[query] for query in queries_of(documents))]
    windows = concatenate_datasets([cast(Dataset, part.windows) for part in parts]).select(rows)
    return Examples(documents, windows, np.concatenate([part.num_tokens for part in parts])[numbers])

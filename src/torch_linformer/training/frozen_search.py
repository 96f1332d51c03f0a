"""A search by an encoder that stays as it is: documents are read once, and words and a map of vectors are learned."""

import math
import time
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from scipy import sparse
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.opening.folder import Spent
from torch_linformer.tasks.lexical_vector_fit import MOST_DOCUMENTS, learn_weights
from torch_linformer.tasks.retrieval import asked_of, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import joined, retrieval_metrics, tfidf_similarities
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.word_rows import word_rows
from torch_linformer.training.encoder_baselines import embedder_vectors
from torch_linformer.training.fitted_pieces import Lessons, best_chunks, lessons_of
from torch_linformer.training.kept_reading import windows_of_rows
from torch_linformer.training.search_parts import (
    FOLDS,
    LEARNED,
    MAPPED,
    Search,
    choose,
    described,
    fitted_words,
    folds_of,
    give_words,
    learned_map,
    weighing_of,
)
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.trainer import precision_of
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.verdict import Weighing

FIRST = 16  # documents that tell the time


class FrozenSearch(NamedTuple):
    """What was learned, what simple methods score on the test documents, and examples of what is found."""

    spent: Spent
    weighing: Weighing
    baselines: dict[str, dict[str, Any]]
    hits: list[tuple[str, list[str]]]


class _Read(NamedTuple):
    """Examples and what an encoder makes of them: windows of each row, or vectors where it reads rows at once."""

    examples: Examples
    windows: list[Tensor] | None
    vectors: Tensor | None

    def by(self, pieces: PieceVectors) -> Tensor:
        """The vectors of all rows."""
        if self.windows is None:
            return cast(Tensor, self.vectors)
        some = [pieces.of_windows(self.windows[begin : begin + 256]) for begin in range(0, len(self.windows), 256)]
        vectors = torch.cat(some)
        return vectors.squeeze(1) if pieces.most == 1 else vectors


def learn_search(
    trainer: RetrievalTrainer,
    train: Examples,
    validation: Examples,
    test: Examples,
    source: str,
    screen: TrainingScreen,
    *,
    width: int,
    words: str,
    seconds: float = math.inf,
    compared: bool = True,
) -> FrozenSearch:
    """Give the task of a trainer the words and the map of vectors with which queries find documents.

    Everything is decided on folds of the documents to train on and for validation together, then learned from all of
    them. Words count for less the more documents have them, held-out ones too, as in TF-IDF and BM25: what is searched
    is known, what is asked is not.

    Args:
        trainer: has the encoder.
        train: documents to learn from, and
        validation: others, which are no different here.
        test: documents to score.
        source: the model that the encoder was.
        screen: is told what is decided.
        width: numbers of a sketch of words.
        words: ``none`` for none, ``always`` for some in any case.
        seconds: in which documents are read, as many as can be.
        compared: whether other methods are scored too.
    """
    begin, task, seed = time.monotonic(), trainer.task, trainer.args.seed
    pieces = cast(PieceVectors, task.vectors.pieces)
    known = _together(train, validation)
    order = np.random.default_rng(seed).permutation(len(known.documents))
    if seconds < math.inf and len(order) > FIRST:
        _read(trainer, pieces, [_some(known, order[:FIRST])], screen)
        number = max(FIRST, int(seconds / ((time.monotonic() - begin) / FIRST)) - FIRST)
        if number < len(order):
            screen.say(f"{number:,} of {len(order):,} documents can be read in that time")
            known = _some(known, order[:number])
    read, tested = _read(trainer, pieces, [known, test], screen)
    spent = Spent(time.monotonic() - begin, int(np.sum(np.asarray(known.windows["length"][:]))))
    sources = [known.documents, test.documents]
    lexical, counts = (None, None) if words == "none" else fitted_words(task, sources, pieces.channels, width)
    lessons = _lessons(trainer, read, source)

    search = Search(known.documents, read.by(pieces), None if counts is None else counts[0], lessons)
    all_counts = None if counts is None else sparse.vstack([documents for documents, _ in counts]).tocsr()
    fold_of = search.folds(seed)
    splits = [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in np.unique(fold_of)]
    exact, sketched = folds_of(search, splits, lexical, all_counts, pieces, seed, screen.say)
    choice, tried = choose(exact, always=words == "always")
    screen.say(described(choice, tried, f"each of {FOLDS} folds, learned from the others"))
    judgments, theta = judgments_of(known.documents), None
    if choice.words == LEARNED and lexical is not None and counts is not None:
        of_documents, of_queries = (word_rows(lexical, part) for part in counts[0])
        theta = learn_weights(of_documents, of_queries, judgments, seed)
    give_words(task, lexical, all_counts, choice, sketched, theta)
    vectors = tested.by(pieces)
    if choice.vectors == MAPPED:
        everything = np.arange(len(known.documents)), np.arange(len(judgments.queries))
        fitted = learned_map(pieces, search, *everything, seed)
        vectors = fitted.mapped(vectors)
        with torch.no_grad():
            pieces.map.load_state_dict(fitted.map.state_dict())
    weighing = weighing_of(task, choice, vectors, test.documents)
    pieces.to(trainer.args.device)
    spent = Spent(time.monotonic() - begin, spent.tokens)
    baselines = {}
    if compared and tested.windows is not None:
        baselines = chunk_baselines(test.documents, tested.windows)
    return FrozenSearch(spent, weighing, baselines, task.hits(vectors, test.documents))


def chunk_baselines(documents: Dataset, windows: list[Tensor]) -> dict[str, dict[str, Any]]:
    """Scores of an encoder's first window, of the mean of its windows, and of the best; alone, and with TF-IDF."""
    judgments = judgments_of(documents)
    chunks, means = _chunks_and_means(windows)
    first = torch.stack([row[0] for row in chunks])
    known, asking = asked_of(documents, means)
    counts = [len(row) for row in chunks[: len(documents)]]
    rows = {
        "first_window": asked_of(documents, first)[1] @ first[: len(documents)].T,
        "window_mean": largest_products(asking, known),
        "best_window": best_chunks(asking, torch.cat(chunks[: len(documents)]), counts),
    }
    texts = documents["text"][:]
    tfidf = tfidf_similarities(texts, queries_of(documents) or texts)
    scores = {}
    for name, products in rows.items():
        by_name = cast(Any, lambda begin, end, products=products: products[begin:end].numpy())
        scores[name] = retrieval_metrics(by_name, judgments)
        scores[f"{name}_tfidf"] = retrieval_metrics(joined(by_name, tfidf, judgments), judgments)
    return scores


def _chunks_and_means(windows: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Vectors of length 1 of each row's windows, ``(windows, C)``, and of all its tokens, ``(rows, C)``."""
    chunks = [F.normalize(row[:, :-1], dim=-1) for row in windows]
    means = [F.normalize((row[:, :-1] * row[:, -1:]).sum(dim=0), dim=-1) for row in windows]
    return chunks, torch.stack(means)


def _read(
    trainer: RetrievalTrainer, pieces: PieceVectors, parts: list[Examples], screen: TrainingScreen
) -> list[_Read]:
    if pieces.window is None:
        return [_Read(part, None, torch.from_numpy(np.asarray(trainer.answers_to(part)))) for part in parts]
    rows = [cast(Dataset, part.windows)["input_ids"][:] for part in parts]
    kept = windows_of_rows(cast(Any, trainer.model), pieces, str(trainer.args.device), precision_of(trainer.args))
    windows = kept.of(list(chain.from_iterable(rows)), screen)
    reads = []
    for part, own in zip(parts, rows, strict=True):
        reads.append(_Read(part, windows[: len(own)], None))
        windows = windows[len(own) :]
    return reads


def _lessons(trainer: RetrievalTrainer, read: _Read, source: str) -> Lessons | None:
    """What the best chunk of each document says: of the encoder's windows, or of those of what it was before."""
    documents, seed = read.examples.documents, trainer.args.seed
    most = min(len(documents), MOST_DOCUMENTS)
    if read.windows is not None:
        chunks, means = _chunks_and_means(read.windows)
        return lessons_of(chunks[: len(documents)], asked_of(documents, means)[1], most, seed)
    original = embedder_vectors(source, documents, str(trainer.args.device), precision_of(trainer.args))
    if original is None:
        return None
    queries = original.means if original.queries is None else original.queries
    by_document = torch.from_numpy(original.chunks).float().tensor_split(torch.from_numpy(original.first[1:]))
    return lessons_of(by_document, torch.from_numpy(queries).float(), most, seed)


def _together(one: Examples, other: Examples) -> Examples:
    """The documents of both, with the windows of them and of their queries, each once."""
    documents = concatenate_datasets([one.documents, other.documents])
    sides = [(part, cast(Dataset, part.windows)) for part in (one, other)]
    rows = [windows.select(range(len(part.documents))) for part, windows in sides]
    places: dict[str, tuple[int, int]] = {}
    for side, (part, _) in enumerate(sides):
        for number, query in enumerate(queries_of(part.documents)):
            places.setdefault(query, (side, len(part.documents) + number))
    asked = [places[query] for query in queries_of(documents)]
    for side, (_, windows) in enumerate(sides):
        # Queries of the first part come first in both, as documents do.
        rows.append(windows.select([row for owner, row in asked if owner == side]))
    return Examples(documents, concatenate_datasets(rows), np.concatenate([one.num_tokens, other.num_tokens]))


def _some(examples: Examples, numbers: np.ndarray) -> Examples:
    """Some of the documents, with the windows of them and of their queries."""
    documents = examples.documents.select(numbers)
    places = {query: len(examples.documents) + place for place, query in enumerate(queries_of(examples.documents))}
    rows = [*numbers, *(places[query] for query in queries_of(documents))]
    return Examples(documents, cast(Dataset, examples.windows).select(rows), examples.num_tokens[numbers])

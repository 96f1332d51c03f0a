"""What reads words in vectors of a search: their lexical part, fitted, weighed, and kept where it helps."""

from collections.abc import Iterator
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models.lexical_parts import LexicalVector
from torch_linformer.models.pieces import largest_products
from torch_linformer.opening import processes
from torch_linformer.tasks.lexical_vector_fit import fit_vector, surprise
from torch_linformer.tasks.retrieval import SCALE, Retrieval, asked_of, judgments_of, queries_of
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference
from torch_linformer.tasks.task import Examples
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.verdict import ENOUGH, Weighing, weigh_parts

MOST_SIMILARITIES = 4_000_000  # of validation documents and queries, by which the parts are weighed
AT_ONCE = 16  # rows whose words are counted
MAX_TOKENS = 30_000_000  # of the documents that a lexical part is fitted to; as many as are drawn
TOGETHER = 100  # documents tokenized at once


def fitted_vector(
    task: Retrieval, train: Dataset, encoder: DocumentEncoder, channels: int, width: int, seed: int
) -> LexicalVector:
    """A lexical part whose weights of tokens are learned from the training documents, whole, and their queries.

    Args:
        task: of the run.
        train: its documents.
        encoder: makes their token ids.
        channels: numbers of the vectors without it.
        width: numbers that it adds.
        seed: of the draw, where there are more documents than it needs, and of the learning.
    """

    def fitted() -> LexicalVector:
        lexical = LexicalVector(len(task.tokenizer), channels, width)
        drawn = train.select(np.random.default_rng(seed).permutation(len(train)))
        ids = [ids for _, some in drawn_documents(drawn, encoder) for ids in some]
        drawn = drawn.select(range(len(ids)))
        queries = ids if "label" in drawn.column_names else encoder.ids(queries_of(drawn))
        fit_vector(lexical, task.tokenizer, ids, queries, judgments_of(drawn), seed)
        return lexical

    return processes.on_main(fitted)


def weigh_vectors(
    trainer: RetrievalTrainer, lexical: LexicalVector, validation: Examples, test: Examples, *, always: bool
) -> Weighing:
    r"""Weigh the lexical part of vectors against the rest on the validation documents, and keep it where it helps.

    The factors a of the product of two sketches and b of that of two other vectors have the least

    .. math:: -\frac{1}{Q} \sum_i \ln \frac{\sum_{j \in R_i} e^{a\, y_i \cdot y_j + b\, v_i \cdot v_j}}
        {\sum_j e^{a\, y_i \cdot y_j + b\, v_i \cdot v_j}}

    for Q queries i and the documents :math:`R_i` that they should find; the share of the sketch is a / (a + b). Each
    part has to earn its place (:func:`~torch_linformer.training.verdict.weigh_parts`), and a lexical part with which
    nDCG@10 is worse by more than chance is left out, unless ``always`` keeps it.
    """
    task = trainer.task
    known_words, unseen_words = (sketches(lexical, examples) for examples in (validation, test))
    known, unseen = (np.asarray(trainer.answers_to(examples)) for examples in (validation, test))
    logits, relevant, candidates = _similarities(validation, known_words, known)
    (a, b), losses, gained = weigh_parts(
        logits,
        (SCALE, SCALE),
        partial(surprise, relevant=relevant, candidates=candidates),
        lambda before, after: len(relevant) * (before - after),
        len(relevant),
    )
    lexical.share = a / (a + b) if a else 0.0

    def scores(words: np.ndarray, rest: np.ndarray, examples: Examples) -> dict[str, dict[str, Any]]:
        beside = np.broadcast_to(
            words.reshape(len(words), *[1] * (rest.ndim - 2), -1), (*rest.shape[:-1], lexical.width)
        )
        both = np.concatenate([rest * (1 - lexical.share) ** 0.5, beside * lexical.share**0.5], axis=-1)
        vectors_of = {"lexical": words, "rest": rest, "both": both}
        return {name: task.scores(vectors, examples.documents) for name, vectors in vectors_of.items()}

    validated = scores(known_words, known, validation)
    both, rest = (validated[part]["tallies"][task.best_metric] for part in ("both", "rest"))
    gain, error = paired_difference(both, rest)
    kept = always or (gained > ENOUGH and not (gain < 0 and is_more_than_chance(gain, error)))
    if kept:
        task.vectors.lexical = lexical.to(trainer.args.device)
    tested = scores(unseen_words, unseen, test)
    return Weighing("lexical part", (a, b), losses, tested, gained, task.best_metric, kept)


def sketches(lexical: LexicalVector, examples: Examples) -> np.ndarray:
    """The lexical part of the vector of each document and query, all of which is read."""
    windows, rows_of_sketches = cast(Dataset, examples.windows), []
    for rows in windows.select_columns(["input_ids", "whole_ids"]).iter(AT_ONCE):
        ids = [torch.tensor(whole or row) for row, whole in zip(*rows.values(), strict=True)]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        rows_of_sketches.append(lexical.sketch(pad_sequence(ids, batch_first=True), mask))
    return torch.cat(rows_of_sketches).numpy()


def _similarities(
    examples: Examples, words: np.ndarray, rest: np.ndarray
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Products of queries and documents, by words and by the rest, ``(Q, D)``; which of the documents are relevant, and
    which are candidates: a query that is a document itself is none.
    """
    documents, judgments = len(examples.documents), judgments_of(examples.documents)
    asked = np.flatnonzero(judgments.wanted > 0)
    most = max(1, MOST_SIMILARITIES // documents)
    asked = np.random.default_rng(0).permutation(asked)[:most]
    relevant, candidates = map(torch.from_numpy, judgments.of(asked))
    parts = (asked_of(examples.documents, torch.from_numpy(vectors)) for vectors in (words, rest))
    by_words, by_rest = (largest_products(asking[asked], answering) for answering, asking in parts)
    return (by_words, by_rest), relevant, candidates


def drawn_documents(documents: Dataset, encoder: DocumentEncoder) -> Iterator[tuple[list[str], list[list[int]]]]:
    """Texts and token ids of whole documents, some at a time, until they have as many tokens as a head is fitted to."""
    tokens = 0
    for start in range(0, len(documents), TOGETHER):
        texts = documents[start : start + TOGETHER]["text"]
        ids = encoder.ids(texts)
        yield texts, ids
        tokens += sum(map(len, ids))
        if tokens > MAX_TOKENS:
            return

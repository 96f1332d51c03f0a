"""The map of vectors: queries that point elsewhere than their documents find them, and a teacher is followed."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.tasks.retrieval_metrics import Judgments
from torch_linformer.training.vector_map import Lessons, fit_map, lessons_of

CHANNELS, DOCUMENTS, QUERIES = 12, 30, 120


@pytest.fixture
def collection():
    """Documents of two vectors; a query is near one of its document's in half of the channels, else noise."""
    generator = torch.Generator().manual_seed(0)
    documents = torch.randn(DOCUMENTS, 2, CHANNELS, generator=generator)
    own = torch.arange(QUERIES) % DOCUMENTS
    queries = documents[own, torch.arange(QUERIES) % 2].clone()
    queries[:, CHANNELS // 2 :] = 0.7 * torch.randn(QUERIES, CHANNELS // 2, generator=generator)
    return F.normalize(queries, dim=-1), F.normalize(documents, dim=-1), own.numpy()


def fitted(queries, documents, own, lessons=None):
    pieces = PieceVectors(CHANNELS, 2)
    judgments = Judgments.of_groups(np.arange(DOCUMENTS), own, np.full(len(own), -1))
    fit_map(pieces, queries, documents, judgments, lessons, seed=0)
    return pieces


def found(pieces, queries, documents, own):
    nearest = largest_products(pieces.mapped(queries), pieces.mapped(documents)).argmax(dim=1)
    return float((nearest.numpy() == own).mean())


def test_queries_find_their_documents(collection):
    before, after = (found(pieces, *collection) for pieces in (PieceVectors(CHANNELS, 2), fitted(*collection)))
    assert after > before + 0.08
    assert not any(weight.requires_grad for weight in fitted(*collection).parameters())


@pytest.mark.parametrize("who", ["queries", "texts"])
def test_a_teacher_is_followed(collection, who):
    """It is near in what it says to queries, or to texts of its own, than a map that learned without it."""
    queries, documents, _ = collection
    texts = F.normalize(torch.randn(40, CHANNELS, generator=torch.Generator().manual_seed(1)), dim=-1)
    mirrored = documents.flip(-1)
    said = Lessons(largest_products(queries, mirrored), texts, largest_products(texts, mirrored))
    asked, told = (queries, said.queries) if who == "queries" else (texts, said.of_texts)
    divergences = []
    for lessons in (None, said):
        pieces = fitted(*collection, lessons)
        scores = 20 * largest_products(pieces.mapped(asked), pieces.mapped(documents))
        divergences.append(float(F.kl_div(scores.log_softmax(1), (20 * told).softmax(1), reduction="batchmean")))
    assert divergences[1] < 0.8 * divergences[0]


def test_what_asks_for_nothing_teaches_nothing(collection):
    queries, documents, own = collection
    nothing = np.full_like(own, DOCUMENTS)  # a group without documents
    assert torch.equal(fitted(queries, documents, nothing).map.weight, torch.eye(CHANNELS))
    whole = fitted(queries, documents, np.where(np.arange(QUERIES) % 2, own, nothing))
    some = fitted(queries[1::2], documents, own[1::2])
    assert torch.allclose(whole.map.weight, some.map.weight, atol=1e-4)


def test_lessons_are_those_of_the_best_chunks():
    draw = np.random.default_rng(0)
    chunks, queries = draw.normal(size=(7, 4)), draw.normal(size=(3, 4))
    of_documents = [torch.from_numpy(chunks[begin:end]) for begin, end in ((0, 2), (2, 3), (3, 7))]
    lessons = lessons_of(of_documents, torch.from_numpy(queries), documents=np.arange(2), seed=0)
    best = np.stack([(queries @ chunks[:2].T).max(axis=1), queries @ chunks[2]], axis=1)
    assert np.allclose(lessons.queries, best) and lessons.texts.shape == (7, 4)
    order = [int(np.abs(chunks - text.numpy()).sum(axis=1).argmin()) for text in lessons.texts]
    assert sorted(order) == [*range(7)] and np.allclose(lessons.of_texts[:, 1], (chunks @ chunks[2])[order])

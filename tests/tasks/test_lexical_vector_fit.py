"""Weights of words are learned from queries: the loss by its definition, words that mislead, few queries, labels."""

import math

import numpy as np
import pytest
import torch
from scipy import sparse

from torch_linformer.tasks.lexical_vector_fit import learn_weights, surprise
from torch_linformer.tasks.retrieval_metrics import Judgments, retrieval_metrics

FEATURES, MISLEADING = 60, 20  # the first of them stand in queries whatever the document


def meetings(seed, number=60):
    """Documents of 15 features; queries of 3 that tell and 3 that mislead; which document each query is about."""
    draw, there = np.random.default_rng(seed), np.arange(number)
    documents, queries = np.zeros((number, FEATURES)), np.zeros((number, FEATURES))
    for row in range(number):
        words = draw.permutation(FEATURES)[:15]
        documents[row, words] = draw.uniform(1, 3, size=15)
        queries[row, draw.permutation(words[words >= MISLEADING])[:3]] = 1
        queries[row, draw.integers(MISLEADING, size=3)] = 1
    judgments = Judgments.of_groups(there, there, np.full(number, -1))
    return sparse.csr_matrix(documents), sparse.csr_matrix(queries), judgments


def ndcg(theta, documents, queries, judgments):
    parts = [each.multiply(np.exp(theta)).toarray() for each in (documents, queries)]
    known, asked = (part / np.maximum(np.linalg.norm(part, axis=1, keepdims=True), 1e-9) for part in parts)
    return retrieval_metrics(lambda begin, end: asked[begin:end] @ known.T, judgments)["ndcg_at_10"]


def test_surprise_is_by_the_documents_that_should_be_found_among_the_candidates():
    scores = torch.tensor([[1.0, 2.0, 3.0, 9.0], [0.5, 0.0, 0.0, 0.0]])
    relevant = torch.tensor([[True, True, False, False], [False, False, False, True]])
    candidates = torch.tensor([[True, True, True, False], [True, True, True, True]])
    first = math.log((math.e + math.e**2 + math.e**3) / (math.e + math.e**2))
    second = math.log(math.e**0.5 + 3)
    assert float(surprise(scores, relevant, candidates)) == pytest.approx((first + second) / 2)


def test_words_that_mislead_lose_weight_and_other_documents_are_found():
    theta = learn_weights(*meetings(0), seed=0)
    assert theta[:MISLEADING].max() < theta[MISLEADING:].mean()
    unseen = meetings(1)
    assert ndcg(theta, *unseen) > ndcg(np.zeros(FEATURES), *unseen) + 0.05
    assert np.array_equal(theta, learn_weights(*meetings(0), seed=0))


def test_few_queries_change_little_and_none_nothing():
    documents, queries, judgments = meetings(0)
    spread = []
    for number in (0, 2, 60):
        some = Judgments(judgments.members, judgments.queries[:number], judgments.itself[:number])
        spread.append(float(np.abs(learn_weights(documents, queries[:number], some, seed=0)).max()))
    assert spread[0] == 0 and spread[1] < 0.5 * spread[2]


def test_of_documents_with_labels_none_finds_itself():
    """Documents of a label share feature 0 or 1; feature 2 + i is that of document i alone, and tells nothing."""
    number = 12
    labels = np.arange(number) % 2
    documents = np.concatenate([0.3 * np.eye(2)[labels], np.eye(number)], axis=1)
    judgments = Judgments.of_groups(labels, labels, np.arange(number))
    theta = learn_weights(sparse.csr_matrix(documents), sparse.csr_matrix(documents), judgments, seed=0)
    assert theta[:2].min() > 0.0005 > -0.0001 > theta[2:].max()

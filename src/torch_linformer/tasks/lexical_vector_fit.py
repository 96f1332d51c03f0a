"""The lexical part of vectors, fitted to the training documents and to the queries that should find them."""

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import normalize
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_parts import NOTHING, LexicalVector
from torch_linformer.tasks.lexical_fit import counted, counts_of
from torch_linformer.tasks.retrieval import SCALE
from torch_linformer.tasks.retrieval_metrics import Judgments

STEPS, BATCH, LEARNING_RATE = 200, 64, 0.03
NEAR_IDF = 2.0  # how much it costs to leave it: halves of training meetings find those of the other (docs/log.md)
MOST_DOCUMENTS = 2000  # that weights are learned from


def fit_vector(
    lexical: LexicalVector,
    tokenizer: PreTrainedTokenizerFast,
    documents: Sequence[Sequence[int]],
    queries: Sequence[Sequence[int]],
    judgments: Judgments,
    seed: int,
) -> None:
    r"""Give tokens the weights that find documents like these, and columns that disturb little.

    .. math:: w_f = e^{\theta_f} \ln \frac{1 + n}{1 + n_f}

    for n documents, :math:`n_f` of which have token f, with the :math:`\theta` that :func:`learn_weights` learns from
    the queries. Tokens count without their case and the space before them, and those that are only punctuation do
    not. (The 1 that scikit-learn adds
    to the logarithm keeps the weight of words that every document has, which only disturb a sketch.)

    Two tokens f and g in a column disturb a product by about :math:`\ell_f \ell_g`, where :math:`\ell` is the mean of
    :math:`x_f^2 / \lVert x \rVert_2^2` over the documents. So each token, those of the largest :math:`\ell` first, goes
    to the column with the least sum of them so far (Graham 1969, longest processing time first): what weighs much
    shares its column with little.

    Args:
        lexical: is changed.
        tokenizer: of the documents.
        documents: token ids of whole documents.
        queries: token ids of queries, in the order of the judgments.
        judgments: which documents each query should find.
        seed: of the order of the queries.
    """
    lexical.reset_parameters()
    counts_as, tokens = counted(lexical, tokenizer, [*documents, *queries])
    counts = counts_of(lexical, tokens)
    counts.data = 1 + np.log(counts.data)
    of_documents, of_queries = counts[: len(documents)], counts[len(documents) :]
    weights = np.log((1 + len(documents)) / (1 + of_documents.getnnz(axis=0)))
    weights *= np.exp(learn_weights(of_documents.multiply(weights), of_queries.multiply(weights), judgments, seed))
    with torch.no_grad():
        lexical.idf.copy_(torch.from_numpy(weights))
    loads = np.asarray(normalize(of_documents.multiply(weights).tocsr()).power(2).mean(axis=0)).ravel()
    counted_ids = np.unique(counts_as[counts_as != NOTHING])
    seldom = loads[loads > 0].min(initial=1.0) / 2  # what a token is taken to weigh that no document has
    lexical.columns[torch.from_numpy(counted_ids)] = torch.tensor(
        _balanced(np.maximum(loads[counted_ids], seldom), lexical.width)
    )


def learn_weights(documents: Any, queries: Any, judgments: Judgments, seed: int) -> np.ndarray:
    r"""The logarithms :math:`\theta` of factors of features with which queries find their documents.

    They have the least :func:`surprise` of the cosines of x e^θ, of queries and documents, times a scale that is
    learned too, plus :math:`2 \lVert \theta \rVert^2 / Q` for Q queries: a feature stays as it is unless several
    queries tell otherwise.

    Args:
        documents: their features x, sparse, ``(D, F)``; the first 2,000 count.
        queries: likewise, ``(Q, F)``.
        judgments: which documents each query should find.
        seed: of the order of the queries.
    """
    number = min(documents.shape[0], MOST_DOCUMENTS)
    known, judgments = _sparse(documents.tocsr()[:number]), judgments.among(number)
    squares = (known * known).coalesce()
    asked = np.flatnonzero(judgments.wanted > 0)
    theta = torch.zeros(documents.shape[1], requires_grad=True)
    scale = torch.tensor(np.log(SCALE), dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.Adam([theta, scale], lr=LEARNING_RATE)
    queries, draws = queries.tocsr(), np.random.default_rng(seed)
    for _ in range(STEPS if len(asked) else 0):
        rows = draws.permutation(asked)[:BATCH]
        relevant, candidates = map(torch.from_numpy, judgments.of(rows))
        factors = (2 * theta).exp()
        words = torch.from_numpy(queries[rows].toarray()).float()
        lengths = [(squares_of_side @ factors).clamp(min=1e-12).sqrt() for squares_of_side in (words.square(), squares)]
        cosines = torch.sparse.mm(known, (words * factors).T).T / (lengths[0][:, None] * lengths[1])
        loss = surprise(cosines * scale.exp(), relevant, candidates)
        loss = loss + NEAR_IDF * theta.square().sum() / len(asked)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return theta.detach().double().numpy()


def surprise(scores: Tensor, relevant: Tensor, candidates: Tensor) -> Tensor:
    """How surprising it is that a query finds one of its documents among the candidates, in nats; all ``(Q, D)``."""
    chosen, among = (scores.masked_fill(~kept, float("-inf")).logsumexp(dim=1) for kept in (relevant, candidates))
    return (among - chosen).mean()


def _sparse(matrix: Any) -> Tensor:
    coordinates = matrix.tocoo()
    indices = torch.from_numpy(np.stack([coordinates.row, coordinates.col]).astype(np.int64))
    values = torch.from_numpy(coordinates.data).float()
    return torch.sparse_coo_tensor(indices, values, matrix.shape, check_invariants=True).coalesce()


def _balanced(loads: np.ndarray, columns: int) -> list[int]:
    """A column for each load: for the largest first, the one with the least sum so far."""
    sums = [(0.0, column) for column in range(columns)]
    column_of = [0] * len(loads)
    for number in np.argsort(-loads, kind="stable").tolist():
        load, column = sums[0]
        column_of[number] = column
        heapq.heapreplace(sums, (load + loads[number], column))
    return column_of

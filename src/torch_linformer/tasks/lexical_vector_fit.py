"""The lexical part of vectors, fitted to the documents of a search and to the queries that should find them."""

import heapq
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import normalize
from torch import Tensor

from torch_linformer.models.lexical_vector import NOTHING, LexicalVector
from torch_linformer.tasks.retrieval_metrics import SCALE, Judgments

STEPS, BATCH, LEARNING_RATE = 200, 64, 0.03
NEAR_IDF = 20.0  # how much it costs to leave it: less misleads where queries are of other packages (docs/log.md)
MOST_DOCUMENTS = 2000  # that weights are learned from


def fit_vector(lexical: LexicalVector, counts: Any, theta: np.ndarray | None = None) -> None:
    r"""Give features the weights that tell documents like these apart, and columns that disturb little.

    .. math:: w_f = e^{\theta_f} \ln \frac{1 + n}{1 + n_f}

    for n documents, :math:`n_f` of which have feature f. (The 1 that scikit-learn adds to the logarithm keeps the
    weight of words that every document has, which only disturb a sketch.)

    Two features f and g in a column disturb a product by about :math:`\ell_f \ell_g`, where :math:`\ell` is the mean of
    :math:`x_f^2 / \lVert x \rVert_2^2` over the documents. So each feature, those of the largest :math:`\ell` first,
    goes to the column with the least sum of them so far (Graham 1969, longest processing time first): what weighs much
    shares its column with little.

    Args:
        lexical: is changed; it has to :func:`~torch_linformer.tasks.word_rows.know_words`.
        counts: of documents, by :func:`~torch_linformer.tasks.word_rows.counts_of`.
        theta: of :func:`learn_weights`; None for 0.
    """
    weights = idf_of(counts) * (1.0 if theta is None else np.exp(theta))
    sketched = counts.tocsc()[:, : len(lexical.columns)].multiply(weights[: len(lexical.columns)]).tocsr()
    loads = np.asarray(normalize(sketched).power(2).mean(axis=0)).ravel()
    met = np.flatnonzero(loads)
    # The columns of tokens that no document has are filled evenly, too; those of words stay hashes.
    unmet = np.setdiff1d(lexical.counts_as[lexical.counts_as != NOTHING].numpy(), met)
    filled, seldom = np.concatenate([met, unmet]), loads[met].min(initial=1.0) / 2
    with torch.no_grad():
        lexical.weights.copy_(torch.from_numpy(weights))
        lexical.columns[torch.from_numpy(filled)] = torch.tensor(
            _balanced(np.maximum(loads[filled], seldom), lexical.width)
        )


def idf_of(counts: Any) -> np.ndarray:
    """The logarithm of (1 + n) / (1 + :math:`n_f`) for each feature."""
    idf: np.ndarray = np.log((1 + counts.shape[0]) / (1 + counts.getnnz(axis=0)))
    return idf


def learn_weights(documents: Any, queries: Any, judgments: Judgments, seed: int) -> np.ndarray:
    r"""The logarithms :math:`\theta` of factors of features with which queries find their documents.

    They have the least :func:`surprise` of the cosines of x e^θ, of queries and documents, times a scale that is
    learned too, plus :math:`20 \lVert \theta \rVert^2 / Q` for Q queries: a feature stays as it is unless several
    queries tell otherwise.

    Args:
        documents: their features x, sparse, ``(D, F)``; the first 2,000 count.
        queries: likewise, ``(Q, F)``.
        judgments: which documents each query should find.
        seed: of the order of the queries.
    """
    number = min(documents.shape[0], MOST_DOCUMENTS)
    judgments = judgments.among(np.arange(number))
    asked = np.flatnonzero(judgments.wanted > 0)
    learned = np.zeros(documents.shape[1])
    used = np.flatnonzero(queries.tocsr()[asked].getnnz(axis=0))  # only these can learn
    if not len(used):
        return learned
    documents, queries = documents.tocsr()[:number], queries.tocsr()
    known = _sparse(documents[:, used])
    squares = (known * known).coalesce()
    others = torch.from_numpy(
        np.asarray(documents.power(2).sum(axis=1)).ravel() - np.asarray(documents[:, used].power(2).sum(axis=1)).ravel()
    ).float()
    queries = queries[:, used]
    theta = torch.zeros(len(used), requires_grad=True)
    scale = torch.tensor(np.log(SCALE), dtype=torch.float32, requires_grad=True)
    optimizer = torch.optim.Adam([theta, scale], lr=LEARNING_RATE)
    draws = np.random.default_rng(seed)
    for _ in range(STEPS):
        rows = draws.permutation(asked)[:BATCH]
        relevant, candidates = map(torch.from_numpy, judgments.of(rows))
        factors = (2 * theta).exp()
        words = torch.from_numpy(queries[rows].toarray()).float()
        of_queries = (words.square() @ factors).clamp(min=1e-12).sqrt()
        of_documents = (squares @ factors + others).clamp(min=1e-12).sqrt()
        cosines = torch.sparse.mm(known, (words * factors).T).T / (of_queries[:, None] * of_documents)
        loss = surprise(cosines * scale.exp(), relevant, candidates)
        loss = loss + NEAR_IDF * theta.square().sum() / len(asked)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    learned[used] = theta.detach().double().numpy()
    return learned


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

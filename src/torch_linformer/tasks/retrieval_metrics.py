"""How well queries find their documents, and how well the words that a query shares with them do: TF-IDF and BM25."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import bm25s
import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from torch_linformer.data.words import search_words
from torch_linformer.errors import InputError

SCALE = 20.0  # of a cosine in a loss; the usual one of sentence-transformers
DEPTH = 10  # places of the ranking that count
_SIMILARITIES = 50_000_000  # at once
Similarities = Callable[[int, int], Any]  # those of the queries from a number to another, (queries, documents)


@dataclass(frozen=True)
class Judgments:
    """Which documents each query should find: those of its group, without itself.

    Attributes:
        members: which documents are in which groups, sparse, bool, ``(D, groups)``; a document may be in several.
        queries: the group of each query, ``(Q,)``.
        itself: the number of the document that a query is, −1 for one that is none, ``(Q,)``.
    """

    members: sparse.csr_matrix
    queries: np.ndarray
    itself: np.ndarray

    @classmethod
    def of_groups(cls, documents: np.ndarray, queries: np.ndarray, itself: np.ndarray) -> "Judgments":
        """Those of documents that are each in one group, whose number ``documents`` has."""
        groups = 1 + max(documents.max(initial=-1), queries.max(initial=-1))
        return cls(membership(np.arange(len(documents)), documents, (len(documents), groups)), queries, itself)

    @property
    def wanted(self) -> np.ndarray:
        """How many documents each query should find."""
        counted: np.ndarray = self.members.getnnz(axis=0)[self.queries] - (self.itself >= 0)
        return counted

    def of(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which documents these queries should find, and which are candidates, bool ``(Q, D)``: it is none itself."""
        candidates = self.itself[queries, None] != np.arange(self.members.shape[0])
        return self.members[:, self.queries[queries]].T.toarray() & candidates, candidates

    @property
    def parts(self) -> list[tuple[int, int]]:
        """Where the queries begin and end whose similarities are computed at once."""
        number, step = len(self.queries), max(1, _SIMILARITIES // max(1, self.members.shape[0]))
        return [(begin, min(begin + step, number)) for begin in range(0, number, step)]

    @property
    def first(self) -> np.ndarray:
        """The number of a document that each query should find; of one that has none any."""
        relevant, _ = self.of(np.arange(len(self.queries)))
        return cast(np.ndarray, relevant.argmax(axis=1))

    def among(self, documents: np.ndarray, queries: np.ndarray) -> "Judgments":
        """Those of some documents and of some queries only, by their numbers."""
        places = np.full(self.members.shape[0] + 1, -1)
        places[documents] = np.arange(len(documents))  # the last one stays −1, for a query that is no document
        return Judgments(self.members[documents], self.queries[queries], places[self.itself[queries]])


def membership(documents: np.ndarray, groups: np.ndarray, shape: tuple[int, int]) -> sparse.csr_matrix:
    """Bool, ``(documents, groups)``: true at each pair of a document and a group."""
    return sparse.csr_matrix((np.ones(len(documents), dtype=bool), (documents, groups)), shape=shape)


def retrieval_metrics(similarities: Similarities, judgments: Judgments) -> dict[str, Any]:
    r"""nDCG, recall and mean reciprocal rank of the ten documents that are most similar to each query.

    .. math:: \mathrm{nDCG} = \sum_{r \le 10} \frac{[d_r \text{ relevant}]}{\log_2(1 + r)} \Big/
        \sum_{r \le \min(10, R)} \frac{1}{\log_2(1 + r)}

    with R relevant documents. Of equal similarities the earlier document is first. Queries without a document to find
    do not count.

    Args:
        similarities: of the queries and the documents.
        judgments: what should be found.

    Returns:
        ``ndcg_at_10``, ``recall_at_10``, ``mrr_at_10``, ``queries`` (that counted), and the ``tallies``: of each
        its nDCG, and 1.

    Raises:
        InputError: where no query has a document to find.
    """
    number_relevant = judgments.wanted
    asked = np.flatnonzero(number_relevant > 0)
    if len(asked) == 0:
        number, documents = len(judgments.queries), judgments.members.shape[0]
        raise InputError(
            f"none of {number:,} queries has a document to find among {documents:,}, so there is nothing to score: "
            "give queries with their documents, or labels that two documents have"
        )
    discounts = 1 / np.log2(np.arange(2, DEPTH + 2))
    ideal = np.concatenate([[0.0], np.cumsum(discounts)])
    gains = np.zeros((len(judgments.queries), DEPTH))
    for begin, end in judgments.parts:
        relevant, candidates = judgments.of(np.arange(begin, end))
        scores = np.where(candidates, np.asarray(similarities(begin, end), dtype=np.float32), -np.inf)
        ranking = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
        ranked = np.isfinite(np.take_along_axis(scores, ranking, axis=1))
        gains[begin:end, : ranking.shape[1]] = np.take_along_axis(relevant, ranking, axis=1) & ranked
    gains, number_relevant = gains[asked], number_relevant[asked]
    ndcg = gains @ discounts / ideal[np.minimum(number_relevant, DEPTH)]
    first = np.where(gains.any(axis=1), 1 / (1 + gains.argmax(axis=1)), 0.0)
    return {
        "ndcg_at_10": float(ndcg.mean()),
        "recall_at_10": float((gains.sum(axis=1) / number_relevant).mean()),
        "mrr_at_10": float(first.mean()),
        "queries": len(asked),
        "tallies": {"ndcg_at_10": np.stack([ndcg, np.ones(len(asked))], axis=1)},
    }


def joined(one: Similarities, other: Similarities, judgments: Judgments) -> Similarities:
    """The sum of two similarities, each divided by its spread over the documents, in the mean of all queries."""
    spreads = []
    for similarities in (one, other):
        parts = [np.asarray(similarities(begin, end)).std(axis=1) for begin, end in judgments.parts]
        spreads.append(max(float(np.concatenate(parts).mean()), 1e-12))
    return lambda begin, end: one(begin, end) / spreads[0] + other(begin, end) / spreads[1]


def tfidf_similarities(documents: list[str], queries: list[str]) -> Similarities:
    """The cosine of TF-IDF vectors of :func:`~torch_linformer.data.words.search_words`, and of pairs of neighbors."""
    options: dict[str, Any] = {"ngram_range": (1, 2), "sublinear_tf": True, "dtype": np.float32}
    vectorizer = TfidfVectorizer(tokenizer=search_words, lowercase=False, token_pattern=None, **options)
    known = sparse.csr_matrix(vectorizer.fit_transform(documents)).T.tocsr()
    asked = sparse.csr_matrix(vectorizer.transform(queries))
    return lambda begin, end: (asked[begin:end] @ known).toarray()


def bm25_similarities(documents: list[str], queries: list[str]) -> Similarities:
    """BM25 (Lucene's, k₁ 1.5, b 0.75) of :func:`~torch_linformer.data.words.search_words`."""
    words = [search_words(text) for text in documents]
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    known = index.vocab_dict

    def similarities(begin: int, end: int) -> np.ndarray:
        asked = [[word for word in search_words(query) if word in known] for query in queries[begin:end]]
        nothing = np.zeros(len(documents), dtype=np.float32)
        return np.stack([index.get_scores(words) if words else nothing for words in asked])

    return similarities

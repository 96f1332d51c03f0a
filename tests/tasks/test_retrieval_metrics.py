import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from torch_linformer.tasks import retrieval_metrics as metrics_module
from torch_linformer.tasks.retrieval_metrics import Judgments, membership, retrieval_metrics


def metrics_of(scores, documents, queries, itself=None):
    """Metrics of whole similarities, for groups of documents and queries."""
    scores, queries = np.asarray(scores, dtype=np.float32), np.asarray(queries)
    nobody = np.full(len(queries), -1)
    judgments = Judgments.of_groups(np.asarray(documents), queries, nobody if itself is None else np.asarray(itself))
    return retrieval_metrics(lambda begin, end: scores[begin:end], judgments)


@pytest.mark.parametrize("several", [False, True])
def test_ndcg_is_that_of_scikit_learn(several):
    """Of one document a query, or of several, or none: such queries do not count."""
    draw = np.random.default_rng(0)
    relevant = draw.random((60, 40)) < 0.05 if several else draw.integers(0, 40, 60)[:, None] == np.arange(40)
    scores = draw.standard_normal((60, 40)).astype(np.float32)
    query, document = np.nonzero(relevant)
    judgments = Judgments(membership(document, query, (40, 60)), np.arange(60), np.full(60, -1))
    result, asked = retrieval_metrics(lambda begin, end: scores[begin:end], judgments), relevant.any(axis=1)
    assert result["ndcg_at_10"] == pytest.approx(ndcg_score(relevant[asked], scores[asked], k=10), abs=1e-7)
    assert result["queries"] == asked.sum() and (asked.sum() < 60) == several


def test_by_hand():
    # The document is second, first, and beyond the tenth place.
    scores = np.zeros((3, 12))
    scores[0, [4, 7]] = 2, 1
    scores[1, 3] = 1
    scores[2, 1:] = 1
    found = metrics_of(scores, np.arange(12), [7, 3, 0])
    assert found["ndcg_at_10"] == pytest.approx((1 / math.log2(3) + 1 + 0) / 3)
    assert found["mrr_at_10"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found["recall_at_10"] == pytest.approx(2 / 3) and found["queries"] == 3
    assert found["tallies"]["ndcg_at_10"].tolist() == [[pytest.approx(1 / math.log2(3)), 1], [1, 1], [0, 1]]


def test_a_document_does_not_find_itself():
    scores = [[9, 1, 2], [1, 9, 2], [5, 1, 9]]
    found = metrics_of(scores, [0, 0, 1], [0, 0, 1], itself=[0, 1, 2])
    assert found["queries"] == 2  # the third has no other of its group
    assert found["ndcg_at_10"] == pytest.approx(1 / math.log2(3))


def test_queries_may_come_in_parts(monkeypatch):
    draw = np.random.default_rng(1)
    scores, documents = draw.standard_normal((30, 30)), np.arange(30) // 3
    whole = metrics_of(scores, documents, documents, itself=np.arange(30))
    monkeypatch.setattr(metrics_module, "_SIMILARITIES", 210)
    parts = metrics_of(scores, documents, documents, itself=np.arange(30))
    assert {name: whole[name] for name in ("ndcg_at_10", "mrr_at_10")} == {
        name: parts[name] for name in ("ndcg_at_10", "mrr_at_10")
    }
    assert np.array_equal(whole["tallies"]["ndcg_at_10"], parts["tallies"]["ndcg_at_10"])


def test_fewer_documents_than_places():
    assert metrics_of([[0.1, 0.2]], [0, 1], [0])["ndcg_at_10"] == pytest.approx(1 / math.log2(3))


@pytest.mark.parametrize(
    ("documents", "itself"), [([0, 1, 2], [0, 1, 2]), ([3, 3, 3], None), ([], None)], ids=["alone", "others", "none"]
)
def test_without_a_document_for_any_query_there_is_no_score(documents, itself):
    message = rf"^none of 3 queries has a document to find among {len(documents)}, so there is nothing to score: give"
    with pytest.raises(ValueError, match=message):
        metrics_of(np.zeros((3, len(documents))), documents, [0, 1, 2], itself)

"""Our words compared with those of others: a small set, and what NB-SVM makes of features."""

import json

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from baselines import OURS, LogCountRatios, main, rivals


@pytest.fixture(scope="module")
def results(reviews, tmp_path_factory):
    """The folder of a small run."""
    output = tmp_path_factory.mktemp("baselines")
    main(reviews, output, sets="imdb", most=15_000)
    return output


def test_every_method_learns_a_set_that_words_tell(results):
    runs = [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
    assert [run["method"] for run in runs] == [OURS, *rivals()]
    assert min(run["accuracy"] for run in runs) > 0.95 and min(run["macro_f1"] for run in runs) > 0.95
    assert all(100 < run["documents"] < 250 and run["held_out"] == 100 for run in runs)
    page = (results / "results.md").read_text()
    assert "| our words | " in page and "| character LinearSVC | " in page and " ± " in page


def test_log_count_ratios():
    features = csr_matrix(np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]))
    found = LogCountRatios().fit(features, np.array([1, 1, 0])).transform(features).toarray()
    ratios = np.log([(3 / 5) / (1 / 3), (2 / 5) / (2 / 3)])
    np.testing.assert_allclose(found, features.toarray() * ratios)

"""Linear models are those of scikit-learn: each label against the others."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from torch_linformer.tasks.linear_classifiers import LinearClassifier, RidgeRegression, best_threshold, searched

DRAW = np.random.default_rng(0)
FEATURES = csr_matrix(DRAW.random((120, 7)) * (DRAW.random((120, 7)) < 0.5))
LABELS = (FEATURES.toarray() @ DRAW.normal(size=(7, 3))).argmax(axis=1)


def test_each_label_against_the_others():
    targets = np.eye(3)[LABELS]
    weights = LinearClassifier(cost=10.0).fit(FEATURES, targets)
    expected = LinearSVC(C=10.0, random_state=0, dual="auto").fit(FEATURES, LABELS)
    np.testing.assert_allclose(weights.decisions(FEATURES), expected.decision_function(FEATURES), atol=1e-3)


def test_two_labels_share_one_difference():
    labels = (LABELS == 0).astype(int)
    weights = LinearClassifier("logistic", 3.0).fit(FEATURES, np.eye(2)[labels])
    expected = LogisticRegression(C=3.0, solver="liblinear", random_state=0).fit(FEATURES, labels)
    decisions = weights.decisions(FEATURES)
    np.testing.assert_allclose(decisions[:, 1] - decisions[:, 0], expected.decision_function(FEATURES), atol=1e-6)


def test_ratios_become_a_part_of_the_weights():
    """Wang and Manning's log-count ratio, by hand; a feature that does not occur counts for nothing."""
    features = csr_matrix(np.hstack([FEATURES.toarray(), np.zeros((120, 1))]))
    labels = LABELS == 1
    having, without = (FEATURES.toarray()[rows].sum(axis=0) + 0.3 for rows in (labels, ~labels))
    ratio = np.log(having / having.sum() / (without / without.sum()))
    expected = LinearSVC(random_state=0, dual="auto").fit(FEATURES.multiply(ratio).tocsr(), labels)
    weights = LinearClassifier(ratios=True).fit(features, labels[:, None].astype(int))
    by_hand = expected.decision_function(FEATURES.multiply(ratio).tocsr())
    np.testing.assert_allclose(weights.decisions(features)[:, 0], by_hand, atol=1e-3)
    assert weights.weight[0, -1] == 0


def test_rare_labels_weigh_as_much_as_others_where_they_are_balanced():
    labels = np.eye(2)[[0] * 110 + [1] * 10]
    plain, balanced = (LinearClassifier().fit(FEATURES, labels, balanced=flag) for flag in (False, True))
    assert (balanced.decisions(FEATURES).argmax(axis=1)).sum() > (plain.decisions(FEATURES).argmax(axis=1)).sum()


def test_a_label_that_all_or_none_have():
    weights = LinearClassifier().fit(FEATURES, np.array([[1, 0]] * 120))
    assert (weights.decisions(FEATURES)[:, 0] > 5).all() and (weights.decisions(FEATURES)[:, 1] < -5).all()


def test_numbers():
    values = np.asarray(FEATURES.sum(axis=1))
    expected = Ridge(alpha=0.1).fit(FEATURES, values[:, 0]).predict(FEATURES)
    found = RidgeRegression(0.1).fit(FEATURES, values).decisions(FEATURES)
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-5)


def test_many_labels_are_searched_with_fewer_documents():
    assert (searched(), searched(100), searched(10**6)) == (5000, 400, 100)


# The probability above which labels are predicted


def micro_f1(true, probabilities, thresholds):
    """Of each threshold: 2 · (true and predicted) / (true + predicted)."""
    predicted = probabilities > np.reshape(thresholds, (-1, 1, 1))
    return 2 * (true & predicted).sum(axis=(1, 2)) / (true.sum() + predicted.sum(axis=(1, 2)))


@pytest.mark.parametrize("seed", range(20))
def test_no_other_threshold_has_a_higher_f1(seed):
    draw = np.random.default_rng(seed)
    true = draw.random((12, 3)) < 0.3
    probabilities = np.clip(draw.normal(0.2 + 0.2 * true, 0.15), 0.01, 0.99).round(2)  # some are equal
    found = best_threshold(true.astype(int), probabilities)
    assert 0 < found < 1
    every = micro_f1(true, probabilities, np.linspace(0.001, 0.999, 999))
    assert micro_f1(true, probabilities, found) == pytest.approx(max(every))


@pytest.mark.parametrize(
    ("true", "probabilities"),
    [([1, 1, 0], [0.9, 0.6, 0.4]), ([0, 0], [0.7, 0.2]), ([], []), ([1, 0, 1, 0], [0.9, 0.9, 0.9, 0.9])],
    ids=["already right", "no label", "nothing", "all alike"],
)
def test_where_no_other_is_better_it_is_a_half(true, probabilities):
    assert best_threshold(np.array(true), np.array(probabilities)) == 0.5


def test_what_is_unknown_has_no_say():
    true, probabilities = np.array([[1, np.nan], [1, 0], [np.nan, 0]]), np.array([[0.3, 0.9], [0.2, 0.1], [0.8, 0.05]])
    assert best_threshold(true, probabilities) == pytest.approx(0.15)


def test_it_lies_between_the_probabilities_it_separates():
    assert best_threshold(np.array([1, 1, 0]), np.array([0.3, 0.2, 0.1])) == pytest.approx(0.15)
    assert best_threshold(np.array([1, 1]), np.array([0.3, 0.2])) == pytest.approx(0.1)

"""Linear models are those of scikit-learn: each label against the others."""

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from torch_linformer.tasks.linear_classifiers import LinearClassifier, RidgeRegression, searched

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

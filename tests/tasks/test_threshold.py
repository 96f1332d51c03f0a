"""The probability above which labels are predicted."""

import numpy as np
import pytest

from torch_linformer.tasks.linear_classifiers import best_threshold


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

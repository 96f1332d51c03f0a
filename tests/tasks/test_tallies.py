import numpy as np
import pytest

from torch_linformer.tasks.metrics import classification_metrics, multilabel_metrics, regression_metrics
from torch_linformer.tasks.tallies import paired_difference, tally

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(3, size=(2, 200))
SETS = (DRAW.random((2, 200, 4)) < 0.4).astype(int)
NUMBERS = DRAW.normal(size=(2, 200))


@pytest.mark.parametrize(
    ("score", "answers", "metrics"),
    [
        ("accuracy", LABELS, lambda true, given: classification_metrics(true, given, "abc")),
        ("micro_f1", SETS, lambda true, given: multilabel_metrics(true, given, "abcd")),
        ("mse", NUMBERS, regression_metrics),
    ],
)
def test_the_sums_of_the_documents_give_the_score(score, answers, metrics):
    of, out_of = tally(score, *answers).sum(axis=0)
    assert of / out_of == pytest.approx(metrics(*answers)[score])


@pytest.mark.parametrize("score", ["accuracy", "micro_f1"])
def test_the_error_is_that_of_drawing_the_documents_again(score):
    true = DRAW.random((300, 3)) < 0.3
    one, other = (np.where(DRAW.random(true.shape) < share, true, ~true) for share in (0.8, 0.75))
    if score == "accuracy":
        true, one, other = (side[:, 0] for side in (true, one, other))
    first, second = tally(score, true, one), tally(score, true, other)
    difference, error = paired_difference(first, second)
    drawn = [DRAW.integers(300, size=300) for _ in range(2000)]
    again = [np.divide(*first[rows].sum(axis=0)) - np.divide(*second[rows].sum(axis=0)) for rows in drawn]
    assert difference == pytest.approx(np.divide(*first.sum(axis=0)) - np.divide(*second.sum(axis=0)))
    assert error == pytest.approx(np.std(again), rel=0.08)


def test_what_is_hard_for_both_says_nothing():
    counted = tally("accuracy", LABELS[0], LABELS[1])
    assert paired_difference(counted, counted) == (0.0, 0.0)
    better = counted.copy()
    better[:8, 0] = 1
    difference, error = paired_difference(better, counted)
    alone = np.sqrt(counted[:, 0].var() / 200 + better[:, 0].var() / 200)
    assert difference > 0 and error < alone / 2

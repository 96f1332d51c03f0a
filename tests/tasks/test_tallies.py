import numpy as np
import pytest
from sklearn.metrics import f1_score

from torch_linformer.tasks.metrics import classification_metrics, multilabel_metrics, regression_metrics
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference, tally

DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(3, size=(2, 200))
SETS = (DRAW.random((2, 200, 4)) < 0.4).astype(int)
UNKNOWN = np.where(DRAW.random((200, 4)) < 0.3, np.nan, SETS[0])
NUMBERS = DRAW.normal(size=(2, 200))


@pytest.mark.parametrize(
    ("score", "answers", "metrics"),
    [
        ("accuracy", LABELS, lambda true, given: classification_metrics(true, given, "abc")),
        ("macro_f1", LABELS, lambda true, given: classification_metrics(true, given, "abc")),
        ("micro_f1", SETS, lambda true, given: multilabel_metrics(true, given, "abcd")),
        ("micro_f1", (UNKNOWN, SETS[1]), lambda true, given: multilabel_metrics(true, given, "abcd")),
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
    drawn = draws(300, 2000)
    again = [np.divide(*first[rows].sum(axis=0)) - np.divide(*second[rows].sum(axis=0)) for rows in drawn]
    assert difference == pytest.approx(np.divide(*first.sum(axis=0)) - np.divide(*second.sum(axis=0)))
    assert error == pytest.approx(np.std(again), rel=0.08)


def test_the_error_of_macro_f1_is_that_of_drawing_the_documents_again():
    true = DRAW.integers(4, size=400)
    one, other = (np.where(DRAW.random(400) < share, true, DRAW.integers(4, size=400)) for share in (0.7, 0.6))
    difference, error = paired_difference(tally("macro_f1", true, one), tally("macro_f1", true, other))
    f1 = [[f1_score(true[rows], given[rows], average="macro") for given in (one, other)] for rows in draws(400, 500)]
    assert difference == pytest.approx(f1_score(true, one, average="macro") - f1_score(true, other, average="macro"))
    assert error == pytest.approx(np.std(np.diff(f1)), rel=0.1)


def draws(documents, number):
    return [DRAW.integers(documents, size=documents) for _ in range(number)]


def test_two_standard_errors_are_more_than_chance_either_way():
    assert is_more_than_chance(0.021, 0.01) and is_more_than_chance(-0.021, 0.01)
    assert not is_more_than_chance(0.02, 0.01) and not is_more_than_chance(0.0, 0.0)


def test_what_is_hard_for_both_says_nothing():
    counted = tally("accuracy", LABELS[0], LABELS[1])
    assert paired_difference(counted, counted) == (0.0, 0.0)
    better = counted.copy()
    better[:8, 0] = 1
    difference, error = paired_difference(better, counted)
    alone = np.sqrt(counted[:, 0].var() / 200 + better[:, 0].var() / 200)
    assert difference > 0 and error < alone / 2

"""What each document adds to a score, and so how much of a difference between two scores is chance."""

import math
from typing import Any

import numpy as np

from torch_linformer.tasks.metrics import of_known

CHANCE = 2.0  # standard errors, which chance alone exceeds one time in twenty


def tally(score: str, true: Any, predicted: Any) -> np.ndarray:
    """What each document adds to a score that is one sum over the documents divided by another, ``(documents, 2)``.

    Args:
        score: ``accuracy``, ``macro_f1`` (which is no such sum, so that each document has what it changes of it, added
            to the score), ``micro_f1`` or ``mse``.
        true: the true answers, as the function that computes the score takes them.
        predicted: the same of the predicted answers.
    """
    true, predicted = np.asarray(true), np.asarray(predicted)
    one_each = np.ones(len(true))
    if score == "accuracy":
        return np.stack([true == predicted, one_each], axis=1)
    if score == "macro_f1":
        return np.stack([_shares_of_macro_f1(true, predicted), one_each], axis=1)
    if score == "mse":
        return np.stack([(true - predicted) ** 2, one_each], axis=1)
    true, predicted = of_known(true, predicted)
    right, predicted_number, true_number = (side.sum(axis=1) for side in (true * predicted, predicted, true))
    return np.stack([2 * right, predicted_number + true_number], axis=1)


def _shares_of_macro_f1(true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    r"""Macro F1 plus the influence of each document on it, ``(documents,)``, by the delta method.

    With :math:`F_l = 2 r_l / d_l`, where :math:`r_l` documents are right and :math:`d_l` have or are given label l, the
    influence of document i is the mean over labels of :math:`n (2 r_{il} - F_l d_{il}) / d_l`.
    """
    names, numbers = np.unique(np.concatenate([true, predicted]), return_inverse=True)
    true_ids, predicted_ids = numbers[: len(true)], numbers[len(true) :]
    right = true_ids == predicted_ids
    of_label = np.bincount(numbers, minlength=len(names))
    f1 = 2 * np.bincount(true_ids[right], minlength=len(names)) / of_label
    changes = (2 * right - f1[true_ids]) / of_label[true_ids] - f1[predicted_ids] / of_label[predicted_ids]
    return np.asarray(f1.mean() + len(true) * changes / len(names))


def is_more_than_chance(difference: float, error: float) -> bool:
    """Whether a difference is larger than :data:`CHANCE` of its standard errors, either way."""
    return abs(difference) > CHANCE * error


def paired_difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    r"""How much larger the score of one tally is than that of another of the same documents, and its standard error.

    With ratios :math:`r = \sum a / \sum b` of n documents, the error is that of the mean of
    :math:`(a_i - r b_i) / \bar b`, less the same of the other (the delta method): what is hard for both cancels out.
    """
    shares = []
    for counted in (one, other):
        of, out_of = np.asarray(counted, dtype=np.float64).T
        ratio = of.sum() / max(out_of.sum(), 1e-12)
        shares.append((ratio, (of - ratio * out_of) / max(out_of.mean(), 1e-12)))
    (first, spread), (second, others) = shares
    return float(first - second), float(np.std(spread - others) / math.sqrt(len(spread)))

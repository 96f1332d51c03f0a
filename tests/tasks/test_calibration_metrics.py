"""Probabilities scored against values worked out by hand."""

import json
import math

import numpy as np
import pytest
from sklearn.metrics import log_loss

from torch_linformer.tasks.calibration_metrics import calibration_metrics


@pytest.mark.parametrize(
    ("highest", "right", "ece", "bins"),
    [
        ([1.0, 1.0], [True, True], 0.0, 1),
        ([1.0, 1.0], [True, False], 0.5, 1),
        ([0.9, 0.9, 0.6], [True, False, True], (2 * 0.4 + 0.4) / 3, 2),
        ([0.81, 0.85], [True, False], 0.33, 1),  # one bin, from 12/15 to 13/15: its means are compared
        ([0.79, 0.81], [True, False], (0.21 + 0.81) / 2, 2),  # 12/15 divides them
        ([0.8, 0.75], [True, False], 0.275, 1),  # a bin has its upper edge
    ],
)
def test_the_error_is_the_mean_distance_of_bins(highest, right, ece, bins):
    probabilities = np.array([[p, 1 - p] for p in highest])
    labels = [0 if is_right else 1 for is_right in right]
    scores = calibration_metrics(labels, probabilities)
    assert scores["ece"] == pytest.approx(ece)
    assert len(scores["reliability"]) == bins and sum(row["documents"] for row in scores["reliability"]) == len(right)
    assert json.loads(json.dumps(scores)) == scores


def test_the_loss_is_that_of_the_true_labels():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.25, 0.5, 0.25]])
    scores = calibration_metrics([0, 2, 2], probabilities)
    assert scores["nll"] == pytest.approx(log_loss([0, 2, 2], probabilities, labels=range(3)))
    assert scores["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.8) + math.log(0.25)) / 3)
    assert math.isfinite(calibration_metrics([1], np.array([[1.0, 0.0]]))["nll"])

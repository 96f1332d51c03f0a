"""Whether slots earn their cost, by all scores and their errors."""

import pytest

from torch_linformer.adaptation.comparison import Gain, WithoutSlots, verdict_on_slots
from torch_linformer.training.step_costs import StepCost

EVEN = "Slots did not help measurably"
TITLES = {"masked_loss": "loss", "cosine": "cosine", "neighbours": "nearest"}
ALONE = {"masked_loss": 2.5, "cosine": 0.94, "neighbours": 0.5}
COSTS = StepCost(1000.0, 1.0), StepCost(750.0, 1.0)


def said(costs=(None, None), alone=ALONE, **gains):
    gains = {name: Gain(*gain) for name, gain in gains.items()}
    return verdict_on_slots(4, TITLES, frozenset({"masked_loss"}), WithoutSlots(alone, gains, *costs))


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        (
            {"cosine": (0.04, 0.001), "neighbours": (0.2, 0.05)},
            "The slots earn their cost. They add: cosine +0.040 ± 0.001, nearest +0.200 ± 0.050.",
        ),
        (
            {"cosine": (0.04, 0.001), "neighbours": (-0.11, 0.02)},
            "Whether the slots earn their cost depends on the score. They help: cosine +0.040 ± 0.001. They harm: "
            "nearest -0.110 ± 0.020.",
        ),
        (
            {"masked_loss": (-0.3, 0.1), "neighbours": (0.01, 0.02)},
            f"The slots earn their cost. They add: loss -0.300 ± 0.100. {EVEN}: nearest +0.010 ± 0.020.",
        ),
        (
            {"masked_loss": (0.3, 0.1), "neighbours": (0.01, 0.02)},
            f"The slots do not earn their cost. They harm: loss +0.300 ± 0.100. {EVEN}: "
            "nearest +0.010 ± 0.020. --k 0 distills a model without them.",
        ),
        (
            {"cosine": (0.002, 0.0001)},  # a distance of 0.06 instead of 0.058
            "The slots do not earn their cost. A gain too small to count: cosine +0.002 ± 0.000. --k 0 distills a "
            "model without them.",
        ),
    ],
)
def test_every_score_has_a_say(gains, verdict):
    assert said(**gains) == verdict


def test_the_time_that_slots_take():
    gain = {"cosine": (0.04, 0.001)}
    assert said(COSTS, **gain).endswith(". They take 25% of a forward pass.")
    assert said(COSTS[::-1], **gain).endswith(". They take no measurable part of a forward pass.")
    assert "forward pass" not in said(**gain)


def test_nothing_to_take_out():
    assert verdict_on_slots(4, TITLES, frozenset(), None) == ""
    assert verdict_on_slots(0, TITLES, frozenset(), None).startswith("There are no slots")

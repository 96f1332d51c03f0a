"""The sentence about a run's scores."""

import numpy as np
import pytest

from torch_linformer.training.verdict import verdict

ADVICE = " To try next: more."
HEADLINE = ("accuracy", "macro_f1")


def scored(right, documents=100, numbered=False):
    """Scores of a method that has these documents right."""
    rows = [[float(number in right), 1.0] for number in range(documents)]
    tally = [[number, *row] for number, row in reversed(list(enumerate(rows)))] if numbered else np.array(rows)
    return {"accuracy": len(right) / documents, "macro_f1": 0.0, "tally": tally}


@pytest.mark.parametrize(
    ("model", "floor", "gain", "chance"),
    [
        (range(95), range(80), "Better than TF-IDF by 0.1500", "more than chance (4.2 standard errors)."),
        (range(10, 91), range(80), "Better than TF-IDF by 0.0100", "which may be chance (0.2 standard errors)."),
        (range(70), range(80), "Worse than TF-IDF by 0.1000", "more than chance (3.3 standard errors)."),
    ],
)
def test_who_won_and_whether_it_is_chance(model, floor, gain, chance):
    floors = {"TF-IDF": scored(floor, numbered=True), "majority": {"accuracy": 0.5}}
    advice = "" if "Better" in gain and "more than" in chance else ADVICE
    expected = f"{gain} of accuracy on 100 documents, {chance}{advice}"
    assert verdict(HEADLINE, True, scored(model), floors, ADVICE) == expected


def test_a_draw():
    floors = {"TF-IDF": scored(range(80), numbered=True)}
    assert verdict(HEADLINE, True, scored(range(20, 100)), floors, ADVICE) == "As good as TF-IDF by accuracy." + ADVICE


def test_a_floor_that_was_scored_on_fewer_documents_is_compared_on_those():
    floor = scored(range(50), numbered=True)
    floor["tally"] = [row for row in floor["tally"] if row[0] >= 40]
    assert " by 0.1667 of accuracy on 60 documents, " in verdict(
        HEADLINE, True, scored(range(60)), {"TF-IDF": floor}, ""
    )


def test_the_best_of_them_counts_and_lower_may_be_better():
    floors = {"ridge": {"mse": 2.0}, "mean": {"mse": 3.0}}
    assert verdict(("mse",), False, {"mse": 1.5}, floors, ADVICE) == "Better than ridge by 0.5000 of mse."
    assert verdict(("mse",), False, {"mse": 2.5}, floors, ADVICE) == "Worse than ridge by 0.5000 of mse." + ADVICE


def test_a_score_that_no_floor_has_is_passed_over():
    bits = {"perplexity": 9.0, "bits_per_byte": 2.0}
    floors = {"bzip2": {"bits_per_byte": 2.5}}
    assert "of bits-per-byte" in verdict(("perplexity", "bits_per_byte"), False, bits, floors, "")
    assert verdict(HEADLINE, True, scored(range(3)), {}, ADVICE) == ""


def test_a_method_that_is_not_what_was_trained_is_named():
    floors = {"ridge": {"mse": 2.0}}
    sentence = verdict(("mse",), False, {"mse": 1.5}, floors, ADVICE, method="TF-IDF head only")
    assert sentence == "TF-IDF head only: better than ridge by 0.5000 of mse."
    draw = verdict(("mse",), False, {"mse": 2.0}, floors, ADVICE, method="TF-IDF head only")
    assert draw == "TF-IDF head only: as good as ridge by mse." + ADVICE

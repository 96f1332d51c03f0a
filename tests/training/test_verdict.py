"""The sentence about a run's scores."""

import numpy as np
import pytest

from torch_linformer.training.verdict import verdict

ADVICE = " To try next: more."
HEADLINE = ("accuracy", "macro_f1")


def scored(right, documents=100, macro_f1=None):
    """Scores of a method that has these documents right."""
    rows = [[float(number in right), 1.0] for number in range(documents)]
    found = {"accuracy": float(np.mean(rows, axis=0)[0]), "macro_f1": 0.0, "tallies": {"accuracy": rows}}
    if macro_f1 is not None:
        found["macro_f1"] = macro_f1
        found["tallies"]["macro_f1"] = [[macro_f1 + (-1) ** number / 10, 1.0] for number in range(documents)]
    return found


@pytest.mark.parametrize(
    ("model", "baseline", "gain", "chance"),
    [
        (range(95), range(80), "Better than TF-IDF by 0.1500", "more than chance (4.2 standard errors)."),
        (range(10, 91), range(80), "Better than TF-IDF by 0.0100", "which may be chance (0.2 standard errors)."),
        (range(70), range(80), "Worse than TF-IDF by 0.1000", "more than chance (3.3 standard errors)."),
    ],
)
def test_who_won_and_whether_it_is_chance(model, baseline, gain, chance):
    baselines = {"TF-IDF": scored(baseline), "majority": {"accuracy": 0.5}}
    advice = "" if "Better" in gain and "more than" in chance else ADVICE
    expected = f"{gain} of accuracy on 100 documents, {chance}{advice}"
    assert verdict(HEADLINE, True, scored(model), baselines, ADVICE) == expected


def test_a_draw():
    baselines = {"TF-IDF": scored(range(80))}
    assert (
        verdict(HEADLINE, True, scored(range(20, 100)), baselines, ADVICE) == "As good as TF-IDF by accuracy." + ADVICE
    )


def test_each_score_is_compared_with_the_method_that_is_best_by_it():
    """The second score too, where both know what each document adds to it."""
    simple = {"words": scored(range(80), macro_f1=0.5), "its head": scored(range(70), macro_f1=0.7)}
    sentence = verdict(HEADLINE, True, scored(range(95), macro_f1=0.6), simple, ADVICE)
    assert sentence.startswith("Better than words by 0.1500 of accuracy on 100 documents, more than chance (4.2 ")
    assert sentence.endswith("; worse than its head by 0.1000 of macro-f1, more than chance." + ADVICE)
    both = verdict(HEADLINE, True, scored(range(95), macro_f1=0.8), simple, ADVICE)
    assert both.endswith("; better than its head by 0.1000 of macro-f1, more than chance.")


def test_the_best_of_them_counts_and_lower_may_be_better():
    baselines = {"ridge": {"mse": 2.0}, "mean": {"mse": 3.0}}
    assert verdict(("mse",), False, {"mse": 1.5}, baselines, ADVICE) == "Better than ridge by 0.5000 of mse."
    assert verdict(("mse",), False, {"mse": 2.5}, baselines, ADVICE) == "Worse than ridge by 0.5000 of mse." + ADVICE


def test_a_score_that_no_baseline_has_is_passed_over():
    bits = {"perplexity": 9.0, "bits_per_byte": 2.0}
    baselines = {"bzip2": {"bits_per_byte": 2.5}}
    assert "of bits-per-byte" in verdict(("perplexity", "bits_per_byte"), False, bits, baselines, "")
    assert verdict(HEADLINE, True, scored(range(3)), {}, ADVICE) == ""

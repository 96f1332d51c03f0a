"""What a run's scores say: a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_linformer.reporting.tables import format_count, score_title
from torch_linformer.tasks.tallies import paired_difference

CHANCE = 2.0  # standard errors, which chance alone exceeds one time in twenty


def verdict(
    headline: Sequence[str],
    larger_is_better: bool,
    model: Mapping[str, Any],
    floors: Mapping[str, Mapping[str, Any]],
    advice: str,
    counted: str = "documents",
    method: str = "",
) -> str:
    """Whether a model is better than what it must beat, by how much, and whether that is more than chance.

    Args:
        headline: the scores that head the report; the first that a method has decides.
        larger_is_better: of each of them.
        model: its scores; with a ``tally``, what each document adds to the first.
        floors: the same by the name of each method; its tally has the number of each document first.
        advice: what to try where the model is not clearly better.
        counted: what a tally has a row of, in words.
        method: what the model is called, where the sentence should begin with that.
    """
    score = next((name for name in headline if any(name in found for found in floors.values())), None)
    if score is None:
        return ""
    known = {name: found for name, found in floors.items() if score in found}
    name = (max if larger_is_better else min)(known, key=lambda each: known[each][score])
    floor = known[name]
    gain, evidence, certain = model[score] - floor[score], "", True
    if "tally" in floor and "tally" in model:  # of the same documents, of which the floor may have drawn some
        rows = np.asarray(floor["tally"], dtype=np.float64)
        gain, error = paired_difference(np.asarray(model["tally"])[rows[:, 0].astype(int)], rows[:, 1:])
        errors = abs(gain) / error if error else 0.0
        certain = errors > CHANCE
        chance = "more than chance" if certain else "which may be chance"
        evidence = f" on {format_count(len(rows))} {counted}, {chance} ({errors:.1f} standard errors)"
    title, better = score_title(score), (gain > 0) == larger_is_better
    comparison = f"{'better' if better else 'worse'} than" if gain else "as good as"
    opening = f"{method}: {comparison}" if method else comparison.capitalize()
    if not gain:
        return f"{opening} {name} by {title}.{advice}"
    sentence = f"{opening} {name} by {abs(gain):.4f} of {title}{evidence}."
    return sentence if better and certain else sentence + advice

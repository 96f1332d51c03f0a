"""What a run's scores say: a sentence."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_linformer.reporting.tables import format_count
from torch_linformer.tasks.tallies import paired_difference

CHANCE = 2.0  # standard errors, which chance alone exceeds one time in twenty


def verdict(
    headline: Sequence[str],
    larger_is_better: bool,
    model: Mapping[str, Any],
    floors: Mapping[str, Mapping[str, Any]],
    advice: str,
) -> str:
    """Whether a model is better than what it must beat, by how much, and whether that is more than chance.

    Args:
        headline: the scores that head the report; the first that a method has decides.
        larger_is_better: of each of them.
        model: its scores; with a ``tally``, what each document adds to the first.
        floors: the same by the name of each method; its tally has the number of each document first.
        advice: what to try where the model is not clearly better.
    """
    score = next((name for name in headline if any(name in found for found in floors.values())), None)
    if score is None:
        return ""
    known = {name: found for name, found in floors.items() if score in found}
    name = (max if larger_is_better else min)(known, key=lambda each: known[each][score])
    floor = known[name]
    gain = (model[score] - floor[score]) * (1 if larger_is_better else -1)
    title = score.replace("_", "-")
    if not gain:
        return f"As good as {name} by {title}.{advice}"
    sentence = f"{'Better' if gain > 0 else 'Worse'} than {name} by {abs(gain):.4f} of {title}"
    if "tally" not in floor or "tally" not in model:
        return f"{sentence}.{'' if gain > 0 else advice}"
    counted = np.asarray(floor["tally"], dtype=np.float64)
    difference, error = paired_difference(np.asarray(model["tally"])[counted[:, 0].astype(int)], counted[:, 1:])
    errors = abs(difference) / error if error else 0.0
    chance = "more than chance" if errors > CHANCE else "which may be chance"
    documents = f"on {format_count(len(counted))} documents, {chance} ({errors:.1f} standard errors)"
    return f"{sentence} {documents}.{'' if gain > 0 and errors > CHANCE else advice}"

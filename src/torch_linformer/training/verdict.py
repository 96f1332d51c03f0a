"""What the scores of a model say beside those of what it must beat."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_linformer.reporting.tables import format_count, score_title
from torch_linformer.tasks.metrics import is_more_than_chance, paired_difference


def verdict(
    headline: Sequence[str],
    larger_is_better: bool,
    model: Mapping[str, Any],
    baselines: Mapping[str, Mapping[str, Any]],
    advice: str,
    counted: str = "documents",
) -> str:
    """Whether a model is better than what it must beat, by how much, and whether that is more than chance.

    The first score of the headline that a baseline has is compared with the baseline that is best by it, and so is
    every other score of which it is known what each document adds to it.

    Args:
        headline: the scores that head the report.
        larger_is_better: of each of them.
        model: its scores; with ``tallies``, what each document adds to some of them.
        baselines: the same by the name of each method.
        advice: what to try where the model is not clearly better by each of these scores.
        counted: what a tally has a row of, in words.
    """
    known = [name for name in headline if any(name in scores for scores in baselines.values())]
    tallied = [name for name in known[1:] if name in model.get("tallies", {})]
    clauses: list[str] = []
    clear = True
    for score in [*known[:1], *tallied]:
        rivals = {name: row for name, row in baselines.items() if score in row}
        name = (max if larger_is_better else min)(rivals, key=lambda rival: rivals[rival][score])
        gain, evidence, certain = model[score] - rivals[name][score], "", True
        if all(score in row.get("tallies", {}) for row in (rivals[name], model)):
            rows = model["tallies"][score]
            gain, error = paired_difference(rows, rivals[name]["tallies"][score])
            certain = is_more_than_chance(gain, error)
            evidence = f", {'more than chance' if certain else 'which may be chance'}"
            evidence += f" ({abs(gain) / error:.1f} standard errors)" if error else ""
            evidence = evidence if clauses else f" on {format_count(len(rows))} {counted}{evidence}"
        better = gain != 0 and (gain > 0) == larger_is_better
        clear = clear and better and certain
        if gain:
            relation = "better" if better else "worse"
            clauses.append(f"{relation} than {name} by {abs(gain):.4f} of {score_title(score)}{evidence}")
        else:
            clauses.append(f"as good as {name} by {score_title(score)}")
    sentence = "; ".join(clauses)
    return f"{sentence[0].upper()}{sentence[1:]}.{'' if clear else advice}" if clauses else ""

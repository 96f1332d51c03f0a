"""Whether the slots of an adapted encoder earn what they cost: by every score, with its error."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch_linformer.adaptation.comparison import Gain
from torch_linformer.training.step_costs import StepCost

ERRORS = 2  # standard errors from which a difference counts
WORTHWHILE = 1.1  # times the distance (1 - cosine) without slots: that of many texts differs by less beyond its error


@dataclass(frozen=True)
class WithoutSlots:
    """The trained model with its slots taken out.

    Attributes:
        scores: its own.
        gains: what the slots add to each, with the standard errors.
        cost: of a text of full length, and
        cost_with_slots: that of the whole model; None where it was not measured.
    """

    scores: dict[str, float]
    gains: dict[str, Gain]
    cost: StepCost | None
    cost_with_slots: StepCost | None

    @property
    def share_of_time(self) -> float | None:
        """Share of a forward pass that the slots take."""
        if self.cost is None or self.cost_with_slots is None:
            return None
        return max(0.0, 1 - self.cost_with_slots.tokens_per_second / self.cost.tokens_per_second)


def verdict_on_slots(
    k: object, titles: Mapping[str, str], lower_is_better: frozenset[str], alone: WithoutSlots | None
) -> str:
    """What the slots add, to which scores, and what they take; ``alone`` is None where a model has nothing else."""
    if k == 0:
        return "There are no slots: all that is kept is the work of the window and of the tokens seen exactly."
    if alone is None:
        return ""
    judged: dict[str, list[str]] = {"better": [], "worse": [], "even": []}
    for name, title in titles.items():
        if name in alone.gains:
            kind = _kind(name, alone, -1 if name in lower_is_better else 1)
            judged[kind].append(f"{title} {alone.gains[name]}")
    better, worse, even = (", ".join(shown) for shown in judged.values())
    if better and worse:
        verdict = f"Whether the slots earn their cost depends on the score. They help: {better}. They harm: {worse}."
    elif better:
        verdict = f"The slots earn their cost. They add: {better}."
    else:
        verdict = "The slots do not earn their cost." + (f" They harm: {worse}." if worse else "")
    verdict += f" Not clear of the error, or not worth it: {even}." if even else ""
    share = alone.share_of_time
    if share is not None:
        verdict += f" They take {f'{share:.0%}' if share else 'no measurable part'} of a forward pass."
    return verdict if better else f"{verdict} --k 0 distills a model without them."


def _kind(name: str, alone: WithoutSlots, sign: int) -> str:
    """Whether slots make a score better, worse, or neither; ``sign`` is that of a better one."""
    gain = alone.gains[name]
    if abs(gain.difference) <= ERRORS * gain.error:
        return "even"
    if gain.difference * sign < 0:
        return "worse"
    distance = 1 - alone.scores[name]
    small = name == "cosine" and distance < WORTHWHILE * (distance - gain.difference)
    return "even" if small else "better"

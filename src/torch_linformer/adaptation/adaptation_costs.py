"""What an adapted model takes: forward passes compared with full attention, within a share of the adaptation's time."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.reporting.tables import format_count, format_duration
from torch_linformer.training.step_costs import Cost, ModelStep, measure_steps, with_full_attention
from torch_linformer.training.training_screen import TrainingScreen

TIME_SHARE = 0.1  # of the time of the distillation that measuring takes at most
LEAST_SECONDS = 30.0  # processes take ten to start
Pair = tuple[Cost, Cost]  # of the model, and of the same one with full attention


@dataclass(frozen=True)
class ForwardCosts:
    """Costs of forward passes over one text, or why one failed.

    Attributes:
        by_length: by tokens of the text, longest first.
        alone: of the model without slots, and a text of full length.
        by_k: of the same weights with other K, likewise.
    """

    by_length: Mapping[int, Pair] = field(default_factory=dict)
    alone: Cost | None = None
    by_k: Mapping[int, Cost] = field(default_factory=dict)

    @property
    def longest(self) -> Cost | None:
        """That of the model, and a text of full length."""
        return next((ours for ours, _ in self.by_length.values()), None)


def measuring_seconds(distillation: float) -> float:
    """What measuring takes at most, of a distillation of this many seconds."""
    return max(LEAST_SECONDS, TIME_SHARE * distillation)


def measure_forward(
    step_of: Callable[[LinearEncoder, int], ModelStep],
    student: LinearEncoder,
    usual: int,
    *,
    alone: LinearEncoder | None,
    by_k: Mapping[int, LinearEncoder],
    seconds: float,
    screen: TrainingScreen,
) -> ForwardCosts:
    """Measure a student and the same model with full attention on a text of full length and on a usual one.

    Args:
        step_of: the forward pass of an encoder over a text of so many tokens.
        student: the trained model.
        usual: tokens of a usual text, at most those that the model reads.
        alone: the student without slots, if it can be.
        by_k: the student with other K.
        seconds: for all of it, beside the start of processes; what is not over by then has failed.
        screen: where it is said.
    """
    longest = student.config.longest_input
    lengths = list(dict.fromkeys((longest, usual)))
    shown = " and ".join(map(format_count, lengths))
    screen.say(
        f"measuring a text of {shown} tokens compared with full attention: at most {format_duration(seconds)} "
        "(--no-probe leaves it out)"
    )
    groups = [[step_of(student, length), with_full_attention(step_of(student, length))] for length in lengths]
    if alone is not None:
        groups[0].append(step_of(alone, longest))
    if by_k:
        groups.append([step_of(model, longest) for model in by_k.values()])
    costs = [measure_steps(group, seconds / len(groups)) for group in groups]
    return ForwardCosts(
        {length: (ours, full) for length, (ours, full, *_) in zip(lengths, costs, strict=False)},
        costs[0][2] if alone is not None else None,
        dict(zip(by_k, costs[-1], strict=True)) if by_k else {},
    )

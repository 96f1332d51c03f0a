"""What a benchmark consists of: cases, contenders that all compute them, and a row for each measurement."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import quantiles
from typing import Any, Literal

from torch import Tensor, nn

from torch_linformer.measuring.costs import LayerSizes
from torch_linformer.reporting.report import Headline, Section

StepKind = Literal["forward", "training", "decoding"]
Compilation = Literal["compiled", "CUDA graphs"]


@dataclass(frozen=True, kw_only=True)
class Case(LayerSizes):
    """One point of a suite's grid: what every contender is asked to compute; ``k`` is 0 for those without slots.

    Attributes:
        step: ``forward`` (inference), ``training`` (forward and backward, gradient of the input included) or
            ``decoding`` (inference of one token after ``length`` others).
        layers: layers of an encoder; 0 for a single attention.
        device: ``cpu`` or ``cuda``.
        ranks: processes that share each row, started for it; 0 where it is computed in this one.
    """

    step: StepKind
    layers: int = 0
    device: str = "cpu"
    ranks: int = 0


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A contender built for one case, on its device and in its dtype.

    Attributes:
        module: holds the parameters.
        inputs: arguments of ``run``; a training step takes the gradients of those that require one.
        run: computes the output.
        output_shape: the shape that the output must have.
        expected: computes the right output in a plain way, from the same inputs and parameters; None where only shape
            and finiteness are checked.
        cache: bytes that a decoder keeps of the past; None for any other workload.
        sent: bytes that this process gave to others in the last step, and in how many messages; None for one that is
            alone.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Tensor]
    output_shape: tuple[int, ...]
    expected: Callable[..., Tensor] | None = None
    cache: int | None = None
    sent: Callable[[], tuple[int, int]] | None = None


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation in a suite.

    Attributes:
        name: unique within the suite; with the package and its version where it is not ours.
        build: makes it ready for a case; raises where it cannot compute it, and the row says why.
        has_slots: whether it depends on K; one that does not is measured once a length, with k = 0.
        compilation: how its module is compiled for a case, which its first step waits for; None where it is not.
    """

    name: str
    build: Callable[[Case], Workload]
    has_slots: bool = True
    compilation: Compilation | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What was measured of one contender in one case.

    Attributes:
        contender: its name.
        seconds: median of the timed rounds; None where it failed.
        spread: lower and upper quartile of the rounds, in seconds.
        repeats: timed rounds.
        memory: bytes of peak memory, as :mod:`torch_linformer.measuring.step` counts it.
        cache: as in :class:`Workload`.
        sent: bytes that a process gives to the others in a step, the most of all; None for one that is alone.
        messages: in how many collective operations and messages it does.
        first: seconds of the first step of a contender that is compiled, which compiled it; None for any other.
        error: why there are no numbers, in one line.
    """

    contender: str
    case: Case
    seconds: float | None = None
    spread: tuple[float, float] | None = None
    repeats: int = 0
    memory: int | None = None
    cache: int | None = None
    sent: int | None = None
    messages: int | None = None
    first: float | None = None
    error: str | None = None

    @classmethod
    def of_rounds(cls, contender: str, case: Case, seconds: Sequence[float], **others: Any) -> "Measurement":
        """The median and the quartiles of timed rounds, of which there is one at least."""
        # A single round has no quartiles: all three are its time.
        lower, middle, upper = quantiles([*seconds] * (2 if len(seconds) == 1 else 1), n=4, method="inclusive")
        return cls(
            contender=contender, case=case, seconds=middle, spread=(lower, upper), repeats=len(seconds), **others
        )


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What the user may choose: the fields of cases, who takes part, and whether its own grid is the ``quick`` one.

    ``lengths``, ``ks`` and ``batches`` are the suite's own where they are empty; ``only`` holds beginnings of the names
    of those who take part, and is empty for everyone. With ``compile`` the contenders take part that are compiled,
    those with CUDA graphs only on a GPU.
    """

    lengths: Sequence[int] = ()
    ks: Sequence[int] = ()
    batches: Sequence[int] = ()
    only: Sequence[str] = ()
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a suite makes of its rows.

    Attributes:
        headlines: the few numbers that readers come for.
        sections: tables, texts and figures (inline SVG), for the page.
        figures: the same figures as PNG files, by name without suffix.
        derived: numbers computed from rows (ratios, fits, extrapolations), for ``results.json``.
    """

    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    figures: Mapping[str, bytes] = field(default_factory=dict)
    derived: Mapping[str, object] = field(default_factory=dict)


class Suite(ABC):
    """A benchmark: its grid of cases, who takes part, and what the rows show.

    Attributes:
        name: as the command takes it.
        title: as the report has it.
        threads: CPU threads of each process, unless told; None is torch's choice.
        several_batches: whether its tables tell batches of several sizes apart.
        dtype: unless told.
        minutes: after which no further rows are begun, unless told; None is without an end.
        packages: on PyPI, which it compares with where they are installed.
    """

    name: str
    title: str
    threads: int | None = None
    several_batches: bool = False
    dtype: str = "float32"
    minutes: float | None = None
    packages: Sequence[str] = ()

    @abstractmethod
    def cases(self, grid: Grid) -> list[Case]:
        """The cases in the order in which they are measured, cheap ones first.

        Raises:
            ValueError: for a grid that this suite cannot run.
        """

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """Everyone who can take part; what is not installed is left out."""

    def takes_part(self, contender: Contender, case: Case) -> bool:
        """Whether there is a row for this pair."""
        return contender.has_slots == (case.k > 0)

    def turn(self, case: Case) -> Case:
        """What cases that are timed in turn have in common: here all but K, so every K meets those without."""
        return replace(case, k=0)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        """Why this pair is not measured although it could be, for instance because it takes too long; else None."""
        return None

    @abstractmethod
    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        """Tables, figures and derived numbers of the rows that there are; an interrupted run has fewer."""

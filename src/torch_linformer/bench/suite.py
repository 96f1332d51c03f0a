"""What a benchmark consists of: cases, contenders that all compute them, and rows of what was measured."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from torch_linformer.reporting.report import Headline, Section

StepKind = Literal["forward", "training", "decoding"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of a suite's grid: what every contender is asked to compute.

    Attributes:
        step: ``forward`` (inference), ``training`` (forward and backward, gradient of the input included) or
            ``decoding`` (inference of one token behind N others).
        length: tokens N; those of the past where the step is ``decoding``.
        k: slots K; 0 in the cases of contenders that have none.
        batch: rows B.
        width: model width C.
        heads: heads H.
        layers: layers of an encoder; 0 for one attention alone.
        feedforward: width of an encoder's feed-forward; 0 for one attention alone.
        device: ``cpu`` or ``cuda``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
    """

    step: StepKind
    length: int
    k: int
    batch: int
    width: int
    heads: int
    layers: int = 0
    feedforward: int = 0
    device: str = "cpu"
    dtype: str = "float32"

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch has it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A contender built for one case, on its device and in its dtype.

    Attributes:
        module: holds the parameters.
        inputs: what ``run`` is given; a training step takes the gradients of those that want one.
        run: computes the output from the inputs.
        expected: computes what the output must be, from the same inputs and parameters, in a plain way; None where
            there is nothing to compare with but shape and finiteness.
        output_shape: what the output's shape must be.
        cache: bytes of what a decoder keeps of the past; None where nothing is kept.
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    run: Callable[..., Tensor]
    output_shape: tuple[int, ...]
    expected: Callable[..., Tensor] | None = None
    cache: int | None = None


@dataclass(frozen=True, kw_only=True)
class Contender:
    """One implementation in a suite.

    Attributes:
        name: unique within the suite; with the package and its version where it is not ours.
        ours: whether it is of this package.
        has_slots: whether a K makes a difference to it; one without is measured once a length, with k = 0.
        build: makes it ready for a case; raises where it cannot compute it, and the row says why.
    """

    name: str
    build: Callable[[Case], Workload]
    ours: bool = False
    has_slots: bool = True


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What one contender did in one case.

    Attributes:
        contender: its name.
        case: the case.
        seconds: median of the timed runs; None where it failed.
        spread: the middle half of the timed runs, lower and upper quartile in seconds.
        repeats: timed runs.
        memory: bytes of peak memory beyond what parameters, inputs and the interpreter held before the step.
        cache: bytes of what a decoder keeps of the past; None where nothing is kept.
        error: why there are no numbers, in one line.
    """

    contender: str
    case: Case
    seconds: float | None = None
    spread: tuple[float, float] | None = None
    repeats: int = 0
    memory: int | None = None
    cache: int | None = None
    error: str | None = None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What the user may choose of a suite; None and () leave the suite's own choice.

    Attributes:
        lengths: tokens N, ``--lengths``.
        ks: slots K, ``--k``.
        batch: rows B.
        device: ``cpu`` or ``cuda``.
        dtype: ``float32``, ``bfloat16`` or ``float16``.
        quick: two minutes on two cores.
    """

    lengths: Sequence[int] = ()
    ks: Sequence[int] = ()
    batch: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a suite makes of its rows.

    Attributes:
        headlines: the few numbers that readers come for.
        sections: tables, texts and figures (inline SVG), for the page and for ``results.md``.
        figures: the same figures as PNG files, name without suffix to bytes.
        derived: numbers computed from rows (ratios, fits, extrapolations), for ``results.json``.
    """

    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    figures: Mapping[str, bytes] = field(default_factory=dict)
    derived: Mapping[str, object] = field(default_factory=dict)


class Suite(ABC):
    """A benchmark: its grid of cases, who takes part, and what the rows show."""

    name: str
    title: str

    @abstractmethod
    def cases(self, grid: Grid) -> list[Case]:
        """The cases, in the order in which they are measured: cheap ones first.

        Raises:
            ValueError: for a grid this suite cannot run.
        """

    @abstractmethod
    def contenders(self) -> list[Contender]:
        """Who can take part: what is not installed is left out."""

    def takes_part(self, contender: Contender, case: Case) -> bool:
        """Whether the case is meant for this contender; where it is not there is no row."""
        return contender.has_slots == (case.k > 0)

    def turn(self, case: Case) -> Case:
        """What cases have in common that are timed in turn: here all but K, so that every K meets those without."""
        return replace(case, k=0)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        """Why this contender is not measured here although it could be (too long for any patience); None to measure."""
        return None

    @abstractmethod
    def summarise(self, rows: Sequence[Measurement]) -> Summary:
        """Tables, figures and derived numbers of whatever rows there are; an interrupted run has fewer."""

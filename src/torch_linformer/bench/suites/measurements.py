"""Rows as readers want them: looked up by what they are about, in tables beside ours, as lines over length."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch_linformer.bench.suite import Measurement, StepKind
from torch_linformer.reporting.lines import Line, LogLogChart
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_bytes, format_count, format_duration, format_ratio

Quantity = Literal["seconds", "memory", "cache"]

FORMATS: dict[Quantity, Callable[[float], str]] = {
    "seconds": format_duration,
    "memory": format_bytes,
    "cache": format_bytes,
}
NAMES: dict[Quantity, str] = {"seconds": "time", "memory": "peak memory", "cache": "cache"}


class Measurements:
    """Whatever rows there are, the failed ones included."""

    def __init__(self, rows: Sequence[Measurement]) -> None:
        self.rows = list(rows)

    @property
    def contenders(self) -> list[str]:
        """Their names, in the order of the rows."""
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def steps(self) -> list[StepKind]:
        """The steps there are rows of."""
        return list(dict.fromkeys(row.case.step for row in self.rows))

    @property
    def lengths(self) -> list[int]:
        """The lengths there are rows of, short ones first."""
        return sorted({row.case.length for row in self.rows})

    @property
    def ks(self) -> list[int]:
        """The numbers of slots; the 0 of contenders without any is none of them."""
        return sorted({row.case.k for row in self.rows} - {0})

    def only(self, wanted: Callable[[Measurement], bool]) -> "Measurements":
        """The rows of one kind."""
        return Measurements([row for row in self.rows if wanted(row)])

    def row(self, contender: str, step: StepKind, length: int, k: int) -> Measurement | None:
        """A contender's row, for one without slots whatever the K."""
        for row in self.rows:
            case = row.case
            if (row.contender, case.step, case.length) == (contender, step, length) and case.k in (k, 0):
                return row
        return None

    def value(self, quantity: Quantity, contender: str, step: StepKind, length: int, k: int) -> float | None:
        """What was measured; None where it was not, and where it was nothing."""
        row = self.row(contender, step, length, k)
        measured = None if row is None else getattr(row, quantity)
        return float(measured) if measured else None

    def points(self, quantity: Quantity, contender: str, step: StepKind, k: int) -> list[tuple[int, float]]:
        """(length, value) of everything measured of one contender, short lengths first."""
        found = [(length, self.value(quantity, contender, step, length, k)) for length in self.lengths]
        return [(length, value) for length, value in found if value is not None]

    def ratio(self, quantity: Quantity, contender: str, ours: str, step: StepKind, length: int, k: int) -> float | None:
        """How many times ours it takes."""
        theirs, mine = (self.value(quantity, name, step, length, k) for name in (contender, ours))
        return None if theirs is None or mine is None else theirs / mine

    def ratios(self, quantity: Quantity, contender: str, ours: str, step: StepKind, k: int) -> list[tuple[int, float]]:
        """(length, ratio) of one contender, short lengths first."""
        found = [(length, self.ratio(quantity, contender, ours, step, length, k)) for length in self.lengths]
        return [(length, ratio) for length, ratio in found if ratio is not None]


@dataclass(frozen=True, kw_only=True)
class LengthComparison:
    """One step with one K: everyone beside ours, over the lengths.

    Attributes:
        results: the rows.
        ours: the contender the others are compared with.
        step: forward or training.
        k: slots.
    """

    results: Measurements
    ours: str
    step: StepKind
    k: int

    def table(self, quantity: Quantity, text: str = "", figure: str = "", caption: str = "") -> Section:
        """A line a contender, the best at the greatest length first; below ours each value with its ratio to ours."""
        here = self.results.only(lambda row: row.case.step == self.step and row.case.k in (self.k, 0))
        lengths = here.lengths
        names = sorted(here.contenders, key=lambda name: self._rank(quantity, name, lengths))
        failures = failures_text(here.only(lambda row: row.seconds is None))
        return Section(
            heading=f"{self.step.capitalize()}, K = {format_count(self.k)}: {NAMES[quantity]}",
            text="\n\n".join(filter(None, (text, failures))),
            columns=["", *(f"N = {format_count(length)}" for length in lengths)],
            rows=[[name, *(self._cell(quantity, name, length) for length in lengths)] for name in names],
            figure=figure,
            caption=caption,
        )

    def chart(self, quantity: Quantity, title: str, names: Sequence[str]) -> LogLogChart | None:
        """The named contenders over length, ours thick; None where nothing was measured."""
        measured = {name: self.results.points(quantity, name, self.step, self.k) for name in names}
        lines = [Line(name=name, points=points, thick=name == self.ours) for name, points in measured.items() if points]
        return length_chart(quantity, title, lines)

    def faster_from(self, rival: str) -> int | None:
        """The least length from which on ours was faster than ``rival`` at every length that was measured."""
        least = None
        for length, ratio in reversed(self.results.ratios("seconds", rival, self.ours, self.step, self.k)):
            if ratio <= 1:
                break
            least = length
        return least

    def crossing(self, rival: str) -> str:
        """:meth:`faster_from` as a sentence; nothing where ``rival`` was not measured."""
        if not self.results.ratios("seconds", rival, self.ours, self.step, self.k):
            return ""
        least = self.faster_from(rival)
        where = "at none of these lengths" if least is None else f"from N = {format_count(least)} on"
        return f"Of the lengths measured, ours is faster than {rival} {where}."

    def _rank(self, quantity: Quantity, name: str, lengths: Sequence[int]) -> tuple[bool, list[float]]:
        values = (self.results.value(quantity, name, self.step, length, self.k) for length in reversed(lengths))
        return name != self.ours, [math.inf if value is None else value for value in values]

    def _cell(self, quantity: Quantity, name: str, length: int) -> str:
        value = self.results.value(quantity, name, self.step, length, self.k)
        if value is None:
            return MISSING
        ratio = self.results.ratio(quantity, name, self.ours, self.step, length, self.k)
        text = FORMATS[quantity](value)
        return text if name == self.ours or ratio is None else f"{text} {format_ratio(ratio)}"


def length_chart(quantity: Quantity, title: str, lines: Sequence[Line]) -> LogLogChart | None:
    """A cost over length; None without a line."""
    if not lines:
        return None
    label = "time of a step" if quantity == "seconds" else NAMES[quantity]
    return LogLogChart(title=title, x_label="tokens N", y_label=label, y_format=FORMATS[quantity], lines=lines)


def failures_text(failed: Measurements) -> str:
    """Why there are numbers missing, a sentence for each contender and reason."""
    lengths: dict[tuple[str, str], set[int]] = {}
    for row in failed.rows:
        lengths.setdefault((row.contender, row.error or "no reason given"), set()).add(row.case.length)
    reasons = [
        f"{name} at {' and '.join(format_count(length) for length in sorted(at))} tokens: {error.rstrip('.')}."
        for (name, error), at in lengths.items()
    ]
    return "Without a number: " + " ".join(reasons) if reasons else ""


def headline_ratio(name: str, ratios: Sequence[tuple[int, float]], setting: str) -> Headline:
    """The ratio at the greatest length, the others below it."""
    *others, (length, ratio) = ratios
    note = [f"N = {format_count(length)}, {setting}"]
    note += [f"{format_ratio(value)} at N = {format_count(n)}" for n, value in reversed(others)]
    return Headline(name=name, value=format_ratio(ratio), note="\n".join(note))


def ratio_records(results: Measurements, ours: str) -> list[dict[str, object]]:
    """Every contender's time and memory over ours, for ``results.json``."""
    records: list[dict[str, object]] = []
    for row in results.rows:
        case = row.case
        for k in [case.k] if case.k else results.ks:
            key = (row.contender, ours, case.step, case.length, k)
            time, memory = results.ratio("seconds", *key), results.ratio("memory", *key)
            if row.contender != ours and time is not None:
                record = {"contender": row.contender, "step": case.step, "length": case.length, "k": k}
                records.append({**record, "time": time, "memory": memory})
    return records

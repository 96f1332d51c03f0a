"""Rows as readers want them: costs over length in tables, charts, headlines and fitted curves."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from scipy.optimize import nnls
from scipy.stats import linregress

from runner.lines import Line, LogLogChart
from runner.suite import Measurement, StepKind
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
    """All rows that there are, failed ones included."""

    def __init__(self, rows: Sequence[Measurement]) -> None:
        self.rows = list(rows)

    @property
    def contenders(self) -> list[str]:
        """Their names, in the order of the rows."""
        return list(dict.fromkeys(row.contender for row in self.rows))

    @property
    def steps(self) -> list[StepKind]:
        return list(dict.fromkeys(row.case.step for row in self.rows))

    @property
    def lengths(self) -> list[int]:
        return sorted({row.case.length for row in self.rows})

    @property
    def ks(self) -> list[int]:
        """The numbers of slots, without the 0 of contenders that have none."""
        return sorted({row.case.k for row in self.rows} - {0})

    @property
    def batches(self) -> list[int]:
        """Rows a call."""
        return sorted({row.case.batch for row in self.rows})

    def of_batch(self, batch: int) -> "Measurements":
        """Those with so many rows a call; costs over length are those of one batch."""
        return Measurements([row for row in self.rows if row.case.batch == batch])

    def points(self, quantity: Quantity, contender: str, step: StepKind, k: int) -> dict[int, float]:
        """What was measured, by length, without zeros; for a contender without slots the same for every K."""
        found = {
            row.case.length: float(getattr(row, quantity))
            for row in self.rows
            if (row.contender, row.case.step) == (contender, step) and row.case.k in (k, 0) and getattr(row, quantity)
        }
        return dict(sorted(found.items()))

    def ratios(self, quantity: Quantity, contender: str, ours: str, step: StepKind, k: int) -> dict[int, float]:
        """A contender's cost over ours, by length."""
        mine = self.points(quantity, ours, step, k)
        theirs = self.points(quantity, contender, step, k)
        return {length: value / mine[length] for length, value in theirs.items() if length in mine}


@dataclass(frozen=True, kw_only=True)
class LengthComparison:
    """One step with one K: everyone beside ours, over the lengths.

    Attributes:
        results: the rows.
        ours: the contender that the others are compared with.
        step: of the rows.
        k: slots.
        batch: rows a call, for the titles; 0 where all rows have the same.
    """

    results: Measurements
    ours: str
    step: StepKind
    k: int
    batch: int = 0

    def table(self, quantity: Quantity, text: str = "", chart: LogLogChart | None = None) -> Section:
        """A row for each contender, ours first and then the best at the greatest length, with ratios to ours.

        The table of the time also lists what failed.
        """
        here = Measurements(
            [row for row in self.results.rows if row.case.step == self.step and row.case.k in (self.k, 0)]
        )
        points = {name: here.points(quantity, name, self.step, self.k) for name in here.contenders}
        longest_first = here.lengths[::-1]

        def rank(name: str) -> tuple[bool, list[float]]:
            return name != self.ours, [points[name].get(length, math.inf) for length in longest_first]

        return Section(
            heading=f"{self.step.capitalize()}, {self._setting()}: {NAMES[quantity]}",
            text="\n\n".join(filter(None, (text, failures_text(here.rows) if quantity == "seconds" else ""))),
            columns=["", *(f"N = {format_count(length)}" for length in here.lengths)],
            rows=[
                [name, *(self._cell(quantity, name, length, points) for length in here.lengths)]
                for name in sorted(points, key=rank)
            ],
            figure=chart.svg() if chart is not None and chart.lines else "",
        )

    def chart(self, quantity: Quantity, title: str, names: Sequence[str] = ()) -> LogLogChart:
        """What was measured of the named contenders (all by default) over length, ours first and thick."""
        names = sorted(names or self.results.contenders, key=lambda name: name != self.ours)
        measured = {name: self.results.points(quantity, name, self.step, self.k) for name in names}
        lines = [
            Line(name=name, points=list(points.items()), thick=name == self.ours)
            for name, points in measured.items()
            if points
        ]
        return length_chart(quantity, f"{title}, {self._setting()}", lines)

    def crossing(self, rival: str) -> str:
        """From which length on ours was faster at every measured length; nothing where ``rival`` was not measured."""
        ratios = self.results.ratios("seconds", rival, self.ours, self.step, self.k)
        least = None
        for length in reversed(ratios):
            if ratios[length] <= 1:
                break
            least = length
        where = "at none of these lengths" if least is None else f"from N = {format_count(least)} on"
        return f"Of the lengths measured, ours is faster than {rival} {where}." if ratios else ""

    def _setting(self) -> str:
        return f"K = {format_count(self.k)}" + (f", B = {format_count(self.batch)}" if self.batch else "")

    def _cell(self, quantity: Quantity, name: str, length: int, points: Mapping[str, Mapping[int, float]]) -> str:
        value, ours = points[name].get(length), points.get(self.ours, {}).get(length)
        if value is None:
            return MISSING
        text = FORMATS[quantity](value)
        return text if name == self.ours or ours is None else f"{text} {format_ratio(value / ours)}"


def compare_lengths(
    results: Measurements,
    *,
    ours: str,
    rival: str,
    text: str,
    title: str,
    file: str,
    note: str = "",
    names: Sequence[str] = (),
) -> tuple[list[Section], dict[str, bytes]]:
    """Time and peak memory of every step, K and batch: tables, and charts of the time, as sections and PNG files.

    Args:
        results: the rows.
        ours: the contender that the others are compared with.
        rival: the text says from which length on ours is faster than it.
        text: for the tables of the time.
        title: begins that of a chart.
        file: begins the name of a chart's file.
        note: a paragraph after the text.
        names: contenders in the charts; all by default.
    """
    sections: list[Section] = []
    charts: dict[str, LogLogChart] = {}
    for step, k, batch in product(results.steps, results.ks, results.batches):
        part, several = results.of_batch(batch), len(results.batches) > 1
        comparison = LengthComparison(results=part, ours=ours, step=step, k=k, batch=batch if several else 0)
        chart = comparison.chart("seconds", f"{title}, {step}", names)
        charts[f"{file}_{step}_k{k}" + (f"_b{batch}" if several else "")] = chart
        paragraphs = filter(None, (f"{text} {comparison.crossing(rival)}", note))
        sections += [comparison.table("seconds", "\n\n".join(paragraphs), chart), comparison.table("memory")]
    return sections, drawn(charts)


def drawn(charts: Mapping[str, LogLogChart]) -> dict[str, bytes]:
    """The charts that have a line, as PNG files."""
    return {name: chart.png() for name, chart in charts.items() if chart.lines}


def length_chart(quantity: Quantity, title: str, lines: Sequence[Line]) -> LogLogChart:
    """A cost over length."""
    label = "time of a step" if quantity == "seconds" else NAMES[quantity]
    return LogLogChart(title=title, x_label="tokens N", y_label=label, y_format=FORMATS[quantity], lines=lines)


def failures_text(rows: Sequence[Measurement]) -> str:
    """Why numbers are missing, in one sentence for each contender and reason."""
    lengths: dict[tuple[str, str], set[int]] = {}
    for row in rows:
        if row.seconds is None:
            lengths.setdefault((row.contender, row.error or "no reason given"), set()).add(row.case.length)
    reasons = [
        f"{name} at {' and '.join(map(format_count, sorted(at)))} tokens: {error.rstrip('.')}."
        for (name, error), at in lengths.items()
    ]
    return "Without a number: " + " ".join(reasons) if reasons else ""


def measured_section(results: Measurements) -> Section:
    """Every measured number, and why others are missing."""
    rows = [
        [
            with_k(row.contender, row.case.k),
            format_count(row.case.length),
            MISSING if row.seconds is None else format_duration(row.seconds),
            MISSING if row.memory is None else format_bytes(row.memory),
            MISSING if not row.seconds else format_count(row.case.batch * row.case.length / row.seconds),
        ]
        for row in results.rows
    ]
    columns = ["", "N", "time", "peak memory", "tokens/s"]
    return Section(heading="Measured", text=failures_text(results.rows), columns=columns, rows=rows)


def with_k(contender: str, k: int) -> str:
    """The name of a contender and its K, if it has one."""
    return f"{contender}, K = {format_count(k)}" if k else contender


def ratio_headlines(results: Measurements, ours: str, rivals: Sequence[str]) -> list[Headline]:
    """Time of each rival over ours in every step and batch, with the largest K, where both were measured."""
    several = len(results.batches) > 1
    return [
        headline_ratio(
            f"time of {rival} over ours, {step}",
            ratios,
            f"K = {format_count(k)}" + (f", B = {format_count(batch)}" if several else ""),
        )
        for k in results.ks[-1:]
        for batch, step, rival in product(results.batches, results.steps, rivals)
        if (ratios := results.of_batch(batch).ratios("seconds", rival, ours, step, k))
    ]


def headline_ratio(name: str, ratios: Mapping[int, float], setting: str) -> Headline:
    """The ratio at the greatest length, the others below it."""
    *others, (length, ratio) = ratios.items()
    note = [f"N = {format_count(length)}, {setting}"]
    note += [f"{format_ratio(value)} at N = {format_count(n)}" for n, value in reversed(others)]
    return Headline(name=name, value=format_ratio(ratio), note="\n".join(note))


def ratio_records(results: Measurements, ours: str) -> list[dict[str, object]]:
    """Every contender's time and memory over ours, for ``results.json``."""
    records: list[dict[str, object]] = []
    for row in results.rows:
        case, part = row.case, results.of_batch(row.case.batch)
        for k in [case.k] if case.k else results.ks:
            time, memory = (
                part.ratios(quantity, row.contender, ours, case.step, k).get(case.length)
                for quantity in ("seconds", "memory")
            )
            if row.contender != ours and time is not None:
                setting = {"step": case.step, "length": case.length, "k": k, "batch": case.batch}
                records.append({"contender": row.contender, **setting, "time": time, "memory": memory})
    return records


Points = Sequence[tuple[float, float]]  # (length, cost), both positive


def fit_quadratic(points: Points) -> np.polynomial.Polynomial | None:
    """The cost a + b·N + c·N² with the least squares of *relative* errors; None for fewer than three lengths.

    A cost is a sum of work, so no term is negative; relative errors let short lengths count as much as long ones.
    """
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(set(lengths)) < 3:
        return None
    units = lengths.max() ** np.arange(3)  # powers of numbers up to 1 keep the three columns comparable
    powers = lengths[:, None] ** np.arange(3) / units
    terms, _ = nnls(powers / costs[:, None], np.ones_like(costs))
    return np.polynomial.Polynomial(terms / units)


def fit_exponent(points: Points) -> float | None:
    """The p of cost ∝ Nᵖ by least squares in logarithms: 1 is linear; None for fewer than two lengths."""
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    return float(linregress(np.log(lengths), np.log(costs)).slope) if len(set(lengths)) > 1 else None

"""The paper's Table 3 and Figure 2 on this machine: a layer of ours against a standard Transformer's, at inference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runner.lines import Line, LogLogChart
from runner.suite import Case, Contender, Grid, Measurement, Suite, Summary
from suites import encoder as contenders
from suites.grids import beyond_full_attention, grid_cases, require_cases
from suites.measurements import (
    Measurements,
    Quantity,
    drawn,
    fit_quadratic,
    length_chart,
    measured_section,
    with_k,
)
from torch_linformer.measuring.costs import layer_ratio
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_count, format_ratio

SOURCE = "Wang, Li, Khabsa, Fang, Ma: Linformer: Self-Attention with Linear Complexity, arXiv 2006.04768, Table 3"
SETUP = "inference against a standard Transformer of the same size, layerwise sharing, one V100 with 16 GB"
NOTE = "The paper reads the memory saved from the largest batches that fit."

PAPER_KS = (128, 256, 512, 1024, 2048)

_TIME = {
    512: (1.5, 1.3),
    1024: (1.7, 1.6, 1.3),
    2048: (2.6, 2.4, 2.1, 1.3),
    4096: (3.4, 3.2, 2.8, 2.2, 1.3),
    8192: (5.5, 5.0, 4.4, 3.5, 2.1),
    16384: (8.6, 7.8, 7.0, 5.6, 3.3),
    32768: (13, 12, 11, 8.8, 5.0),
    65536: (20, 18, 16, 14, 7.9),
}
_MEMORY = {
    512: (1.7, 1.5),
    1024: (3.0, 2.9, 1.8),
    2048: (6.1, 5.6, 3.6, 2.0),
    4096: (14, 13, 8.3, 4.3, 2.3),
    8192: (28, 26, 17, 8.5, 4.5),
    16384: (56, 48, 32, 16, 8),
    32768: (56, 48, 36, 18, 16),
    65536: (60, 52, 40, 20, 18),
}


def _cells(table: dict[int, tuple[float, ...]]) -> dict[tuple[int, int], float]:
    return {(n, k): float(factor) for n, row in table.items() for k, factor in zip(PAPER_KS, row, strict=False)}


TIME_SAVED: dict[tuple[int, int], float] = _cells(_TIME)
"""How many times faster, by (N, K)."""

MEMORY_SAVED: dict[tuple[int, int], float] = _cells(_MEMORY)
"""How many times less memory, by (N, K)."""


SIZES = {"width": 768, "heads": 12, "layers": 1, "feedforward": 3072}
LENGTHS, KS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536), PAPER_KS
QUICK_LENGTHS, QUICK_KS = (512, 1024, 2048), (128, 256)
QUANTITIES: dict[str, Quantity] = {"time": "seconds", "memory": "memory"}

_ESTIMATED = (
    "~ marks an estimate: the cost of ordinary attention there is a + b·N + c·N², fitted to its measured lengths."
)
_PAPER = f"In brackets the paper's factor ({SETUP}). Source: {SOURCE}."
_FIGURE = (
    "Both axes are logarithmic, and the time is that of one sequence of N tokens: linear cost is a line of slope 1. "
    "The paper's Figure 2 keeps batch × length constant instead, where linear cost is flat."
)
_COUNTED = (
    "What counting predicts for this layer: multiplications of ordinary attention over those of ours, and bytes of all "
    "intermediate results over ours. Machines reach more or less: short products run at a lower rate, and softmax, "
    "norms and the nonlinearity are not counted."
)


class Table3Suite(Suite):
    """Inference of one layer over the paper's lengths and K."""

    name = "table3"
    title = "Table 3 of the paper"

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or (QUICK_KS if grid.quick else KS)
        cases = grid_cases(grid, lengths, ks, step="forward", **SIZES)
        # The paper has a number where K is at most half of N.
        return require_cases([case for case in cases if 2 * case.k <= case.length], lengths, ks)

    def contenders(self) -> list[Contender]:
        return contenders.layers()

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name == contenders.OURS:
            return None
        return beyond_full_attention(case, eager=contender.name == contenders.EAGER_LAYER)

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results = Measurements(rows)
        if not results.ks:
            return Summary()
        tables = {
            f"{what}_saved_{kernel.lower()}": _saving(results, quantity, standard, kernel)
            for what, quantity in QUANTITIES.items()
            for kernel, standard in (("eager", contenders.EAGER_LAYER), ("SDPA", contenders.LAYER))
        }
        eager, sdpa = tables["time_saved_eager"], tables["time_saved_sdpa"]
        charts = {
            "figure2_time": _time_chart(results, [eager.standard, sdpa.standard]),
            "time_saved": _saved_chart(results, eager),
        }
        figures = [
            Section(heading=chart.title, figure=chart.svg(), caption=caption)
            for chart, caption in zip(charts.values(), (_FIGURE, _ESTIMATED), strict=True)
            if chart.lines
        ]
        sections = [table.section(results) for table in tables.values()]
        return Summary(
            headlines=[headline for table in tables.values() for headline in table.headlines()],
            sections=[*sections, _counted(results), *figures, measured_section(results)],
            figures=drawn(charts),
            derived={name: table.records() for name, table in tables.items()},
        )


@dataclass(frozen=True, kw_only=True)
class Saving:
    """What ours saves over a standard layer, by (N, K).

    Attributes:
        name: heads the table.
        note: what to know about the paper's numbers.
        published: the paper's factors.
        standard: cost of the standard layer over length; estimated only beyond the measured lengths.
        factors: how many times our cost the standard layer's is.
    """

    name: str
    note: str
    published: Mapping[tuple[int, int], float]
    standard: Line
    factors: Mapping[tuple[int, int], float]

    def is_estimated(self, length: int) -> bool:
        return any(length == n for n, _ in self.standard.estimated)

    def section(self, results: Measurements) -> Section:
        """The table, the paper's factors beside ours."""
        estimated = _ESTIMATED if any(self.is_estimated(length) for length, _ in self.factors) else ""
        text = "\n\n".join(filter(None, (self.note, estimated)))
        return _by_length_and_k(results, self.name, text, self._cell)

    def headlines(self) -> list[Headline]:
        """The factor at the greatest length that was measured on both sides, with the smallest K."""
        measured = [key for key in self.factors if not self.is_estimated(key[0])]
        if not measured:
            return []
        length, k = max(measured, key=lambda key: (key[0], -key[1]))
        note = f"N = {format_count(length)}, K = {format_count(k)}"
        if (length, k) in self.published:
            note += f"\npaper: {format_ratio(self.published[length, k])}"
        return [Headline(name=self.name, value=format_ratio(self.factors[length, k]), note=note)]

    def records(self) -> list[dict[str, object]]:
        """The factors for ``results.json``."""
        return [
            {
                "length": n,
                "k": k,
                "factor": factor,
                "estimated": self.is_estimated(n),
                "paper": self.published.get((n, k)),
            }
            for (n, k), factor in self.factors.items()
        ]

    def _cell(self, length: int, k: int) -> str:
        factor, published = self.factors.get((length, k)), self.published.get((length, k))
        mark = "~" if self.is_estimated(length) else ""
        here = MISSING if factor is None else f"{mark}{format_ratio(factor)}"
        return here if published is None else f"{here} ({format_ratio(published)})"


def _saving(results: Measurements, quantity: Quantity, standard: str, kernel: str) -> Saving:
    measured = results.points(quantity, standard, "forward", 0)
    fit = fit_quadratic(list(measured.items()))
    beyond = [length for length in results.lengths if length > max(measured, default=0)]
    estimated = [] if fit is None else [(length, float(fit(length))) for length in beyond]
    costs = {**measured, **dict(estimated)}
    ours = {k: results.points(quantity, contenders.OURS, "forward", k) for k in results.ks}
    time = quantity == "seconds"
    return Saving(
        name=f"{'Time' if time else 'Memory'} saved against ordinary attention, {kernel}",
        note=_PAPER if time else f"{_PAPER}\n\n{NOTE}",
        published=TIME_SAVED if time else MEMORY_SAVED,
        standard=Line(name=standard, points=list(measured.items()), estimated=estimated),
        factors={(n, k): costs[n] / ours[k][n] for n in results.lengths for k in ours if n in costs and n in ours[k]},
    )


def _by_length_and_k(results: Measurements, heading: str, text: str, cell: Callable[[int, int], str]) -> Section:
    return Section(
        heading=heading,
        text=text,
        columns=["N", *(f"K = {format_count(k)}" for k in results.ks)],
        rows=[[format_count(length), *(cell(length, k) for k in results.ks)] for length in results.lengths],
    )


def _counted(results: Measurements) -> Section:
    """What the cost model allows, at the same lengths and K."""
    cases = {(row.case.length, row.case.k): row.case for row in results.rows if row.case.k}

    def cell(length: int, k: int) -> str:
        case = cases.get((length, k))
        return MISSING if case is None else " / ".join(format_ratio(ratio) for ratio in layer_ratio(case))

    return _by_length_and_k(results, "What counting allows: multiplications / bytes", _COUNTED, cell)


def _time_chart(results: Measurements, standards: Sequence[Line]) -> LogLogChart:
    """The paper's Figure 2: time over length, standard layers first."""
    ours = [
        Line(name=with_k(contenders.OURS, k), points=list(points.items()), thick=True)
        for k in results.ks
        if (points := results.points("seconds", contenders.OURS, "forward", k))
    ]
    lines = [*(line for line in standards if line.points), *ours]
    return length_chart("seconds", "Inference time of a layer", lines)


def _saved_chart(results: Measurements, saving: Saving) -> LogLogChart:
    """Time saved over length, a line for each K."""
    lines = []
    for k in results.ks:
        points = [(n, factor) for (n, slots), factor in saving.factors.items() if slots == k]
        measured, estimated = ([x for x in points if saving.is_estimated(x[0]) is which] for which in (False, True))
        if points:
            lines.append(Line(name=f"K = {format_count(k)}", points=measured, estimated=estimated))
    title = "Time saved against the standard layer, eager"
    return LogLogChart(title=title, x_label="tokens N", y_label="times faster", y_format=format_ratio, lines=lines)

"""The paper's Table 3 and Figure 2 on this machine: a layer of ours against a standard Transformer's, at inference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch_linformer.bench import paper
from torch_linformer.bench.contenders import encoder_contenders as contenders
from torch_linformer.bench.fits import fit_quadratic
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, Suite, Summary
from torch_linformer.bench.suites.grids import beyond_full_attention, grid_cases, require_cases
from torch_linformer.bench.suites.measurements import (
    FORMATS,
    Measurements,
    Quantity,
    failures_text,
    length_chart,
)
from torch_linformer.measuring.costs import layer_ratio
from torch_linformer.reporting.lines import Line, LogLogChart
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_count, format_ratio

SIZES = {"width": 768, "heads": 12, "layers": 1, "feedforward": 3072}
LENGTHS, KS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536), paper.KS
QUICK_LENGTHS, QUICK_KS = (512, 1024, 2048), (128, 256)

_ESTIMATED = (
    "~ marks what nobody measured: ordinary attention there follows a + b·N + c·N², fitted to its own measured lengths."
)
_PAPER = f"In brackets the paper's factor ({paper.SETUP}). Source: {paper.SOURCE}."
_FIGURE = (
    "Both axes are logarithmic, and the time is that of one sequence of N tokens: linear cost is a line of slope 1. "
    "The paper's Figure 2 keeps batch × length constant instead, where linear cost is flat."
)
_COUNTED = (
    "The factor that counting alone gives for this layer: multiplications of ordinary attention over those of ours, "
    "and bytes of all intermediate results over ours. Machines reach more or less: short products run at a lower rate, "
    "and softmax, norms and the nonlinearity are not counted."
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
        return [contenders.our_layer(), *contenders.full_layers()]

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.ours:
            return None
        return beyond_full_attention(case, eager=contender.name == contenders.EAGER_LAYER)

    def summarise(self, rows: Sequence[Measurement]) -> Summary:
        results = Measurements(rows)
        if not results.ks:
            return Summary()
        eager, sdpa = contenders.EAGER_LAYER, contenders.LAYER
        tables = {
            "time_saved_eager": Saving(results, eager, "eager", "seconds", paper.TIME_SAVED),
            "time_saved_sdpa": Saving(results, sdpa, "SDPA", "seconds", paper.TIME_SAVED),
            "memory_saved_eager": Saving(results, eager, "eager", "memory", paper.MEMORY_SAVED),
            "memory_saved_sdpa": Saving(results, sdpa, "SDPA", "memory", paper.MEMORY_SAVED),
        }
        time, saved = _time_chart(tables), _saved_chart(tables["time_saved_eager"])
        charts = {name: chart for name, chart in (("figure2_time", time), ("time_saved", saved)) if chart is not None}
        sections = [table.section() for table in tables.values()]
        sections += [_counted(results), *_figures(charts), _measured(results)]
        return Summary(
            headlines=[headline for table in tables.values() for headline in table.headlines()],
            sections=sections,
            figures={name: chart.png() for name, chart in charts.items()},
            derived={name: table.records() for name, table in tables.items()},
        )


@dataclass(frozen=True)
class Saving:
    """What ours saves over a standard layer: a table by N and K.

    Attributes:
        results: the rows.
        standard: the contender that ours is compared with.
        kernel: how its attention is computed, for headings.
        quantity: time or memory.
        published: the paper's factors by (N, K).
    """

    results: Measurements
    standard: str
    kernel: str
    quantity: Quantity
    published: Mapping[tuple[int, int], float]

    def standard_cost(self) -> Callable[[int], tuple[float, bool] | None]:
        """Function: the standard layer's cost at a length, and whether it is an estimate; None where it is unknown.

        Lengths beyond the measured ones alone are estimated.
        """
        measured = dict(self.results.points(self.quantity, self.standard, "forward", 0))
        fit = fit_quadratic(list(measured.items()))

        def at(length: int) -> tuple[float, bool] | None:
            if length in measured:
                return measured[length], False
            return None if fit is None or length < max(measured) else (fit(length), True)

        return at

    def factors(self) -> dict[tuple[int, int], tuple[float, bool]]:
        """By (N, K): how many times ours the standard layer takes, and whether that is an estimate."""
        standard, found = self.standard_cost(), {}
        for length in self.results.lengths:
            for k in self.results.ks:
                ours = self.results.value(self.quantity, contenders.OURS, "forward", length, k)
                cost = standard(length)
                if ours is not None and cost is not None:
                    found[length, k] = (cost[0] / ours, cost[1])
        return found

    def section(self) -> Section:
        """The table, the paper's factors beside ours."""
        factors = self.factors()
        text = [_PAPER]
        text += [paper.NOTE] if self.quantity == "memory" else []
        text += [_ESTIMATED] if any(estimated for _, estimated in factors.values()) else []
        return Section(
            heading=self._name,
            text="\n\n".join(text),
            columns=_columns(self.results),
            rows=[
                [format_count(length), *(self._cell(factors.get((length, k)), length, k) for k in self.results.ks)]
                for length in self.results.lengths
            ],
        )

    def headlines(self) -> list[Headline]:
        """The factor at the greatest length that was measured on both sides, with the smallest K."""
        measured = {key: factor for key, (factor, estimated) in self.factors().items() if not estimated}
        if not measured:
            return []
        length, k = max(measured, key=lambda key: (key[0], -key[1]))
        note = f"N = {format_count(length)}, K = {format_count(k)}"
        if (length, k) in self.published:
            note += f"\npaper: {format_ratio(self.published[length, k])}"
        return [Headline(name=self._name, value=format_ratio(measured[length, k]), note=note)]

    def records(self) -> list[dict[str, object]]:
        """The same for ``results.json``."""
        return [
            {"length": n, "k": k, "factor": factor, "estimated": estimated, "paper": self.published.get((n, k))}
            for (n, k), (factor, estimated) in self.factors().items()
        ]

    @property
    def _name(self) -> str:
        return f"{'Time' if self.quantity == 'seconds' else 'Memory'} saved against ordinary attention, {self.kernel}"

    def _cell(self, factor: tuple[float, bool] | None, length: int, k: int) -> str:
        published = self.published.get((length, k))
        beside = "" if published is None else f" ({format_ratio(published)})"
        if factor is None:
            return MISSING + beside
        return f"{'~' if factor[1] else ''}{format_ratio(factor[0])}{beside}"


def _columns(results: Measurements) -> list[str]:
    return ["N", *(f"K = {format_count(k)}" for k in results.ks)]


def _counted(results: Measurements) -> Section:
    """What the cost model allows, at the same lengths and K."""
    cases = {(row.case.length, row.case.k): row.case for row in results.rows if row.case.k}

    def cell(length: int, k: int) -> str:
        case = cases.get((length, k))
        return MISSING if case is None else " / ".join(format_ratio(ratio) for ratio in layer_ratio(case))

    return Section(
        heading="What counting allows: multiplications / bytes",
        text=_COUNTED,
        columns=_columns(results),
        rows=[[format_count(length), *(cell(length, k) for k in results.ks)] for length in results.lengths],
    )


def _time_chart(tables: Mapping[str, Saving]) -> LogLogChart | None:
    """The paper's Figure 2: time over length, standard layers first."""
    lines = []
    for table in (tables["time_saved_eager"], tables["time_saved_sdpa"]):
        at = table.standard_cost()
        points: list[tuple[int, float]] = []
        estimated: list[tuple[int, float]] = []
        for length in table.results.lengths:
            cost = at(length)
            if cost is not None:
                (estimated if cost[1] else points).append((length, cost[0]))
        lines.append(Line(name=table.standard, points=points, estimated=estimated))
    results = tables["time_saved_eager"].results
    for k in results.ks:
        points = results.points("seconds", contenders.OURS, "forward", k)
        lines.append(Line(name=f"{contenders.OURS}, K = {format_count(k)}", points=points, thick=True))
    return length_chart("seconds", "Inference time of a layer", [line for line in lines if line.points])


def _saved_chart(saving: Saving) -> LogLogChart | None:
    """Time saved over length, a line a K."""
    lines = []
    for k in saving.results.ks:
        row = [(n, *value) for (n, slots), value in saving.factors().items() if slots == k]
        points, estimated = ([(n, factor) for n, factor, guess in row if guess is which] for which in (False, True))
        if row:
            lines.append(Line(name=f"K = {format_count(k)}", points=points, estimated=estimated))
    if not lines:
        return None
    title = "Time saved against the standard layer, eager"
    return LogLogChart(title=title, x_label="tokens N", y_label="times faster", y_format=format_ratio, lines=lines)


def _figures(charts: Mapping[str, LogLogChart]) -> list[Section]:
    captions = {"figure2_time": _FIGURE, "time_saved": _ESTIMATED}
    return [Section(heading=chart.title, figure=chart.svg(), caption=captions[name]) for name, chart in charts.items()]


def _measured(results: Measurements) -> Section:
    """Every measured number, and why others are missing."""
    rows = [
        [
            row.contender + (f", K = {format_count(row.case.k)}" if row.case.k else ""),
            format_count(row.case.length),
            MISSING if row.seconds is None else FORMATS["seconds"](row.seconds),
            MISSING if row.memory is None else FORMATS["memory"](row.memory),
        ]
        for row in results.rows
    ]
    failures = failures_text(results.only(lambda row: row.seconds is None))
    return Section(heading="Measured", text=failures, columns=["", "N", "time", "peak memory"], rows=rows)

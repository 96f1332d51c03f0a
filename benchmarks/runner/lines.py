"""Cost against length: lines on logarithmic axes, as part of a page and as a file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from torch_linformer.reporting.plots import COLORS, MARKERS, render_png, render_svg
from torch_linformer.reporting.tables import format_count

_HEIGHT = 400


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of a chart.

    Attributes:
        name: what the legend calls it.
        points: measured (x, y), both positive, from left to right.
        estimated: further points that nobody measured: dashed, with hollow marks.
        thick: whether it is drawn thick.
    """

    name: str
    points: Sequence[tuple[float, float]]
    estimated: Sequence[tuple[float, float]] = ()
    thick: bool = False


@dataclass(frozen=True, kw_only=True)
class LogLogChart:
    """Lines, in the order of the legend, on two logarithmic axes; x is marked where there are points.

    The title and the labels of the axes also describe the figure to those who cannot see it.
    """

    title: str
    x_label: str
    y_label: str
    y_format: Callable[[float], str]
    lines: Sequence[Line]

    def svg(self) -> str:
        """The figure as an `<svg>` element."""
        return render_svg(self._draw, f"{self.title}: {self.y_label} against {self.x_label}", _HEIGHT)

    def png(self) -> bytes:
        """The figure as a PNG file."""
        return render_png(self._draw, _HEIGHT)

    def _draw(self, figure: Figure) -> None:
        axes = figure.subplots()
        for number, line in enumerate(self.lines):
            color, marker = COLORS[number % len(COLORS)], MARKERS[number % len(MARKERS)]
            width, points = 3.0 if line.thick else 1.6, np.reshape(line.points, (-1, 2))
            axes.plot(*points.T, color=color, marker=marker, linewidth=width, label=line.name)
            if line.estimated:
                estimated = np.reshape(line.estimated, (-1, 2))
                onwards = np.concatenate([points[-1:], estimated])
                axes.plot(*onwards.T, color=color, linewidth=width, linestyle=(0, (2, 2)))
                axes.plot(*estimated.T, color=color, marker=marker, linestyle="", markerfacecolor="none")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set(title=self.title, xlabel=self.x_label, ylabel=self.y_label)
        marked = sorted({x for line in self.lines for x, _ in (*line.points, *line.estimated)})
        axes.set_xticks(marked, [format_count(x) for x in marked])
        axes.set_xticks([], minor=True)
        heights = [y for line in self.lines for _, y in (*line.points, *line.estimated)]
        few_decades = bool(heights) and max(heights) < 30 * min(heights)
        axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if few_decades else (1.0, 3.0)))
        axes.yaxis.set_major_formatter(lambda value, _: self.y_format(value))
        axes.set_yticks([], minor=True)
        if self.lines:
            figure.legend(loc="outside lower left", ncols=2)

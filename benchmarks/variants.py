"""Kinds of attention that are compared, and the parts of a report that the comparisons share."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from torch_linformer.reporting.files import atomic_path
from torch_linformer.reporting.plots import render_png

Run = dict[str, Any]
Section = tuple[tuple, list[Run]]  # what its runs have in common, and the runs


class Variant(NamedTuple):
    """A kind of attention, its options but K, and its line in a figure."""

    title: str
    options: dict[str, Any]
    color: str
    style: Any = "-"  # see matplotlib's Line2D.set_linestyle
    tokens_a_slot: int | None = None

    @property
    def label(self) -> str:
        return self.title if self.tokens_a_slot is None else f"{self.title}, K = N / {self.tokens_a_slot}"


def in_sections(runs: list[Run], names: Collection[str]) -> list[Section]:
    """The runs by what they have under these names, in order."""
    sections: dict[tuple, list[Run]] = {}
    for run in runs:
        sections.setdefault(tuple(run[name] for name in names), []).append(run)
    return sorted(sections.items())


def by_variant(runs: list[Run], variants: Mapping[str, Variant]) -> dict[str, list[Run]]:
    """The runs of each variant that has any, in the order of ``variants``."""
    found = {name: [run for run in runs if run["variant"] == name] for name in variants}
    return {name: each for name, each in found.items() if each}


def draw_curves(
    file: Path,
    sections: list[Section],
    variants: Mapping[str, Variant],
    title: Callable[[tuple], str],
    *,
    height: float,
    values: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **of_axes: Any,
) -> None:
    """Write a figure with the curves of all runs against steps: a row a section, a line a run.

    Args:
        file: PNG.
        sections: of the runs.
        variants: of their lines.
        title: of a row, from what its runs have in common.
        height: of a row, in pixels.
        values: what is drawn of the losses.
        of_axes: see ``matplotlib.axes.Axes.set``.
    """

    def draw(figure: Figure) -> None:
        labeled = {}
        rows = figure.subplots(len(sections), 1, squeeze=False)[:, 0]
        for axes, (common, runs) in zip(rows, sections, strict=True):
            for name, each in by_variant(runs, variants).items():
                variant = variants[name]
                for run in each:
                    steps, losses = np.array(run["curve"]).T
                    (line,) = axes.plot(
                        steps, values(losses), linestyle=variant.style, color=variant.color, linewidth=1.3
                    )
                    labeled.setdefault(variant.label, line)
            axes.set(title=title(common), xlabel="steps", **of_axes)
            if axes.get_yscale() == "log":
                axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0)))
                axes.yaxis.set_major_formatter("{x:,.0f}")
                axes.yaxis.set_minor_locator(NullLocator())
        figure.legend(labeled.values(), labeled.keys(), loc="outside lower center", ncols=2, fontsize=10)

    with atomic_path(file) as path:
        path.write_bytes(render_png(draw, height=height * len(sections) + 10 * len(variants)))

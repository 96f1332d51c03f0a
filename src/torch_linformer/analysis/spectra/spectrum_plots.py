"""Figures of a spectrum: the paper's Figure 1."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from torch_linformer.analysis.spectra.spectrum import Spectrum
from torch_linformer.reporting.drawing import BLUE, INK, draw_cells, draw_figure, render_png, render_svg
from torch_linformer.reporting.tables import format_count

_WIDTH = 980  # two panels side by side, in CSS pixels
_MOST_NUMBERED_HEADS = 16  # beyond these a number does not fit into a cell


def plot_spectrum(spectrum: Spectrum, *, index: int | None = None) -> Figure:
    """Draw a spectrum as the paper's Figure 1.

    On the left is the normalized cumulative singular value of every layer, mean over its heads, against the index; on
    the right that of every layer and head at one index.

    Args:
        spectrum: what :func:`torch_linformer.analysis.measure_spectrum` found.
        index: how many of the largest singular values the right side sums; a quarter of the length by default, which
            is the paper's 128 of 512.

    Raises:
        ValueError: fewer singular values were computed.
    """
    index = default_index(spectrum) if index is None else index
    spectrum.cumulative_at(index)
    return draw_figure(lambda figure: _draw(figure, spectrum, index), _height(spectrum), _WIDTH)


def default_index(spectrum: Spectrum) -> int:
    """A quarter of the length, as the paper's 128 of 512; the last that was computed where that is less."""
    return min(max(1, spectrum.length // 4), spectrum.cumulative.shape[-1])


def spectrum_svg(spectrum: Spectrum, index: int) -> str:
    """:func:`plot_spectrum` as an ``<svg>`` element."""
    description = (
        f"Normalized cumulative singular values of {format_count(spectrum.architecture.layers)} layers on documents of "
        f"{format_count(spectrum.length)} tokens, and of every head at index {format_count(index)}"
    )
    return render_svg(lambda figure: _draw(figure, spectrum, index), description, _height(spectrum), _WIDTH)


def spectrum_png(spectrum: Spectrum, index: int) -> bytes:
    """:func:`plot_spectrum` as a PNG file."""
    return render_png(lambda figure: _draw(figure, spectrum, index), _height(spectrum), _WIDTH)


def _height(spectrum: Spectrum) -> float:
    return max(340.0, 80 + 26.0 * spectrum.architecture.layers)


def _draw(figure: Figure, spectrum: Spectrum, index: int) -> None:
    curves, heads = figure.subplots(1, 2)
    _draw_curves(curves, spectrum, index)
    _draw_heads(heads, spectrum, index)


def _draw_curves(axes: Axes, spectrum: Spectrum, index: int) -> None:
    layers = spectrum.cumulative.mean(dim=1)
    indices = range(1, layers.shape[-1] + 1)
    for number, curve in enumerate(layers.tolist()):
        # From pale at the first layer to full at the last, which spares a legend of dozens of lines.
        depth = number / max(1, len(layers) - 1)
        named = number in (0, len(layers) - 1)
        name = f"layer {number + 1}" if named else None
        axes.plot(indices, curve, color=BLUE, alpha=0.25 + 0.75 * depth, linewidth=1.4, label=name)
    axes.axvline(index, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    axes.set(
        title=f"Layers, N = {format_count(spectrum.length)}",
        xlabel="index of the singular value",
        ylabel="normalized cumulative singular value",
        ylim=(0, 1.02),
        xlim=(0, layers.shape[-1]),
    )
    axes.xaxis.set_major_formatter(lambda value, _: format_count(value))
    axes.legend(loc="lower right")


def _draw_heads(axes: Axes, spectrum: Spectrum, index: int) -> None:
    values = spectrum.cumulative_at(index).tolist()
    cells = {(head, layer): value for layer, row in enumerate(values, 1) for head, value in enumerate(row, 1)}
    lowest, highest = min(cells.values()), max(cells.values())
    spread = max(highest - lowest, 1e-9)
    numbered = len(values[0]) <= _MOST_NUMBERED_HEADS
    texts = {place: f"{value:.2f}".removeprefix("0") for place, value in cells.items() if numbered}
    draw_cells(axes, {place: (value - lowest) / spread for place, value in cells.items()}, texts)
    axes.set(
        title=f"Heads at index {format_count(index)}: {lowest:.2f} to {highest:.2f}",
        xlabel="head",
        ylabel="layer",
        xlim=(0.5, len(values[0]) + 0.5),
        ylim=(0.5, len(values) + 0.5),
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))

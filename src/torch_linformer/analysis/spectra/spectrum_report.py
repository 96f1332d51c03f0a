"""What ``linformer spectrum`` leaves in its folder: ``spectrum.json``, the figures as PNG, and ``report.html``."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from torch_linformer.analysis.spectra.advice import (
    BOUND,
    BY_RANK,
    LEVELS,
    Advice,
    k_by_rank,
    k_that_holds,
    loss_beside_window,
    suggest_k,
    which_k_is_enough,
)
from torch_linformer.analysis.spectra.observing import WINDOW
from torch_linformer.analysis.spectra.spectrum import LowRankErrors, Spectrum
from torch_linformer.reporting.files import write_bytes, write_text
from torch_linformer.reporting.lines import COLORS, MARKERS
from torch_linformer.reporting.plots import BLUE, INK, draw_cells, draw_figure, render_png, render_svg
from torch_linformer.reporting.report import Headline, Report, Section, name_in_title, render_html
from torch_linformer.reporting.tables import MISSING, format_count, format_percent, format_ratio

_WIDTH = 980  # two panels side by side, in CSS pixels
_MOST_NUMBERED_HEADS = 16  # beyond these a number does not fit into a cell
SPECTRUM_FILE = "spectrum.json"
_FIGURE = (
    "Left: the share that the largest singular values of the context mapping P have in the sum of all, mean over the "
    "heads of a layer, pale at the first layer and full at the last. Right: that share of every head at one index. "
    "Means over documents; the higher a curve, the lower the rank of the attention."
)
_ADVICE = (
    "The smallest K that keep a share of the energy Σσ² of P; a layer takes the largest of its heads. ε is the error "
    "‖P − P_K‖ / ‖P‖ that the best P of rank K then has, and Theorem 2 the K that the paper's worst case asks for at "
    "this ε. Saving: multiplications and intermediate bytes of the layers with ordinary attention over those of a "
    "Linformer with these K, from the cost model, feed-forward included; of only the attention in brackets. Below 1 "
    "it costs more. This is the rank of P, and no statement about what a model with slots beside a window needs."
)
_ERRORS = (
    "‖P̃V − PV‖ / ‖PV‖: the relative error of an attention's output with K slots, measured, mean over documents, heads "
    "and layers. 0 is exact, 1 is as wrong as an output of zeros, and more than 1 is worse than that. The first three "
    "rows compress only the values: by a random Gaussian matrix, by means of segments, and by a least-squares fit for "
    "each head. The random matrix is that of Theorem 1, a bound and no way to build a model: it adds noise, whose root "
    "mean square is √((‖P‖² ‖V‖² / ‖PV‖² + 1) / K) of the output, above 1 until K is large. The others compress keys "
    "and values, as a model does: means of segments; input-dependent slots before any training; no slots, but a window "
    f"of {WINDOW} and the first and last token; slots and window together."
)
_OWN = (
    "The model attends to slots: its P is what its queries and keys would give in ordinary attention, and the last "
    "row what its own slots, window and exact tokens lose."
)
_KINDS = {
    "random": "random matrix (Theorem 1), values only",
    "segment_means": "segment means, values only",
    "fitted": "fitted, values only",
    "segment_means_of_keys_too": "segment means",
    "slots": "input-dependent slots",
    "window_and_exact": "window, no slots",
    "slots_window_and_exact": "slots and window",
    "own_slots": "its own slots and window",
}


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


def loss_svg(losses: LowRankErrors, description: str) -> str:
    """Draw the errors of low-rank outputs, mean over layers and heads, against K, as an ``<svg>`` element."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        kinds = [kind for kind in _KINDS if kind in losses.errors]
        for kind, color, marker in zip(kinds, COLORS, MARKERS, strict=False):
            means = losses.errors[kind].mean(dim=(0, 1)).tolist()
            axes.plot(losses.ks, means, color=color, marker=marker, label=_KINDS[kind])
        axes.axhline(1, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_xscale("log", base=2)
        axes.set_xticks(losses.ks, map(format_count, losses.ks))
        axes.set(xlabel="K", ylabel="relative error of the output", ylim=(0, 1.05))
        figure.legend(loc="outside lower left", ncols=2)

    return render_svg(draw, description, 420)


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


def write_spectrum_report(
    folder: Path, spectra: Sequence[Spectrum], short: Sequence[int], facts: Mapping[str, Any], index: int | None
) -> Report:
    """Fill the folder, where every file appears whole; returns what the page shows.

    Args:
        folder: what to fill.
        spectra: one for each length.
        short: documents that were too short, for each length.
        facts: ``model``, ``data``, ``command`` and ``settings``, as given, and the ``machine``.
        index: at which singular value heads are compared; None for a quarter of each length.
    """
    today, records, headlines, sections = date.today().isoformat(), [], [], []
    for spectrum, too_short in zip(spectra, short, strict=True):
        at = default_index(spectrum) if index is None else index
        advice = {str(level): suggest_k(spectrum, level) for level in LEVELS}
        suggested = {level: suggestion.as_record() for level, suggestion in advice.items()}
        if loss_beside_window(spectrum):
            suggested["loss"] = {"bound": BOUND, "layers": [k_that_holds(spectrum)] * spectrum.architecture.layers}
        records.append({**spectrum.as_record(), "shorter_documents": too_short, "suggested_k": suggested})
        headlines += _headlines(spectrum)
        sections += _sections(spectrum, at, too_short, advice.values())
        write_bytes(folder / f"spectrum-{spectrum.length}.png", spectrum_png(spectrum, at))
    architecture = asdict(spectra[0].architecture)
    record = {**facts, "date": today, "architecture": architecture, "spectra": records}
    write_text(folder / SPECTRUM_FILE, json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    report = Report(
        title=f"The spectrum of attention in {name_in_title(facts['model'])}",
        verdict="\n".join(map(which_k_is_enough, spectra)),
        lead=f"On documents of {name_in_title(facts['data'])}, {today}.",
        headlines=headlines,
        sections=sections,
        settings=facts["settings"],
        machine=facts["machine"],
        command=facts["command"],
    )
    write_text(folder / "report.html", render_html(report))
    return report


def _headlines(spectrum: Spectrum) -> list[Headline]:
    losses, k, rank = loss_beside_window(spectrum), k_that_holds(spectrum), k_by_rank(spectrum)
    at, headlines = f"{format_count(spectrum.length)} tokens", list[Headline]()
    if losses:
        note = f"without slots {losses[0]:.3f} is lost" + (f", with these {losses[k]:.3f}" if k else "")
        headlines.append(Headline(f"K that is enough, {at}", "none tried" if k is None else k, note))
    most = f">{format_count(spectrum.singular_values.shape[-1])}"
    note = f"{BY_RANK} % of the energy, in the layer that needs most"
    return [*headlines, Headline(f"K by the rank of P, {at}", most if rank is None else rank, note)]


def _sections(spectrum: Spectrum, index: int, shorter: int, advice: Iterable[Advice]) -> list[Section]:
    tokens = f"{format_count(spectrum.length)} tokens"
    share = format_percent(float(spectrum.cumulative_at(index).mean()))
    text = (
        f"{format_count(spectrum.documents)} documents; {format_count(shorter)} that were met are shorter. Of all "
        f"singular values the first {format_count(index)} have {share} of the sum, mean over heads."
    )
    if spectrum.method == "randomised":
        text += (
            f" The first {format_count(spectrum.singular_values.shape[-1])} values by a randomised method: the values "
            f"it lacks hold at most {format_percent(float(spectrum.missing_energy.max()))} of a head's energy, and the "
            f"curves are off by at most {float(spectrum.cumulative_error.max()):.3f}. K by energy may be too large, "
            "never too small."
        )
    return [
        *_errors(spectrum, tokens),
        Section(f"Singular values, {tokens}", text=text, figure=spectrum_svg(spectrum, index), caption=_FIGURE),
        Section(
            f"K that keeps the energy, {tokens}",
            text=_ADVICE,
            columns=("energy", "ε", "K of the layers", "Theorem 2", "multiplications", "memory"),
            rows=[_advice_row(spectrum, suggestion) for suggestion in advice],
        ),
    ]


def _advice_row(spectrum: Spectrum, advice: Advice) -> list[object]:
    """K of each layer, the theorem's, and the saving."""
    most = spectrum.singular_values.shape[-1]
    return [
        f"{advice.level} %",
        f"{advice.eps:.2f}",
        ", ".join(f">{most}" if k is None else str(k) for k in advice.layers),
        advice.theorem_k,
        _ratios(advice.multiplications, advice.attention_multiplications),
        _ratios(advice.memory, advice.attention_memory),
    ]


def _ratios(whole: float | None, attention: float | None) -> str:
    if whole is None or attention is None:
        return MISSING
    return f"{format_ratio(whole)} ({format_ratio(attention)})"


def _errors(spectrum: Spectrum, tokens: str) -> list[Section]:
    """Measured errors for each K, mean over layers and heads, where they were measured."""
    errors = spectrum.low_rank
    if errors is None:
        return []
    kinds, measured = [kind for kind in _KINDS if kind in errors.errors], format_count(errors.measured_on)
    documents = f"Measured on {measured} documents; nothing was fitted to them."
    if errors.fitted_on:
        documents = f"Fitted on {format_count(errors.fitted_on)} documents, measured on {measured} others."
    return [
        Section(
            f"What low-rank outputs lose, {tokens} (0: exact, 1: as wrong as zeros)",
            text=f"{_ERRORS} {documents}" + (f"\n\n{_OWN}" if "own_slots" in kinds else ""),
            columns=("K", *map(format_count, errors.ks)),
            rows=[
                [_KINDS[kind], *(f"{error:.3f}" for error in errors.errors[kind].mean(dim=(0, 1)).tolist())]
                for kind in kinds
            ],
            figure=loss_svg(errors, f"What low-rank outputs lose by K, {tokens}"),
            caption="Lines above 1 leave the figure: the table has them.",
        )
    ]

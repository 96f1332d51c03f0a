"""What ``linformer spectrum`` leaves in its folder: ``spectrum.json``, the figures as PNG, and ``report.html``."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from functools import partial
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.low_rank import WINDOW, LowRankErrors
from torch_linformer.analysis.spectrum import (
    BOUND,
    BY_RANK,
    LEVELS,
    Architecture,
    Spectrum,
    k_by_rank,
    k_that_holds,
    loss_beside_window,
    measure_spectrum,
    suggest_k,
    which_k_is_enough,
)
from torch_linformer.data.packing import beginnings
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TEXT
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import machine_and_versions
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.folder import check_free, new_folder
from torch_linformer.opening.load import check_lengths, load_backbone, load_own_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.files import write_bytes, write_text
from torch_linformer.reporting.plots import BLUE, COLORS, INK, MARKERS, draw_cells, draw_figure, render_png, render_svg
from torch_linformer.reporting.report import Headline, Report, Section, name_in_title, render_html
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import MISSING, format_count, format_duration, format_percent, format_ratio

_WIDTH = 980  # two panels side by side, in CSS pixels
_MOST_NUMBERED_HEADS = 16  # beyond these a number does not fit into a cell
SPECTRUM_FILE = "spectrum.json"
# The attention whose K holds, as options of a training.
_AS_MEASURED = (
    f"--window {WINDOW} --model projection=dynamic --model slot_mass=learned --model exact_first=1 --model exact_last=1"
)
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
    "row what its own slots, window, first and last tokens lose."
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
    return draw_figure(partial(_draw, spectrum=spectrum, index=index), _height(spectrum), _WIDTH)


def default_index(spectrum: Spectrum) -> int:
    """A quarter of the length, as the paper's 128 of 512; the last that was computed where that is less."""
    return min(max(1, spectrum.length // 4), spectrum.cumulative.shape[-1])


def _height(spectrum: Spectrum) -> float:
    return max(340.0, 80 + 26.0 * spectrum.architecture.layers)


def _draw(figure: Figure, spectrum: Spectrum, index: int) -> None:
    curves, heads = figure.subplots(1, 2)
    layers = spectrum.cumulative.mean(dim=1)
    indices = range(1, layers.shape[-1] + 1)
    for number, curve in enumerate(layers.tolist()):
        # From pale at the first layer to full at the last, which spares a legend of dozens of lines.
        depth = number / max(1, len(layers) - 1)
        name = f"layer {number + 1}" if number in (0, len(layers) - 1) else None
        curves.plot(indices, curve, color=BLUE, alpha=0.25 + 0.75 * depth, linewidth=1.4, label=name)
    curves.axvline(index, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    curves.set(
        title=f"Layers, N = {format_count(spectrum.length)}",
        xlabel="index of the singular value",
        ylabel="normalized cumulative singular value",
        ylim=(0, 1.02),
        xlim=(0, layers.shape[-1]),
    )
    curves.xaxis.set_major_formatter(lambda value, _: format_count(value))
    curves.legend(loc="lower right")

    values = spectrum.cumulative_at(index).tolist()
    cells = {(head, layer): value for layer, row in enumerate(values, 1) for head, value in enumerate(row, 1)}
    lowest, highest = min(cells.values()), max(cells.values())
    spread = max(highest - lowest, 1e-9)
    numbered = len(values[0]) <= _MOST_NUMBERED_HEADS
    texts = {place: f"{value:.2f}".removeprefix("0") for place, value in cells.items() if numbered}
    draw_cells(heads, {place: (value - lowest) / spread for place, value in cells.items()}, texts)
    heads.set(
        title=f"Heads at index {format_count(index)}: {lowest:.2f} to {highest:.2f}",
        xlabel="head",
        ylabel="layer",
        xlim=(0.5, len(values[0]) + 0.5),
        ylim=(0.5, len(values) + 0.5),
    )
    for axis in (heads.xaxis, heads.yaxis):
        axis.set_major_locator(MaxNLocator(12, integer=True))


def run_spectrum(
    model: str,
    data: str,
    *,
    text_column: str | None,
    lengths: Sequence[int],
    documents: int,
    index: int | None,
    exact_up_to: int,
    rank: int,
    seed: int,
    output: Path,
    device: str,
    command: str,
) -> None:
    """Measure the spectra of a model at each length and write their report into a new folder.

    Raises:
        InputError: anything is wrong with the options, the model, the documents or the folder.
    """
    if not lengths:
        raise InputError("--length: give at least one, such as --length 512")
    for length in lengths:
        computed = length if length <= exact_up_to else min(length, rank)
        if index is not None and index > computed:
            raise InputError(f"--index {index}: at --length {length} only {computed} singular values are computed")
    check_free(output)
    device = resolve_device(device)
    source = encoder_folder(model)
    backbone, tokenizer = load_backbone(source, device), load_own_tokenizer(source)
    check_lengths(backbone, model, lengths)
    screen = Screen()
    corpus = load_documents(data, TEXT, options=DataOptions(text_column=text_column))
    for note in corpus.notes:
        screen.say(note)
    drawn = [beginnings(tokenizer, corpus.dataset, length, documents, seed) for length in lengths]
    for group in drawn:
        screen.say(group.describe(documents))
    try:
        spectra = _measure(backbone, [group.documents for group in drawn], screen, exact_up_to, rank)
    except ValueError as error:
        raise InputError(f"{model}: {error}") from None
    settings = {
        "--length": ",".join(map(str, lengths)),
        "--documents": str(documents),
        "--exact-up-to": str(exact_up_to),
        "--rank": str(rank),
        "--seed": str(seed),
    }
    machine, today = machine_and_versions(device), date.today().isoformat()
    facts = {"model": model, "data": data, "command": command, "settings": settings, "machine": machine, "date": today}
    records, sections = [], []
    with new_folder(output) as folder:
        for spectrum, group in zip(spectra, drawn, strict=True):
            at = default_index(spectrum) if index is None else index
            advice = {str(level): suggest_k(spectrum, level).as_record() for level in LEVELS}
            if loss_beside_window(spectrum):
                advice["loss"] = {"bound": BOUND, "layers": [k_that_holds(spectrum)] * spectrum.architecture.layers}
            records.append({**spectrum.as_record(), "shorter_documents": group.shorter, "suggested_k": advice})
            sections += _sections(spectrum, at, group.shorter)
            png = render_png(partial(_draw, spectrum=spectrum, index=at), _height(spectrum), _WIDTH)
            write_bytes(folder / f"spectrum-{spectrum.length}.png", png)
        record = {**facts, "architecture": asdict(spectra[0].architecture), "spectra": records}
        write_text(folder / SPECTRUM_FILE, json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
        report = Report(
            title=f"The spectrum of attention in {name_in_title(model)}",
            verdict="\n".join(map(which_k_is_enough, spectra)),
            lead=f"On documents of {name_in_title(data)}, {today}.",
            headlines=[headline for spectrum in spectra for headline in _headlines(spectrum)],
            sections=sections,
            settings=settings,
            machine=machine,
            command=command,
        )
        write_text(folder / "report.html", render_html(report))
    screen.report(report)
    screen.say(f"{SPECTRUM_FILE}, the figures and report.html are in {output}")
    which, options = (
        ("that is enough", f" {_AS_MEASURED}") if any(map(loss_beside_window, spectra)) else ("of 95 %", "")
    )
    screen.say(f"to train with the K {which}:  linformer train --k @{output / SPECTRUM_FILE} --max-length …{options}")


def _measure(
    model: PreTrainedModel, groups: Sequence[Sequence[Tensor]], screen: Screen, exact_up_to: int, rank: int
) -> list[Spectrum]:
    """:func:`measure_spectrum` for documents of each length in turn, with its progress on the screen."""
    layers = Architecture.of(model).layers * sum(map(len, groups))
    columns = (BarColumn(), TextColumn("{task.fields[line]}", markup=False), TimeRemainingColumn())
    screen.start_bar(*columns, total=layers, completed=0)
    spectra = []
    try:
        for group in groups:
            sizes = f"N {format_count(len(group[0]))}, {format_count(len(group))} documents"

            def show(document: int, layer: int, sizes: str = sizes) -> None:
                if screen.bar is not None:
                    line = f"{sizes}: layer {layer + 1} of document {document + 1}"
                    screen.bar.update(screen.task, advance=1, line=line)

            start = time.perf_counter()
            spectra.append(measure_spectrum(model, group, exact_up_to=exact_up_to, rank=rank, on_layer=show))
            screen.say(f"{sizes}: {spectra[-1].method} in {format_duration(time.perf_counter() - start)}")
    finally:
        screen.stop()
    return spectra


def _headlines(spectrum: Spectrum) -> list[Headline]:
    losses, k, rank = loss_beside_window(spectrum), k_that_holds(spectrum), k_by_rank(spectrum)
    at, headlines = f"{format_count(spectrum.length)} tokens", list[Headline]()
    if losses:
        note = f"without slots {losses[0]:.3f} is lost" + (f", with these {losses[k]:.3f}" if k else "")
        headlines.append(Headline(f"K that is enough, {at}", "none tried" if k is None else k, note))
    most = f">{format_count(spectrum.singular_values.shape[-1])}"
    note = f"{BY_RANK} % of the energy, in the layer that needs most"
    return [*headlines, Headline(f"K by the rank of P, {at}", most if rank is None else rank, note)]


def _sections(spectrum: Spectrum, index: int, shorter: int) -> list[Section]:
    tokens, values = f"{format_count(spectrum.length)} tokens", spectrum.singular_values.shape[-1]
    share = format_percent(float(spectrum.cumulative_at(index).mean()))
    text = (
        f"{format_count(spectrum.documents)} documents; {format_count(shorter)} that were met are shorter. Of all "
        f"singular values the first {format_count(index)} have {share} of the sum, mean over heads."
    )
    if spectrum.method == "randomised":
        text += (
            f" The first {format_count(values)} values by a randomised method: the values it lacks hold at most "
            f"{format_percent(float(spectrum.missing_energy.max()))} of a head's energy, and the curves are off by at "
            f"most {float(spectrum.cumulative_error.max()):.3f}. K by energy may be too large, never too small."
        )
    figure = render_svg(
        partial(_draw, spectrum=spectrum, index=index),
        f"Normalized cumulative singular values of {format_count(spectrum.architecture.layers)} layers on documents of "
        f"{tokens}, and of every head at index {format_count(index)}",
        _height(spectrum),
        _WIDTH,
    )
    rows = []
    for advice in (suggest_k(spectrum, level) for level in LEVELS):
        layers = ", ".join(f">{values}" if k is None else str(k) for k in advice.layers)
        saving = [MISSING, MISSING]
        if ratios := advice.saving:
            saving = [
                f"{format_ratio(ratios[name])} ({format_ratio(ratios[f'attention_{name}'])})"
                for name in ("multiplications", "memory")
            ]
        rows.append([f"{advice.level} %", f"{advice.eps:.2f}", layers, advice.theorem_k, *saving])
    columns = ("energy", "ε", "K of the layers", "Theorem 2", "multiplications", "memory")
    return [
        *_losses(spectrum.low_rank, tokens),
        Section(f"Singular values, {tokens}", text=text, figure=figure, caption=_FIGURE),
        Section(f"K that keeps the energy, {tokens}", text=_ADVICE, columns=columns, rows=rows),
    ]


def _losses(losses: LowRankErrors | None, tokens: str) -> list[Section]:
    """Measured errors for each K, mean over layers and heads, where they were measured."""
    if losses is None:
        return []
    means = {
        name: losses.errors[kind].mean(dim=(0, 1)).tolist() for kind, name in _KINDS.items() if kind in losses.errors
    }
    measured = format_count(losses.measured_on)
    documents = f"Measured on {measured} documents; nothing was fitted to them."
    if losses.fitted_on:
        documents = f"Fitted on {format_count(losses.fitted_on)} documents, measured on {measured} others."

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for (name, by_k), color, marker in zip(means.items(), COLORS, MARKERS, strict=False):
            axes.plot(losses.ks, by_k, color=color, marker=marker, label=name)
        axes.axhline(1, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.set_xscale("log", base=2)
        axes.set_xticks(losses.ks, map(format_count, losses.ks))
        axes.set(xlabel="K", ylabel="relative error of the output", ylim=(0, 1.05))
        figure.legend(loc="outside lower left", ncols=2)

    return [
        Section(
            f"What low-rank outputs lose, {tokens} (0: exact, 1: as wrong as zeros)",
            text=f"{_ERRORS} {documents}" + (f"\n\n{_OWN}" if "own_slots" in losses.errors else ""),
            columns=("K", *map(format_count, losses.ks)),
            rows=[[name, *(f"{loss:.3f}" for loss in by_k)] for name, by_k in means.items()],
            figure=render_svg(draw, f"What low-rank outputs lose by K, {tokens}", 420),
            caption="Lines above 1 leave the figure: the table has them.",
        )
    ]

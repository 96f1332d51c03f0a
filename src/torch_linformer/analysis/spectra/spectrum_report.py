"""What ``linformer spectrum`` leaves in its folder: ``spectrum.json``, the figures as PNG, and ``report.html``."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

from torch_linformer.analysis.spectra.advice import LEVELS, Advice, suggest_k
from torch_linformer.analysis.spectra.spectrum import Spectrum
from torch_linformer.analysis.spectra.spectrum_plots import default_index, spectrum_png, spectrum_svg
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.reporting.files import atomic_path, write_text
from torch_linformer.reporting.html import Headline, Section, render_report
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import MISSING, format_count, format_percent, format_ratio

SPECTRUM_FILE = "spectrum.json"
_PACKAGES = ("torch-linformer", "torch", "transformers")

_FIGURE = (
    "Left: the share that the largest singular values of the context mapping P have in the sum of all, mean over the "
    "heads of a layer, pale at the first layer and full at the last. Right: that share of every head at one index. "
    "Means over documents; the higher a curve, the lower the rank of the attention."
)
_ADVICE = (
    "The smallest K that keep a share of the energy Σσ² of P; a layer takes the largest of its heads. ε is the error "
    "‖P − P_K‖ / ‖P‖ that the best P of rank K then has, and Theorem 2 the K that the paper's worst case asks for at "
    "this ε. Saving: multiplications and intermediate bytes of the layers with ordinary attention over those of a "
    "Linformer with these K, from the cost model, feed-forward included; of the attention alone in brackets. Below 1 "
    "it costs more."
)
_ERRORS = (
    "‖P̃V − PV‖ / ‖PV‖, measured, mean over documents, heads and layers, when the values are compressed into K slots: "
    "by a Gaussian matrix (Theorem 1), by segment means, and by a least-squares fit for each head. The last column "
    "compresses keys too and takes the softmax over slots, as a Linformer with segment means does."
)
_KINDS = {
    "random": "random",
    "segment_means": "segment means",
    "fitted": "fitted",
    "segment_means_of_keys_too": "segment means, keys too",
}


@dataclass(frozen=True, kw_only=True)
class SpectrumRun:
    """Everything a run has found, and how.

    Attributes:
        model: its name or folder, as given.
        data: where the documents came from, as given.
        command: the command.
        device: where it was computed.
        settings: the options, as text.
        spectra: a spectrum a length.
        shorter: for each, how many documents were too short.
        index: at which singular value heads are compared; None for a quarter of each length.
    """

    model: str
    data: str
    command: str
    device: str
    settings: Mapping[str, str]
    spectra: Sequence[Spectrum]
    shorter: Sequence[int]
    index: int | None = None

    def index_of(self, spectrum: Spectrum) -> int:
        """The index that heads are compared at."""
        return default_index(spectrum) if self.index is None else self.index

    def advice(self, spectrum: Spectrum) -> list[Advice]:
        """K for every level."""
        return [suggest_k(spectrum, level) for level in LEVELS]


def write_spectrum_report(folder: Path, run: SpectrumRun) -> None:
    """Fill the folder; every file appears whole."""
    for spectrum in run.spectra:
        with atomic_path(folder / f"spectrum-{spectrum.length}.png") as path:
            path.write_bytes(spectrum_png(spectrum, run.index_of(spectrum)))
    record = _record(run)
    write_text(folder / SPECTRUM_FILE, json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
    title = f"The spectrum of attention in {Path(run.model).name}"
    sections = [section for spectrum in run.spectra for section in _sections(run, spectrum)]
    sections.append(Section(heading="Settings", columns=("option", "value"), rows=list(run.settings.items())))
    sections.append(Section(heading="Machine and versions", columns=("", ""), rows=list(record["machine"].items())))
    lead = f"On documents of {run.data}, {record['date']}."
    page = render_report(title, sections, run.command, lead=lead, headlines=_headlines(run))
    write_text(folder / "report.html", page)


def show_spectra(run: SpectrumRun, output: Path, screen: Screen) -> None:
    """The tables at the end of a run, and where everything lies."""
    for spectrum in run.spectra:
        tokens = f"{format_count(spectrum.length)} tokens"
        screen.table(f"K that keeps the energy, {tokens}", *_advice_table(spectrum, run.advice(spectrum)))
        if spectrum.low_rank is not None:
            screen.table(f"‖P̃V − PV‖ / ‖PV‖, {tokens}", *_error_table(spectrum))
    screen.say(f"{SPECTRUM_FILE}, the figures and report.html are in {output}")
    screen.say(f"to train with the K of 95 %:  linformer train --k @{output / SPECTRUM_FILE} --max-length …")


def _advice_table(spectrum: Spectrum, advice: Sequence[Advice]) -> tuple[Sequence[str], list[list[object]]]:
    """Columns and rows: K of each layer, the theorem's, and the saving, for each level."""
    columns = ("energy", "ε", "K of the layers", "Theorem 2", "multiplications", "memory")
    rows: list[list[object]] = [
        [
            f"{each.level} %",
            f"{each.eps:.2f}",
            each.as_option() or _unknown(spectrum, each),
            each.theorem_k,
            _ratios(each.multiplications, each.attention_multiplications),
            _ratios(each.memory, each.attention_memory),
        ]
        for each in advice
    ]
    return columns, rows


def _error_table(spectrum: Spectrum) -> tuple[Sequence[str], list[list[object]]]:
    """Columns and rows: measured errors for each K, mean over layers and heads."""
    assert spectrum.low_rank is not None
    kinds = [kind for kind in _KINDS if kind in spectrum.low_rank.errors]
    rows: list[list[object]] = [
        [f"K {k}", *(f"{float(spectrum.low_rank.errors[kind][..., column].mean()):.3f}" for kind in kinds)]
        for column, k in enumerate(spectrum.low_rank.ks)
    ]
    return ("slots", *(_KINDS[kind] for kind in kinds)), rows


def _record(run: SpectrumRun) -> dict[str, Any]:
    spectra = [
        {
            **spectrum.as_record(),
            "shorter_documents": shorter,
            "suggested_k": {str(advice.level): advice.as_record() for advice in run.advice(spectrum)},
        }
        for spectrum, shorter in zip(run.spectra, run.shorter, strict=True)
    ]
    facts = {name: getattr(run, name) for name in ("model", "data", "command", "settings")}
    machine = {**machine_facts(run.device), **package_versions(_PACKAGES)}
    facts |= {"date": date.today().isoformat(), "machine": machine}
    return {**facts, "architecture": asdict(run.spectra[0].architecture), "spectra": spectra}


def _sections(run: SpectrumRun, spectrum: Spectrum) -> list[Section]:
    index, shorter = run.index_of(spectrum), run.shorter[run.spectra.index(spectrum)]
    tokens = f"{format_count(spectrum.length)} tokens"
    text = f"{format_count(spectrum.documents)} documents; {format_count(shorter)} that were met are shorter."
    if spectrum.method == "randomised":
        text += (
            f" The first {format_count(spectrum.singular_values.shape[-1])} values by a randomised method: the values "
            f"it lacks hold at most {format_percent(float(spectrum.missing_energy.max()))} of a head's energy, and the "
            f"curves are off by at most {float(spectrum.cumulative_error.max()):.3f}. K by energy may be too large, "
            "never too small."
        )
    columns, rows = _advice_table(spectrum, run.advice(spectrum))
    sections = [
        Section(heading=tokens, text=text, figure=spectrum_svg(spectrum, index), caption=_FIGURE),
        Section(heading=f"Choosing K, {tokens}", text=_ADVICE, columns=columns, rows=rows),
    ]
    if spectrum.low_rank is not None:
        columns, rows = _error_table(spectrum)
        fitted, measured = spectrum.low_rank.fitted_on, spectrum.low_rank.measured_on
        documents = f"Fitted on {format_count(fitted)} documents, measured on {format_count(measured)} others."
        heading = f"What low-rank outputs lose, {tokens}"
        sections.append(Section(heading=heading, text=f"{_ERRORS} {documents}", columns=columns, rows=rows))
    return sections


def _headlines(run: SpectrumRun) -> list[Headline]:
    headlines = []
    for spectrum in run.spectra:
        index = run.index_of(spectrum)
        value, length = float(spectrum.cumulative_at(index).mean()), format_count(spectrum.length)
        name = f"first {format_count(index)} of {length} singular values"
        headlines.append(Headline(name=name, value=format_percent(value), note="of the sum of all, mean over heads"))
    return headlines


def _unknown(spectrum: Spectrum, advice: Advice) -> str:
    """The layers' K where some are beyond the values that were computed."""
    most = spectrum.singular_values.shape[-1]
    return ",".join(f">{most}" if k is None else str(k) for k in advice.layers)


def _ratios(whole: float | None, attention: float | None) -> str:
    if whole is None or attention is None:
        return MISSING
    return f"{format_ratio(whole)} ({format_ratio(attention)})"

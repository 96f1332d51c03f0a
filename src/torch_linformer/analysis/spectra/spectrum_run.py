"""The spectra of a model and of documents at several lengths, as ``linformer spectrum`` measures and writes them."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.spectra.advice import loss_beside_window
from torch_linformer.analysis.spectra.measurement import architecture_of, measure_spectrum
from torch_linformer.analysis.spectra.slot_outputs import WINDOW
from torch_linformer.analysis.spectra.spectrum import Spectrum
from torch_linformer.analysis.spectra.spectrum_report import SPECTRUM_FILE, write_spectrum_report
from torch_linformer.data.equal_lengths import beginnings
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TEXT
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.new_folder import check_free, new_folder
from torch_linformer.opening.pretrained import check_lengths, load_backbone
from torch_linformer.opening.tokenizers import load_own_tokenizer
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_duration

# The attention whose K holds, as options of a training.
AS_MEASURED = (
    f"--projection dynamic --sharing kv_per_head --slot-mass learned --window {WINDOW} --exact-first 1 --exact-last 1"
)


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
    _check_options(lengths, index, exact_up_to, rank)
    check_free(output)
    device = resolve_device(device)
    source = encoder_folder(model)
    backbone, tokenizer = load_backbone(source, device), load_own_tokenizer(source)
    check_lengths(backbone, model, lengths)
    screen = Screen()
    corpus = load_documents(data, TEXT, options=DataOptions(text_column=text_column))
    for note in corpus.notes:
        screen.say(note)
    drawn = [beginnings(tokenizer, corpus.dataset, each, documents, seed) for each in lengths]
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
    machine = {**machine_facts(device), **package_versions(("torch-linformer", "torch", "transformers"))}
    facts = {"model": model, "data": data, "command": command, "settings": settings, "machine": machine}
    shorter = [group.shorter for group in drawn]
    with new_folder(output) as folder:
        report = write_spectrum_report(folder, spectra, shorter, facts, index)
    screen.report(report)
    screen.say(f"{SPECTRUM_FILE}, the figures and report.html are in {output}")
    measured = any(map(loss_beside_window, spectra))
    which, options = ("that is enough", f" {AS_MEASURED}") if measured else ("of 95 %", "")
    screen.say(f"to train with the K {which}:  linformer train --k @{output / SPECTRUM_FILE} --max-length …{options}")


def _check_options(lengths: Sequence[int], index: int | None, exact_up_to: int, rank: int) -> None:
    if not lengths:
        raise InputError("--length: give at least one, such as --length 512")
    for each in lengths:
        computed = each if each <= exact_up_to else min(each, rank)
        if index is not None and index > computed:
            raise InputError(f"--index {index}: at --length {each} only {computed} singular values are computed")


def _measure(
    model: PreTrainedModel, groups: Sequence[Sequence[Tensor]], screen: Screen, exact_up_to: int, rank: int
) -> list[Spectrum]:
    """:func:`measure_spectrum` for documents of each length in turn, with its progress on the screen."""
    layers = architecture_of(model).layers * sum(map(len, groups))
    columns = (BarColumn(), TextColumn("{task.fields[line]}", markup=False), TimeRemainingColumn())
    screen.start_bar(*columns, total=layers, completed=0)
    found = []
    try:
        for group in groups:
            sizes = f"N {format_count(len(group[0]))}, {format_count(len(group))} documents"

            def show(document: int, layer: int, sizes: str = sizes) -> None:
                if screen.bar is not None:
                    line = f"{sizes}: layer {layer + 1} of document {document + 1}"
                    screen.bar.update(screen.task, advance=1, line=line)

            start = time.perf_counter()
            found.append(measure_spectrum(model, group, exact_up_to=exact_up_to, rank=rank, on_layer=show))
            screen.say(f"{sizes}: {found[-1].method} in {format_duration(time.perf_counter() - start)}")
    finally:
        screen.stop()
    return found

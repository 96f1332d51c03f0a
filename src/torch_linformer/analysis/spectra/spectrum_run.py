"""The spectra of a model over documents of several lengths, as ``linformer spectrum`` measures and writes them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.spectra.advice import loss_beside_window
from torch_linformer.analysis.spectra.low_rank_error import KS, LONGEST, LowRankMeasurement
from torch_linformer.analysis.spectra.observing import WINDOW, ObservedHead, check_readable, observe_heads
from torch_linformer.analysis.spectra.spectrum import (
    Architecture,
    Spectrum,
    SpectrumMean,
    exact_singular_values,
    randomised_singular_values,
)
from torch_linformer.analysis.spectra.spectrum_report import SPECTRUM_FILE, write_spectrum_report
from torch_linformer.data.packing import beginnings
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TEXT
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.folder import check_free, new_folder
from torch_linformer.opening.load import check_lengths, load_backbone, load_own_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_duration

EXACT_UP_TO = 4096  # tokens; one P takes 7 s there, eight times as long at twice the length (docs/spectrum.md)
RANK = 1024  # values computed of a longer P
# The attention whose K holds, as options of a training.
AS_MEASURED = (
    f"--window {WINDOW} --model projection=dynamic --model slot_mass=learned --model exact_first=1 --model exact_last=1"
)


def measure_spectrum(
    model: PreTrainedModel,
    documents: Sequence[Tensor],
    *,
    exact_up_to: int = EXACT_UP_TO,
    rank: int = RANK,
    ks: Sequence[int] = KS,
    on_layer: Callable[[int, int], None] | None = None,
) -> Spectrum:
    r"""Singular values of the context mapping P = softmax(Q Kᵀ / √D) of every layer and head, averaged over documents.

    One P is in memory at a time, whatever the number of documents, layers and heads. The errors of low-rank outputs are
    measured too. With two or more documents of at most 1,024 tokens projections are fitted to the first half of them,
    and all errors measured on the second.

    Args:
        model: an encoder or decoder of transformers, a full-attention twin, or a linear encoder or a model of this
            package whose slots the input chooses (its P is what its queries and keys give); on its device and in
            evaluation mode.
        documents: ``(N,)`` token ids each, all of one length, without padding.
        exact_up_to: the longest N for which all N values are computed; beyond it the first ``rank``.
        rank: see ``exact_up_to``.
        ks: the K at which errors are measured.
        on_layer: called with the numbers of a document and a layer, from 0, once that layer is done.

    Raises:
        ValueError: no documents, documents of several lengths, or a model whose attention cannot be read.

    Source: arXiv 2006.04768, section 3 and figure 1.
    """
    lengths = {len(document) for document in documents}
    if len(lengths) != 1:
        raise ValueError(f"documents must be at least one, all of one length, got lengths {sorted(lengths)}")
    (length,), architecture = lengths, architecture_of(model)
    shape, exact = (architecture.layers, architecture.heads), length <= exact_up_to
    spectra, errors, fitted = SpectrumMean(shape), None, len(documents) // 2 if length <= LONGEST else 0
    if any(k <= length for k in ks):
        errors = LowRankMeasurement(shape, length, ks)
    inputs = [document.unsqueeze(0).to(model.device) for document in documents]
    check_readable(model, inputs[0])
    for number, input_ids in enumerate(inputs):
        if errors is not None and number == fitted:
            errors.solve()

        def observe(head: ObservedHead, number: int = number) -> None:
            singular_values = (
                exact_singular_values(head.weights) if exact else randomised_singular_values(head.weights, rank)
            )
            spectra.add(head.layer, head.number, singular_values)
            if errors is not None:
                (errors.fit if number < fitted else errors.measure)(head)
            if on_layer and head.number == architecture.heads - 1:
                on_layer(number, head.layer)

        seen = observe_heads(model, input_ids, observe)
        if seen != architecture.layers:
            raise ValueError(
                f"a {model.config.model_type} model attends in {seen} of its {architecture.layers} layers: only models "
                "that attend in each are read"
            )
    return Spectrum(
        length=length,
        documents=len(documents),
        method="exact" if exact else "randomised",
        architecture=architecture,
        low_rank=None if errors is None else errors.result(fitted, len(documents) - fitted),
        **spectra.mean(len(documents)),
    )


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The sizes of a model, from its configuration.

    Raises:
        ValueError: the configuration names no layers or heads.
    """
    config: Any = model.config.get_text_config()
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    sizes: list[Any] = [getattr(config, name, None) for name in names]
    if not all(isinstance(size, int) for size in sizes):
        raise ValueError(f"a {config.model_type} model has no attention weights that can be read")
    layers, heads, width = sizes
    return Architecture(
        layers=layers,
        heads=heads,
        width=width,
        head_dim=getattr(config, "head_dim", None) or width // heads,
        feedforward=getattr(config, "intermediate_size", None) or 4 * width,
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
    for length in lengths:
        computed = length if length <= exact_up_to else min(length, rank)
        if index is not None and index > computed:
            raise InputError(f"--index {index}: at --length {length} only {computed} singular values are computed")


def _measure(
    model: PreTrainedModel, groups: Sequence[Sequence[Tensor]], screen: Screen, exact_up_to: int, rank: int
) -> list[Spectrum]:
    """:func:`measure_spectrum` for documents of each length in turn, with its progress on the screen."""
    layers = architecture_of(model).layers * sum(map(len, groups))
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

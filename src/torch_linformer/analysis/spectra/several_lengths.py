"""Spectra at several lengths, with the progress on the screen."""

import time
from collections.abc import Sequence

from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.spectra.measurement import architecture_of, measure_spectrum
from torch_linformer.analysis.spectra.spectrum import Spectrum
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_duration


def measure_lengths(
    model: PreTrainedModel, documents: Sequence[Sequence[Tensor]], screen: Screen, *, exact_up_to: int, rank: int
) -> list[Spectrum]:
    """:func:`measure_spectrum` for documents of each length in turn."""
    layers = architecture_of(model).layers * sum(map(len, documents))
    columns = (BarColumn(), TextColumn("{task.fields[line]}", markup=False), TimeRemainingColumn())
    screen.start_bar(*columns, total=layers, completed=0)
    found = []
    try:
        for group in documents:
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

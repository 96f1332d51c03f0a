"""The page of a model's folder and one document, as ``linformer inspect`` writes it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from torch import nn

from torch_linformer.analysis.inspection.inspect_text import inspect_text
from torch_linformer.analysis.inspection.page import check_bokeh, write_inspection
from torch_linformer.data.reading.streamed import one_document
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.reporting.titles import name_in_title


def inspect_folder(
    model: str,
    text: str,
    output: Path,
    *,
    layers: Sequence[int] | None,
    cut: bool,
    device: str,
    on_progress: Callable[[str], object],
) -> str:
    """Write the page of a model and a document to ``output``; returns a sentence about it.

    ``text`` is the document, the file it is in, or ``-``; the other options are those of :func:`inspect_text`.

    Raises:
        InputError: anything is wrong with the model, the document or the device.
        ValueError: the model, or this document, cannot be inspected.
    """
    check_bokeh()
    device = resolve_device(device)
    document, source = one_document(text)
    loaded, tokenizer = load_model(model), load_tokenizer(model)
    cast(nn.Module, loaded).to(device)
    inspection = inspect_text(loaded, tokenizer, document, layers=layers, cut=cut, on_progress=on_progress)
    on_progress("writing the page")
    size = write_inspection(output, inspection, model=name_in_title(model), source=source)
    tokens = f"{len(inspection.tokens):,} tokens"
    if inspection.num_tokens > len(inspection.tokens):
        tokens = f"the first {len(inspection.tokens):,} of {inspection.num_tokens:,} tokens"
    return f"{output}: {tokens} of {source}, {size / 1e6:.1f} MB"

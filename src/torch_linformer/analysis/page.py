r"""The page of an inspection: one HTML file with its script, its data and the plotting library inside.

A page for 4,096 tokens must not exceed a few megabytes, but a single head of 256 slots has a million weights. So the
page carries the factors :math:`\bar P` and F instead of their N × N product, in 16-bit floats, and its script
multiplies what is in view. Where the factors do not fit either, it carries the means of their rows over blocks of 2, 4,
8 … tokens, the smallest blocks that fit. The mean of :math:`\bar P F^\top` over a block is the product of those means,
so what the page shows of a block is exact up to rounding: half a unit in the 11th bit of each factor. Every array is
scaled by a power of two, so that small weights keep all their bits.
"""

import base64
import gzip
import hashlib
import importlib.util
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

import torch_linformer
from torch_linformer.analysis.attention_maps import LayerAttention, block_means
from torch_linformer.analysis.inspection import Answer, Inspection, inspect_text
from torch_linformer.analysis.relevance import (
    STEPS,
    cut_into_passages,
    cut_into_pieces,
    ranked_passages,
    shown_passage,
    visible,
)
from torch_linformer.data.reading.streamed import one_document
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.files import write_text
from torch_linformer.reporting.report import POLICY, Headline, Report, name_in_title, render_html
from torch_linformer.reporting.tables import format_count, format_percent

FILES = "analysis/page_files"
SCRIPTS = ("theme.js", "arrays.js", "chart.js", "document.js", "page.js")
MOST_BYTES = 3_000_000  # of all arrays, compressed
_TOP = 2.0**14  # the largest number of an array lies between this and twice as much


def check_bokeh() -> None:
    """Raise ``ValueError`` with the line that installs the plotting library where it is missing."""
    if importlib.util.find_spec("bokeh") is None:
        raise ValueError('bokeh not installed: pip install "torch-linformer[inspect]"')


def render_inspection(inspection: Inspection, *, model: str, source: str, most_bytes: int = MOST_BYTES) -> str:
    """Return a whole HTML document, which asks the network for nothing.

    Args:
        inspection: what is shown.
        model: name of the model.
        source: where the document came from.
        most_bytes: of the matrices, compressed.

    Raises:
        ValueError: Bokeh is not installed.
    """
    check_bokeh()
    import bokeh
    from bokeh.util.paths import bokehjs_path

    from torch_linformer.analysis.page_figures import page_figures

    all_slots = max(layer.num_slots for layer in inspection.layers.values())
    inspection = replace(inspection, layers={number: layer.in_use() for number, layer in inspection.layers.items()})
    answer, layers, length = inspection.answer, inspection.layers.values(), len(inspection.tokens)
    packed, figures = pack_layers(inspection.layers, most_bytes), page_figures(list(layers), length)
    attended = {
        "the slots": any(layer.num_slots for layer in layers),
        "the first and last tokens": any(len(layer.exact) for layer in layers),
        "the positions of the local window": any(layer.reach is not None for layer in layers),
    }
    data = {**packed, "tokens": length, **_document(inspection), "figures": figures}
    library = bokehjs_path().joinpath("js", "bokeh.min.js").read_text(encoding="utf-8")
    folder = resources.files(torch_linformer).joinpath(FILES)
    script = "\n".join(['"use strict";', *(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)])
    digests = (base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (library, script))
    scripts = " ".join(f"'sha256-{digest}'" for digest in digests)
    labels = [visible(label) for label in answer.labels] if answer else []
    values: Sequence[object] = answer.relevance.scores.tolist() if answer else []
    if answer and answer.probabilities is not None:
        values = [format_percent(probability) for probability in answer.probabilities]
    return render_html(
        Report(
            title=visible(f"How the model {model} reads a document"),
            lead=_lead(inspection, visible(source)),
            headlines=[Headline(label, value) for label, value in zip(labels, values, strict=True)],
        ),
        f"{FILES}/page.html",
        # No source of anything but this file, and no script but these.
        f"{POLICY}; img-src data:; script-src {scripts}",
        version=torch_linformer.__version__,
        bokeh_version=bokeh.__version__,
        library=library,
        script=script,
        # No tag and no comment can begin in it.
        data=json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        figures=figures,
        block=packed["block"],
        inspection=inspection,
        ordinary=all(layer.is_ordinary for layer in layers),
        slots=max(layer.num_slots for layer in layers),
        all_slots=all_slots,
        attended=[name for name, is_attended in attended.items() if is_attended],
        same=all(layer.proj_k is layer.proj_v for layer in layers),
        labels=labels,
        steps=STEPS,
        sums=_sums(answer) if answer else "",
        lexical=inspection.lexical,
    )


def _document(inspection: Inspection) -> dict[str, Any]:
    """The text, the token that is chosen first, and what the answer draws on, as the script reads them."""
    answer, text, spans = inspection.answer, inspection.text, inspection.spans
    passages = cut_into_passages(text, spans)
    of_text = [token for tokens in passages for token in tokens]
    document: dict[str, Any] = {"pieces": cut_into_pieces(text, spans, inspection.tokens), "answer": None}
    if answer:
        values = answer.relevance.values
        of_text.sort(key=values[0].abs().tolist().__getitem__, reverse=True)
        document["answer"] = {
            "labels": [visible(label) for label in answer.labels],
            "passages": [
                [
                    {**passage._asdict(), "text": shown_passage(text, spans, passage)}
                    for passage in ranked_passages(passages, row)
                ]
                for row in values
            ],
            "relevance": [[float(f"{value:.7g}") for value in row] for row in values.tolist()],
        }
    return {"firstToken": of_text[0] if of_text else 0, **document}


def _lead(inspection: Inspection, source: str) -> str:
    """Which model read what, and what the maps show of a text for which it needs no slots."""
    config, length = inspection.config, len(inspection.tokens)
    read = f"{format_count(length)} tokens of {source}"
    if inspection.num_tokens > length:
        read = f"The first {format_count(length)} of the {format_count(inspection.num_tokens)} tokens of {source}"
    depth = f"{config.num_hidden_layers} layer{'s' if config.num_hidden_layers > 1 else ''}"
    lead = f"{read}, read by {depth} of {config.num_attention_heads} heads: {attention_of(config)}."
    if not inspection.exact_below:
        return lead
    return (
        f"{lead} The model reads texts of at most {format_count(inspection.exact_below)} tokens by ordinary attention, "
        "and this is one: the maps show how it would read the text by slots (exact_below=0)"
        + ("; the answer is the model's own." if inspection.answer else ".")
    )


def _sums(answer: Answer) -> str:
    """How well the numbers of the tokens add up to the scores."""
    relevance = answer.relevance
    sums, changes = relevance.values.sum(dim=-1), relevance.scores - relevance.blank_scores
    return "; ".join(
        f"{visible(label)} {total:+.3f} of {change:+.3f}".replace("-", "−")
        for label, total, change in zip(answer.labels, sums.tolist(), changes.tolist(), strict=True)
    )


class Arrays:
    """Distinct arrays, compressed; each is stored once however many layers and heads share it."""

    def __init__(self) -> None:
        self.packed: list[dict[str, Any]] = []
        self.size = 0
        self._places: dict[tuple[tuple[int, ...], bytes], int] = {}

    def add(self, matrix: Tensor) -> int:
        """Store an array, and return its number."""
        largest = float(matrix.abs().max())
        scale = float(2.0 ** np.floor(np.log2(_TOP / largest))) if largest > 0 else 1.0
        halves = (matrix.double() * scale).numpy().astype("<f2").tobytes()
        key = (tuple(matrix.shape), halves)
        if key not in self._places:
            # The bytes of exponents are alike, those of fractions are not: separated they compress better.
            data = gzip.compress(halves[0::2] + halves[1::2], compresslevel=6, mtime=0)
            self._places[key] = len(self.packed)
            self.packed.append(
                {"shape": list(matrix.shape), "scale": scale, "data": base64.b64encode(data).decode("ascii")}
            )
            self.size += len(data)
        return self._places[key]


def pack_layers(layers: dict[int, LayerAttention], most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """``block`` (tokens in a block), ``arrays``, and ``layers``, whose matrices are numbers of arrays, one a head."""
    length = next(iter(layers.values())).weights.shape[1]
    block = 1
    # Blocks too small to be worth a try: compression hardly halves 16-bit floats. Slots are not divided into blocks.
    while block < length and most_bytes < sum(
        layer.weights.numel() // (block**2 if layer.is_ordinary else block) for layer in layers.values()
    ):
        block *= 2
    while True:
        arrays = Arrays()
        packed = [_pack_layer(number, layer, block, arrays) for number, layer in layers.items()]
        if arrays.size <= most_bytes or block >= length:
            return {"block": block, "arrays": arrays.packed, "layers": packed}
        block *= 2


def _pack_layer(number: int, layer: LayerAttention, block: int, arrays: Arrays) -> dict[str, Any]:
    weights = [block_means(matrix, block) for matrix in layer.weights]
    if layer.is_ordinary:
        weights = [block_means(matrix.mT, block).mT for matrix in weights]
    window_weights = [layer.window_weights(head) for head in range(len(weights))]

    def pack_heads(matrices: Tensor | None) -> list[int]:
        if matrices is None:
            return []
        if matrices.stride(0) == 0:  # one for all heads
            return [arrays.add(block_means(matrices[0], block))] * len(matrices)
        return [arrays.add(block_means(matrix, block)) for matrix in matrices]

    return {
        "number": number,
        "ordinary": layer.is_ordinary,
        "slots": layer.num_slots,
        "exact": layer.exact.tolist(),
        "reach": layer.reach,
        "weights": [arrays.add(matrix) for matrix in weights],
        "projK": pack_heads(layer.proj_k),
        "projV": pack_heads(layer.proj_v),
        "near": [arrays.add(block_band(matrix, block)) for matrix in window_weights if matrix is not None],
    }


def block_band(band: Tensor, block: int) -> Tensor:
    """Means over blocks of a local window's map: ``(N, 2r + 1)`` to ``(⌈N / block⌉, 2m + 1)``.

    Column c of row I is the mean of ``spread_window(near)`` over the tokens of block I and those of block I + c − m.
    """
    length, reach = band.shape[0], band.shape[1] // 2
    blocks, farthest = -(-length // block), (block - 1 + reach) // block
    row = torch.arange(length).unsqueeze(-1).expand_as(band)
    column = row + torch.arange(-reach, reach + 1)
    inside = (column >= 0) & (column < length)
    from_block, to_block = row[inside] // block, column[inside] // block
    sums = band.new_zeros(blocks, 2 * farthest + 1)
    sums.index_put_((from_block, to_block - from_block + farthest), band[inside], accumulate=True)
    tokens = torch.full((blocks,), float(block)).to(band)
    tokens[-1] = length - block * (blocks - 1)
    of_columns = (torch.arange(blocks).unsqueeze(-1) + torch.arange(-farthest, farthest + 1)).clamp(0, blocks - 1)
    return sums / (tokens.unsqueeze(-1) * tokens[of_columns])


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
    page = render_inspection(inspection, model=name_in_title(model), source=source)
    write_text(output, page)
    tokens = f"{len(inspection.tokens):,} tokens"
    if inspection.num_tokens > len(inspection.tokens):
        tokens = f"the first {len(inspection.tokens):,} of {inspection.num_tokens:,} tokens"
    return f"{output}: {tokens} of {source}, {len(page.encode()) / 1e6:.1f} MB"

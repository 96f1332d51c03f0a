"""The page of an inspection: one HTML file with its script, its data and the plotting library inside."""

import base64
import hashlib
import importlib.util
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any, cast

from torch import nn

import torch_linformer
from torch_linformer.analysis.inspection.attention_maps import LayerAttention
from torch_linformer.analysis.inspection.inspect_text import Answer, Inspection, inspect_text
from torch_linformer.analysis.inspection.page_arrays import MOST_BYTES, pack_layers
from torch_linformer.analysis.inspection.relevance import (
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

FILES = "analysis/inspection/page_files"
SCRIPTS = ("theme.js", "arrays.js", "chart.js", "document.js", "page.js")


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
        most_bytes: of the matrices, compressed; see :mod:`torch_linformer.analysis.inspection.page_arrays`.

    Raises:
        ValueError: Bokeh is not installed.
    """
    check_bokeh()
    import bokeh
    from bokeh.util.paths import bokehjs_path

    all_slots = max(layer.num_slots for layer in inspection.layers.values())
    inspection = replace(inspection, layers={number: layer.in_use() for number, layer in inspection.layers.items()})
    answer, layers = inspection.answer, inspection.layers.values()
    slots = max(layer.num_slots for layer in layers)
    packed, figures, headlines = pack_layers(inspection.layers, most_bytes), _figures(inspection), _headlines(answer)
    library = bokehjs_path().joinpath("js", "bokeh.min.js").read_text(encoding="utf-8")
    folder = resources.files(torch_linformer).joinpath(FILES)
    script = "\n".join(['"use strict";', *(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)])
    return render_html(
        Report(
            title=visible(f"How the model {model} reads a document"),
            lead=_lead(inspection, visible(source)),
            headlines=headlines,
        ),
        f"{FILES}/page.html",
        _policy(library, script),
        version=torch_linformer.__version__,
        bokeh_version=bokeh.__version__,
        library=library,
        script=script,
        data=_json(_data(inspection, packed, figures)),
        figures=figures,
        block=packed["block"],
        inspection=inspection,
        ordinary=all(layer.is_ordinary for layer in layers),
        slots=slots,
        all_slots=all_slots,
        attended=_attended(layers),
        same=all(layer.proj_k is layer.proj_v for layer in layers),
        labels=[headline.name for headline in headlines],
        steps=STEPS,
        sums=_sums(answer) if answer else "",
        lexical=inspection.lexical,
    )


def write_inspection(path: str | PathLike[str], inspection: Inspection, **options: Any) -> int:
    """Write the page of :func:`render_inspection`, whole or not at all, and return its bytes."""
    page = render_inspection(inspection, **options)
    write_text(path, page)
    return len(page.encode())


def _data(inspection: Inspection, packed: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """What the script reads."""
    answer, spans = inspection.answer, inspection.spans
    passages = cut_into_passages(inspection.text, spans)
    ranked = [ranked_passages(passages, values) for values in answer.relevance.values] if answer else []
    of_text = [token for tokens in passages for token in tokens]
    if answer:
        of_text.sort(key=answer.relevance.values[0].abs().tolist().__getitem__, reverse=True)
    return {
        **packed,
        "tokens": len(inspection.tokens),
        "firstToken": of_text[0] if of_text else 0,
        "pieces": cut_into_pieces(inspection.text, spans, inspection.tokens),
        "answer": answer
        and {
            "labels": [visible(label) for label in answer.labels],
            "passages": [
                [
                    {**passage._asdict(), "text": shown_passage(inspection.text, spans, passage)}
                    for passage in passages_of_label
                ]
                for passages_of_label in ranked
            ],
            "relevance": [[float(f"{value:.7g}") for value in row] for row in answer.relevance.values.tolist()],
        },
        "figures": figures,
    }


def _figures(inspection: Inspection) -> dict[str, Any]:
    from torch_linformer.analysis.inspection.page_figures import map_figure, profile_figure

    layers, length = inspection.layers.values(), len(inspection.tokens)
    with_slots = next((layer for layer in layers if layer.num_slots), None)
    figures = {}
    if any(layer.has_token_map for layer in layers):
        figures["tokens"] = map_figure("tokens", ("token drawn on", length), ("token", length))
    if with_slots is not None:
        figures["slots"] = map_figure("slots", ("slot", with_slots.weights.shape[2]), ("token", length))
        if with_slots.proj_v is not None:
            figures["projection"] = map_figure("projection", ("position", length), ("slot", with_slots.num_slots))
            figures["profile"] = profile_figure("profile", length)
    return figures


def _attended(layers: Iterable[LayerAttention]) -> list[str]:
    """What a token attends to in some of the layers, in the order of the weights."""
    parts = {
        "the slots": any(layer.num_slots for layer in layers),
        "the exact tokens": any(len(layer.exact) for layer in layers),
        "the positions of the local window": any(layer.reach is not None for layer in layers),
    }
    return [name for name, is_attended in parts.items() if is_attended]


def _lead(inspection: Inspection, source: str) -> str:
    """Which model read what."""
    config, length = inspection.config, len(inspection.tokens)
    read = f"{format_count(length)} tokens of {source}"
    if inspection.num_tokens > length:
        read = f"The first {format_count(length)} of the {format_count(inspection.num_tokens)} tokens of {source}"
    depth = f"{config.num_hidden_layers} layer{'s' if config.num_hidden_layers > 1 else ''}"
    lead = f"{read}, read by {depth} of {config.num_attention_heads} heads: {attention_of(config)}."
    return f"{lead} {_read_exactly(inspection)}" if inspection.exact_below else lead


def _read_exactly(inspection: Inspection) -> str:
    """What the maps show of a text for which the model needs no slots."""
    shown = (
        f"The model reads texts of at most {format_count(inspection.exact_below)} tokens by ordinary attention, and "
        "this is one: the maps show how it would read the text by slots (exact_below=0)"
    )
    return f"{shown}; the answer is the model's own." if inspection.answer else f"{shown}."


def _headlines(answer: Answer | None) -> list[Headline]:
    """The labels, each with its probability or score."""
    if answer is None:
        return []
    values: list[object] = list(answer.relevance.scores.tolist())
    if answer.probabilities is not None:
        values = [format_percent(probability) for probability in answer.probabilities]
    return [Headline(name=visible(label), value=value) for label, value in zip(answer.labels, values, strict=True)]


def _sums(answer: Answer) -> str:
    """How well the numbers of the tokens add up to the scores."""
    relevance = answer.relevance
    sums, changes = relevance.values.sum(dim=-1), relevance.scores - relevance.blank_scores
    return "; ".join(
        f"{visible(label)} {total:+.3f} of {change:+.3f}".replace("-", "−")
        for label, total, change in zip(answer.labels, sums.tolist(), changes.tolist(), strict=True)
    )


def _json(obj: Any) -> str:
    """JSON that is safe inside a script element: no tag and no comment can begin in it."""
    return json.dumps(obj, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _policy(*scripts: str) -> str:
    """No source of anything but this file, and no script but these."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{fingerprint}'" for fingerprint in hashes)
    return f"{POLICY}; img-src data:; script-src {allowed}"


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

"""The page of an inspection: one HTML file with its script, its data and the plotting library inside."""

import base64
import hashlib
import importlib.util
import json
from importlib import resources
from os import PathLike
from typing import Any

import torch_linformer
from torch_linformer.analysis.inspection.inspect_text import Answer, Inspection
from torch_linformer.analysis.inspection.page_arrays import MOST_BYTES, pack_layers
from torch_linformer.analysis.inspection.pieces import cut_into_pieces, visible
from torch_linformer.analysis.inspection.relevance import STEPS
from torch_linformer.reporting.files import write_text
from torch_linformer.reporting.html import STYLE
from torch_linformer.reporting.tables import format_count

SCRIPTS = ("theme.js", "arrays.js", "chart.js", "document.js", "page.js")


def check_bokeh() -> None:
    """Raise ``ValueError`` with the line that installs the plotting library where it is missing."""
    missing = [name for name in ("bokeh", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(f'{", ".join(missing)} not installed: pip install "torch-linformer[inspect]"')


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
    from jinja2 import Environment, StrictUndefined

    packed = pack_layers(inspection.layers, most_bytes)
    figures = _figures(inspection)
    library = bokehjs_path().joinpath("js", "bokeh.min.js").read_text(encoding="utf-8")
    script = '"use strict";\n' + "\n".join(_asset(name) for name in SCRIPTS)
    template = Environment(autoescape=True, undefined=StrictUndefined).from_string(_asset("page.html"))
    return template.render(
        policy=_policy(library, script),
        title=visible(f"Inside {model}"),
        style=STYLE + _asset("page.css"),
        version=torch_linformer.__version__,
        bokeh_version=bokeh.__version__,
        bokeh=library,
        script=script,
        data=_json(_data(inspection, packed, figures)),
        figures=figures,
        **_texts(inspection, visible(source), packed["block"]),
    )


def write_inspection(path: str | PathLike[str], inspection: Inspection, **options: Any) -> int:
    """Write the page of :func:`render_inspection`, whole or not at all, and return its bytes."""
    page = render_inspection(inspection, **options)
    write_text(path, page)
    return len(page.encode())


def _data(inspection: Inspection, packed: dict[str, Any], figures: dict[str, Any]) -> dict[str, Any]:
    """What the script reads."""
    answer = inspection.answer
    of_text = (number for number, (start, end) in enumerate(inspection.spans) if start < end)
    return {
        **packed,
        "tokens": len(inspection.tokens),
        "firstToken": next(of_text, 0),
        "pieces": cut_into_pieces(inspection.text, inspection.spans, inspection.tokens),
        "answer": answer
        and {
            "labels": [visible(label) for label in answer.labels],
            "relevance": [[float(f"{value:.7g}") for value in row] for row in answer.relevance.values.tolist()],
        },
        "figures": figures,
    }


def _figures(inspection: Inspection) -> dict[str, Any]:
    from torch_linformer.analysis.inspection.page_figures import map_figure, profile_figure

    layers, length = inspection.layers.values(), len(inspection.tokens)
    first = next(iter(layers))
    columns = first.weights.shape[2]
    figures = {}
    if first.has_token_map:
        figures["tokens"] = map_figure("tokens", ("token drawn on", length), ("token", length))
    if first.num_slots:
        figures["slots"] = map_figure("slots", ("slot", columns), ("token", length))
    if first.proj_v is not None:
        figures["projection"] = map_figure("projection", ("position", length), ("slot", first.num_slots))
        figures["profile"] = profile_figure("profile", length)
    return figures


def _texts(inspection: Inspection, source: str, block: int) -> dict[str, Any]:
    """Everything on the page that is written for this document."""
    config, layers, answer = inspection.config, list(inspection.layers.values()), inspection.answer
    length, full = len(inspection.tokens), layers[0].num_slots == 0
    read = f"{format_count(length)} tokens of {source}"
    if inspection.num_tokens > length:
        read = f"The first {format_count(length)} of the {format_count(inspection.num_tokens)} tokens of {source}"
    kind = "ordinary attention" if full else f"K {config.k}, projection {config.projection}, sharing {config.sharing}"
    if config.window and not full:
        kind += f", window {config.window}"
    depth = f"{config.num_hidden_layers} layer{'s' if config.num_hidden_layers > 1 else ''}"
    blocks = f" A cell stands for {block} tokens at least, and shows their mean." if block > 1 else ""
    missing = ""
    if full:
        missing = "Ordinary attention has no slots, and so no E and F."
    elif not layers[0].has_token_map:
        missing = (
            "Under the projection max a slot takes each channel from a token of its own, so there is no E and no F, "
            "and no map of tokens to tokens."
        )
    token_map = (
        "The softmax of ordinary attention: how much of the value of each token (a column) a token (a row) takes."
    )
    if not full:
        token_map = (
            "P̄ Fᵀ: how much of the value of each token (a column) a token (a row) takes by way of the slots"
            + (" and of the local window" if layers[0].reach else "")
            + ". Where F has negative entries the map has both signs."
        )
    if config.slot_bias and not full:
        token_map += " What the slot bias adds comes from no token and is not here."
    return {
        "lead": f"{read}, read by {depth} of {config.num_attention_heads} heads: {kind}.",
        "answers": _headlines(answer) if answer else [],
        "labels": [visible(label) for label in answer.labels] if answer else [],
        "method": _method(answer) if answer else "",
        "layers": list(inspection.layers),
        "heads": config.num_attention_heads,
        "tokens": length,
        "slots": max(layer.num_slots for layer in layers),
        "window": any(layer.reach for layer in layers),
        "token_map": token_map + blocks,
        "blocks": blocks,
        "same": " Here E = F." if all(layer.proj_k is layer.proj_v for layer in layers) else "",
        "missing": missing,
        "facts": _facts(block),
    }


def _headlines(answer: Answer) -> list[tuple[str, str]]:
    labels = [visible(label) for label in answer.labels]
    if answer.probabilities is None:
        values = [f"{score:.4g}" for score in answer.relevance.scores.tolist()]
    else:
        values = [f"{100 * probability:.1f} %" for probability in answer.probabilities]
    return list(zip(labels, values, strict=True))


def _method(answer: Answer) -> str:
    """How the tokens of an answer were found, and how well the numbers add up."""
    relevance = answer.relevance
    sums, scores, blanks = (
        x.tolist() for x in (relevance.values.sum(dim=-1), relevance.scores, relevance.blank_scores)
    )
    added = "; ".join(
        f"{visible(label)} {total:+.3f} of {score - blank:+.3f}".replace("-", "−")
        for label, total, score, blank in zip(answer.labels, sums, scores, blanks, strict=True)
    )
    return (
        f"Integrated gradients, {STEPS} steps, from the same document with every word left blank: what each token adds "
        "to the score (the logit) of the answer. It follows the whole model, not this layer and head. The tokens' "
        f"numbers add up to the change of the score but for the error of the integration: {added}."
    )


def _facts(block: int) -> list[tuple[str, str]]:
    tokens = "every token by itself" if block == 1 else f"means over blocks of {block} tokens"
    return [
        ("resolution", f"{tokens}; zoomed out, a cell is the mean of the tokens it covers"),
        ("precision", "16-bit floats: weights, E and F to 3 digits, what is multiplied of them to 0.05 % of its terms"),
        ("colours", "end where 0.2 % of the cells in view lie beyond"),
    ]


def _json(obj: Any) -> str:
    """JSON that can stand inside a script element: no tag and no comment can begin in it."""
    return json.dumps(obj, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _policy(*scripts: str) -> str:
    """No source of anything but this file, and no script but these."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{fingerprint}'" for fingerprint in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _asset(name: str) -> str:
    folder = resources.files(torch_linformer).joinpath("analysis", "inspection", "page_files")
    return folder.joinpath(name).read_text(encoding="utf-8")

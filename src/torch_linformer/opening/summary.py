"""What a model folder holds, read from its files: importing torch and loading the model would take seconds."""

import json
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors import safe_open

import torch_linformer
from torch_linformer.lengths import longest_input
from torch_linformer.reporting.tables import format_scores
from torch_linformer.tasks.headlines import HEADLINES

_MODEL_TYPES = ("linformer", "linformer_seq2seq")
_LINEAR_ENCODER = "linear_encoder"  # as torch_linformer.encoders.classes has it, which imports torch
_SIZES = {  # of an encoder, and what families call them
    "num_hidden_layers": ("num_hidden_layers", "n_layers"),
    "hidden_size": ("hidden_size", "dim"),
    "num_attention_heads": ("num_attention_heads", "n_heads"),
}
_LAYER = re.compile(r".*?layers?\.\d+\.")
_NOT_TRAINED = tuple(f"lexical.{name}" for name in ("codes", "idf", "spelling", "sizes", "joins", "powers", "letters"))


@dataclass(frozen=True)
class ModelSummary:
    """A model's class, its configuration (fields as attributes), its parameters, and its tokenizer's tokens."""

    model_class: str
    config: Any
    parameters: int
    vocabulary: int | None


def summarize(path: str) -> ModelSummary:
    """What a model folder (or a model on the hub) holds."""
    return _from_files(Path(path)) or _from_model(path)


def attention_of(config: Any) -> str:
    """The attention of a model, in a few words; of an encoder-decoder, its encoder's."""
    config = config.encoder if config.is_encoder_decoder else config
    linear = _linear_part(config)
    if linear is not None:
        return _of_linear_encoder(linear)
    if config.attention == "full":
        return "causal full attention" if config.causal else "full attention"
    parts = [*_slots(config), _exact_tokens(config.exact_first, config.exact_last)]
    parts.append(f"window {config.window}" if config.window else "")
    return ", ".join(filter(None, parts))


def _linear_part(config: Any) -> dict[str, Any] | None:
    """What the configuration of an encoder of transformers, or of a head on one, says of its slots; None for others."""
    encoder = getattr(config, "backbone_config", None) or config
    options: dict[str, Any] | None = (encoder if isinstance(encoder, dict) else vars(encoder)).get("linformer")
    return options


def _of_linear_encoder(linformer: dict[str, Any]) -> str:
    """The attention of an encoder of transformers, by what its configuration says of it."""
    options = linformer["options"]
    slots, mass = ("no slots", "") if not options["k"] else (f"K {options['k']}", "learned mass")
    if options["k"] and options["projection"] == "mean":
        slots, mass = f"{slots}, projection mean", "fixed mass"
    elif options["k"]:
        slots = f"{slots}, slots chosen by the input"
    window = f"window {options['window']}" if options["window"] else ""
    short = f"texts of at most {options['exact_below']:,} tokens exact" if options["exact_below"] else ""
    exact = _exact_tokens(options["exact_first"], options["exact_last"])
    return ", ".join(filter(None, [slots, mass, exact, window, short, _local_layers(linformer["attentions"])]))


def _local_layers(attentions: dict[str, Any]) -> str:
    """The layers that were local in the original, and have only their window."""
    reaches = [sizes[3] for sizes in attentions.values() if sizes[3] is not None]
    tokens = " or ".join(f"{2 * reach:,}" for reach in sorted(set(reaches)))
    return f"{len(reaches)} of {len(attentions)} layers only a window of {tokens}" if reaches else ""


def _slots(config: Any) -> list[str]:
    """How many slots there are, and how positions become slots."""
    causal = ["causal"] if config.causal else []
    if not config.k:
        return ["no slots", *causal]
    slots = [f"K {config.k}", *causal]
    if config.causal:
        return slots
    # Means and maxima have nothing that heads or layers could share.
    slots += [] if config.projection in ("mean", "max") else [f"sharing {config.sharing}"]
    slots.append("slots chosen by the input" if config.projection == "dynamic" else f"projection {config.projection}")
    return [*slots, "" if config.slot_mass == "none" else f"{config.slot_mass} mass"]


def _exact_tokens(first: int, last: int) -> str:
    """The tokens that every token sees themselves."""
    ends = [(name, number) for name, number in (("first", first), ("last", last)) if number]
    named = " and ".join(f"{name} token" if number == 1 else f"{name} {number} tokens" for name, number in ends)
    return named and f"{named} exact"


def summary_rows(model: str) -> list[tuple[str, str]]:
    """What ``linformer info`` shows: name and value of each property of a model, and its scores if it has any."""
    summary = summarize(model)
    config = summary.config.encoder if summary.config.is_encoder_decoder else summary.config
    length = f"{config.longest_input or config.max_position_embeddings:,} tokens"
    rows = [
        ("class", summary.model_class),
        ("parameters", f"{summary.parameters:,}"),
        ("attention", attention_of(config).removesuffix(" attention")),
        ("longest input", length if config.longest_input else f"any, trained on {length}"),
        ("layers", f"{config.num_hidden_layers} of width {config.hidden_size}, {config.num_attention_heads} heads"),
        ("tokenizer", "none" if summary.vocabulary is None else f"{summary.vocabulary:,} tokens"),
    ]
    if backbone := getattr(config, "backbone_config", None):
        fields = backbone if isinstance(backbone, dict) else backbone.to_dict()
        rows.insert(1, ("encoder", fields["encoder_class"].rpartition(".")[-1]))
    if summary.config.is_encoder_decoder:
        decoder = summary.config.decoder
        rows.insert(4, ("longest target", f"{decoder.max_position_embeddings:,} tokens"))
        rows.insert(6, ("layers of the decoder", f"{decoder.num_hidden_layers}, {attention_of(decoder)}"))
    if "Classification" in summary.model_class and config.problem_type != "regression":
        labels = config.label_names
        rows.append(("labels", ", ".join(labels[:20]) + (f", … ({len(labels)})" if len(labels) > 20 else "")))
    metrics = Path(model) / "metrics.json"
    if metrics.is_file():
        scores = json.loads(metrics.read_text(encoding="utf-8"))
        names = dict.fromkeys(name for headline in HEADLINES.values() for name in headline)
        known = {name: scores[name] for name in names if scores.get(name) is not None}  # null: an infinite perplexity
        rows.extend((f"held-out {name}", value) for name, value in format_scores(known).items())
    return rows


def _from_files(folder: Path) -> ModelSummary | None:
    """None wherever anything is unusual: then loading the model shows what it is, or what is wrong with it."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if fields["model_type"] == _LINEAR_ENCODER:
            return _linear_encoder(folder, fields)
        (model_class,) = fields["architectures"]
        if fields["model_type"] not in _MODEL_TYPES or model_class not in torch_linformer.__all__:
            return None
        config = _config(fields)
        readers = [config.encoder, config.decoder] if config.is_encoder_decoder else [config]
        for reader in readers:
            attention_of(reader)  # an error where a field is missing, whose default the model has
        parameters = _count_parameters(folder / "model.safetensors", readers)
        return ModelSummary(model_class, config, parameters, _vocabulary(folder))
    except Exception:  # loading the model meets it too, and describes it
        return None


def _linear_encoder(folder: Path, fields: dict[str, Any]) -> ModelSummary:
    """A linear encoder of transformers; an error where its files are not as they are saved."""
    (model_class,), linformer = fields["architectures"], fields["linformer"]
    family = fields["encoder_class"].rpartition(".")[2].removesuffix("Model")
    labels = fields.get("id2label") or {}
    if not model_class.startswith(f"Linear{family}") or ("Classification" in model_class and not labels):
        raise ValueError(f"{folder}: look at the model")
    config = SimpleNamespace(
        **{name: next(fields[known] for known in names if known in fields) for name, names in _SIZES.items()},
        is_encoder_decoder=False,
        longest_input=linformer["options"]["max_length"],
        linformer=linformer,
        label_names=[labels[number] for number in sorted(labels, key=int)],
        problem_type=fields.get("problem_type"),
        projection=linformer["options"]["projection"],
    )
    attention_of(config)  # an error where an option is missing
    parameters = _count_parameters(folder / "model.safetensors", [config])
    return ModelSummary(model_class, config, parameters, _vocabulary(folder))


def _config(fields: dict[str, Any]) -> SimpleNamespace:
    config = SimpleNamespace(**{"problem_type": None, **fields})  # which is not written where it is None
    config.is_encoder_decoder = "encoder" in fields
    if config.is_encoder_decoder:
        config.encoder, config.decoder = _config(fields["encoder"]), _config(fields["decoder"])
    else:
        config.longest_input = longest_input(config)
        names = fields.get("id2label") or {}
        config.label_names = [names[number] for number in sorted(names, key=int)]
    return config


def _count_parameters(file: Path, readers: list[Any]) -> int:
    """Numbers in a file's tensors; an error if other layers than configured are there, or tensors without training."""
    with safe_open(file, framework="numpy") as tensors:  # which raises if the file is cut off
        shapes = {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    layers = {match[0] for match in map(_LAYER.match, shapes) if match}
    configured = sum(reader.num_hidden_layers for reader in readers)
    by_layer = not any(getattr(reader, "backbone_config", None) for reader in readers)  # others name theirs otherwise
    if (by_layer and len(layers) != configured) or any(reader.projection == "random" for reader in readers):
        raise ValueError(f"{file}: look at the model")
    return sum(prod(shape) for name, shape in shapes.items() if not name.startswith(_NOT_TRAINED))


def _vocabulary(folder: Path) -> int | None:
    # Imported weights come without a tokenizer: not even its configuration is there.
    if not any(folder.glob("tokenizer*.json")):
        return None
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()


def _from_model(path: str) -> ModelSummary:
    from torch_linformer.opening.model_folder import load_model, load_tokenizer

    model = load_model(path)
    has_tokenizer = not Path(path).is_dir() or any(Path(path).glob("tokenizer*.json"))
    vocabulary = len(load_tokenizer(path)) if has_tokenizer else None
    return ModelSummary(type(model).__name__, model.config, model.num_parameters(), vocabulary)

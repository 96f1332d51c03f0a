"""The files of a model, read before its weights are: whether it may be opened, and what tells it from another one."""

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, cast

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.reporting.files import file_state
from torch_linformer.reporting.tables import format_bytes, format_count

_INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_LEAST_BYTES = 0.5  # of a weight, in four bits
_BYTES = 4  # of a weight in memory
# What is read of a model folder; results that lie there too are none of it.
_READ = re.compile(
    r"(config|data|modules|config_sentence_transformers|sentence_\w+_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|vocab\.txt|merges\.txt"
    r"|.+\.(safetensors|bin|model|index\.json)"
)


def model_file(source: str, name: str) -> Path | None:
    """A file beside a model, in its folder or on the hub; None where there is none."""
    if Path(source).is_dir():
        here = Path(source) / name
        return here if here.is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except EntryNotFoundError:  # not in the repository; or, offline, not in the cache
        return None


def check_model(source: str, config: PreTrainedConfig) -> None:
    """Raise ``InputError`` for a model that cannot be built, or whose weights would be read from elsewhere.

    Sizes such as 10,000,000 layers are refused before these are built: where their weights exceed the memory, or what
    the files can hold.

    Args:
        source: a folder; of a name on the hub only the sizes are looked at.
        config: the model's.
    """
    if isinstance(config, LinearConfig):
        _check_linear(source, config)
    least = sum(map(_least_weights, _parts(config)))
    sizes = ", ".join(f"{name} {value:,}" for part in _parts(config) for name, value in _sizes(part).items())
    needs = f"{source}: config.json asks for {format_count(least)} weights or more ({sizes})"
    if least * _BYTES > memory_bytes():
        memory = format_bytes(memory_bytes())
        raise InputError(f"{needs}, which do not fit into the {memory} of this machine; correct it, or copy the folder")
    folder = Path(source)
    if not folder.is_dir():
        return
    for name in _INDICES:
        _check_index(folder, name)
    held = _weight_bytes(folder)
    ours = isinstance(config, LinformerConfig | LinformerSeq2SeqConfig | LinearConfig)
    if ours and held is not None and least * _LEAST_BYTES > held:
        raise InputError(f"{needs}, and its weights are {format_bytes(held)}; copy the folder again")


def _check_linear(source: str, config: LinearConfig) -> None:
    """What is said of the attentions of a linear encoder."""
    try:
        options, attentions = config.linear_options, config.attentions
        Positions.said_by(config)
        sizes = [options.max_length, *(size for attention in attentions.values() for size in attention[:3])]
        reaches = [attention.reach for attention in attentions.values() if attention.reach is not None]
        are_sizes = all(type(size) is int and size > 0 for size in sizes)
        if not attentions or not are_sizes or not all(type(reach) is int and reach >= 0 for reach in reaches):
            raise TypeError
    except ValueError as error:
        problem = str(error) if str(error).startswith("config.json") else f"config.json: {error}"
        raise InputError(f"{source}: {problem}") from None
    except (AttributeError, KeyError, TypeError):  # whatever stands there instead
        raise InputError(
            f"{source}: config.json has no options and attentions of a linear encoder; copy the folder again"
        ) from None


def _weight_bytes(folder: Path) -> int | None:
    """The bytes of a folder's files of safetensors; None where there are none, or one that cannot be read."""
    files = list(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(file, framework="pt"):  # which reads the names and sizes alone
                pass
        return sum(file.stat().st_size for file in files) if files else None
    except (OSError, SafetensorError):  # which is told when they are read
        return None


def _check_index(folder: Path, name: str) -> None:
    """Where weights lie in several files, an index names these, which may not lie outside the folder."""
    index = folder / name
    if not index.is_file():
        return
    try:
        files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        paths = {PurePosixPath(file) for file in files}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index}: is no index of weights; copy the folder again") from None
    for path in sorted(paths):
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{index}: names {str(path)!r}, which is not in the folder; nothing is read from there")
        if not (folder / path).is_file():
            raise InputError(f"{index}: names {str(path)!r}, which is missing; copy the folder again")


def _parts(config: PreTrainedConfig) -> Iterator[PreTrainedConfig]:
    """The configurations of an encoder-decoder's two halves, or of the one encoder there is."""
    if isinstance(config, LinformerSeq2SeqConfig):
        yield from (cast(PreTrainedConfig, config.encoder), cast(PreTrainedConfig, config.decoder))
    else:  # below a head may be another encoder
        yield getattr(config, "backbone_config", None) or config


def _sizes(config: PreTrainedConfig) -> dict[str, int]:
    names = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
    values: dict[str, Any] = {name: getattr(config, name, None) for name in names}
    return {name: value for name, value in values.items() if isinstance(value, int)}


def _least_weights(config: PreTrainedConfig) -> int:
    """Weights that a model has at least, as far as its kind is known: feed-forward layers, embeddings, one map E."""
    sizes = _sizes(config)
    width, layers = sizes.get("hidden_size", 0), sizes.get("num_hidden_layers", 0)
    if hasattr(config, "num_hidden_groups"):  # ALBERT, whose layers share their weights
        layers = min(layers, 1)
    least = layers * width * max(1, 2 * sizes.get("intermediate_size", 0))
    if not isinstance(config, LinformerConfig):
        return least
    positions = sizes["max_position_embeddings"]
    least += sizes["vocab_size"] * width + (positions * width if config.position_embedding == "learned" else 0)
    maps = config.attention == "linformer" and config.projection == "linear" and not config.causal
    slots = min(config.slots)
    return least + (positions * slots if maps else 0)


def model_digest(source: str) -> str:
    """A digest of the configuration, tokenizer and weights of a model folder (or of a model on the hub).

    Two folders with the same have models that compute the same. Reading the weights takes about as long as loading
    them.

    Raises:
        InputError: there is no such model.
    """
    config = model_file(source, "config.json")
    if config is None:
        raise InputError(f"{source}: is no model folder: it has no config.json")
    states = {file.relative_to(config.parent).as_posix(): file_state(file) for file in _files(config.parent)}
    return hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    """The files of a model, and of the modules of sentence-transformers beside it."""
    own = [file for file in folder.iterdir() if _READ.fullmatch(file.name)]
    modules = folder.glob("[0-9]*_*/**/*")  # 1_Pooling
    return sorted(file for file in (*own, *modules) if file.is_file())

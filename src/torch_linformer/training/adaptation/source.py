"""The encoder that is to be adapted: imported, with its tokenizer and what makes an embedding of its hidden states."""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.models.with_attention import with_attention
from torch_linformer.reporting.files import write_json
from torch_linformer.training.errors import InputError
from torch_linformer.training.folder import load_model, load_tokenizer
from torch_linformer.training.importing import ORIGINS
from torch_linformer.training.pretrained import load_any_config

FAMILIES = {name: origin.convert for name, origin in ORIGINS.items() if origin.is_folder}
ROTARY = ("rope_theta", "rope_parameters", "rotary_dim")  # what configurations of rotary models have
RELATIVE = ("relative_attention", "relative_attention_num_buckets")
POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers, in this order


@dataclass(frozen=True)
class Source:
    """What is adapted.

    Attributes:
        path: folder, or name on the hub.
        model: the encoder without head, as this package's twin with full attention.
        tokenizer: its own.
        longest: tokens that it reads at once.
        pooling: how hidden states become an embedding: ``mean``, ``cls`` or ``max``.
        sentences: whether it is a folder of sentence-transformers.
    """

    path: str
    model: LinformerModel
    tokenizer: PreTrainedTokenizerFast
    longest: int
    pooling: str
    sentences: bool


def load_source(path: str) -> Source:
    """Import an encoder.

    Raises:
        InputError: it is missing, damaged, or of a kind that cannot be adapted.
    """
    config = load_any_config(path)
    pooling, sentences = _pooling(path)
    if isinstance(config, LinformerConfig):
        if config.attention != "full" or config.causal:
            raise InputError(f"{path}: is a Linformer already; linformer train --from {path} goes on with it")
        imported: Any = load_model(path)
    else:
        _check_family(path, config)
        try:
            imported = with_attention(FAMILIES[config.model_type](path), attention="full")
        except (ValueError, OSError) as error:
            raise InputError(f"{path}: {error}") from None
    model: LinformerModel = imported.base_model
    model.config.pooling = pooling
    tokenizer = load_tokenizer(path)
    if len(tokenizer) > model.config.vocab_size:
        raise InputError(
            f"{path}: the tokenizer has {len(tokenizer):,} tokens and the model {model.config.vocab_size:,}: they do "
            "not belong together"
        )
    return Source(path, model, tokenizer, model.config.max_position_embeddings, pooling, sentences)


def copy_sentence_modules(source: str, folder: Path, max_length: int) -> None:
    """What makes a model folder one of sentence-transformers: pooling and normalisation as they were."""
    for name in ("modules.json", "config_sentence_transformers.json"):
        if (Path(source) / name).is_file():
            shutil.copyfile(Path(source) / name, folder / name)
    for module in json.loads((folder / "modules.json").read_text(encoding="utf-8")):
        if module["path"]:
            (folder / module["path"]).mkdir(exist_ok=True)
            config = Path(source) / module["path"] / "config.json"
            if config.is_file():
                shutil.copyfile(config, folder / module["path"] / "config.json")
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})


def _pooling(path: str) -> tuple[str, bool]:
    """How an embedding is made, and whether a folder of sentence-transformers says so."""
    modules = Path(path) / "modules.json"
    if not modules.is_file():
        return "mean", False
    try:
        parts = json.loads(modules.read_text(encoding="utf-8"))
        kinds, folders = ([part[name] for part in parts] for name in ("type", "path"))
        kinds = [kind.rpartition(".")[2] for kind in kinds]
        config = json.loads((Path(path) / folders[1] / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: modules.json or a folder it names cannot be read ({error})") from None
    if kinds not in ([*MODULES], [*MODULES[:2]]) or folders[0]:
        raise InputError(
            f"{path}: its modules are {', '.join(kinds)}; adapted are folders of Transformer, Pooling and, perhaps, "
            "Normalize, the first of them in the folder itself"
        )
    ways = [way for name, way in POOLINGS.items() if config.get(name)]
    others = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    if len(ways) != 1 or len(others) != 1:
        raise InputError(f"{path}: pools by {', '.join(others) or 'nothing'}; mean, cls or max alone can be adapted")
    return ways[0], True


def _check_family(path: str, config: Any) -> None:
    """Raise ``InputError`` for a model that slots cannot stand in for."""
    kind = config.model_type
    known = f"adapted are {', '.join(FAMILIES)}, and this package's own with --attention full"
    if config.is_encoder_decoder:
        raise InputError(f"{path}: is an encoder-decoder ({kind}); {known}")
    if kind in FAMILIES:
        decodes = getattr(config, "is_decoder", False)
    else:
        decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    if decodes:
        raise InputError(f"{path}: is a decoder ({kind}), whose tokens see only what stands before them; {known}")
    if kind in FAMILIES:
        return
    if any(hasattr(config, name) for name in ROTARY):
        raise InputError(
            f"{path}: has rotary positions ({kind}): each key is turned by its own position, and a mean of keys has "
            f"none; {known}"
        )
    if any(hasattr(config, name) for name in RELATIVE):
        raise InputError(
            f"{path}: has relative positions ({kind}): scores depend on the distance to a key, and a slot has none; "
            f"{known}"
        )
    raise InputError(f"{path}: is of a kind that cannot be adapted ({kind}); {known}")

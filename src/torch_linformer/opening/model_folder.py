"""Opening a trained model's folder."""

import pickle
from typing import Any, cast

from safetensors import SafetensorError
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer import models
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder, class_named
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel, LinformerSeq2SeqConfig
from torch_linformer.models.convert.state import refusal
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.model_checks import check_model
from torch_linformer.opening.pretrained import check_weights, load_any_config, quiet_transformers
from torch_linformer.opening.tokenizers import load_own_tokenizer

# Every model by the name of its class.
MODEL_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {
    name: found
    for name, found in vars(models).items()
    if isinstance(found, type) and issubclass(found, LinformerPreTrainedModel) and found is not LinformerPreTrainedModel
}
AnyConfig = LinformerConfig | LinformerSeq2SeqConfig | LinearConfig
AnyModel = LinformerPreTrainedModel | LinearEncoder


def reader_config(config: AnyConfig) -> LinformerConfig | LinearConfig:
    """The configuration of what reads a document: of an encoder-decoder, its encoder's."""
    return cast(LinformerConfig, config.encoder) if isinstance(config, LinformerSeq2SeqConfig) else config


def read_length(config: AnyConfig) -> int:
    """Tokens that a model reads at once; of one that reads any number, those it was trained on."""
    reader = reader_config(config)
    return reader.longest_input if isinstance(reader, LinearConfig) else reader.max_position_embeddings


def reading_options(config: AnyConfig) -> dict[str, Any]:
    """What a model is called with beside a text, where nothing is to go on after it."""
    reader = reader_config(config)
    return {"use_cache": False} if isinstance(reader, LinformerConfig) and reader.causal else {}


def load_config(path: str) -> AnyConfig:
    """The configuration of a model folder (or of a model on the hub)."""
    config = load_any_config(path)
    if not isinstance(config, AnyConfig):
        kind = config.model_type
        raise InputError(f"{path}: holds a {kind} model, not a linear one; linformer adapt makes one of an encoder")
    return config


def load_model(path: str) -> AnyModel:
    """The model of a folder, of the class it was saved as, with weights in float32."""
    config = load_config(path)
    name = (config.architectures or [""])[0]
    kind = class_named(config, name) if isinstance(config, LinearConfig) else MODEL_CLASSES.get(name)
    if kind is None:
        raise InputError(f"{path}: config.json names no known model class ({name or 'none'})")
    check_model(path, config)
    quiet_transformers()
    try:
        loaded: Any = kind.from_pretrained(path, dtype=WEIGHTS, output_loading_info=True, ignore_mismatched_sizes=True)
        model, report = cast(tuple[AnyModel, dict[str, Any]], loaded)
    except pickle.UnpicklingError as error:
        raise InputError(str(refusal(path, error))) from None
    except (OSError, SafetensorError, RuntimeError, ValueError) as error:
        raise InputError(f"{path}: the weights cannot be read: {first_line(error)}; copy the folder again") from None
    check_weights(path, report)
    if isinstance(model, LinearEncoder):
        _check_positions(path, model)
    return model


def _check_positions(path: str, model: LinearEncoder) -> None:
    """Learned positions must reach as far as a model reads."""
    positions, length = Positions.of(cast(PreTrainedModel, model.base_model)), read_length(model.config)
    if positions.is_learned and positions.longest < length:
        raise InputError(
            f"{path}: config.json lets the model read {length:,} tokens, and it has {positions.longest:,} positions; "
            "copy the folder again, or make it linear with max_length"
        )


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder."""
    tokenizer = load_own_tokenizer(path)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{path}: has no tokenizer.json")
    return tokenizer

"""A trained model's folder: the model opened, and its tokenizer opened and saved so that all read texts alike."""

import json
import pickle
from pathlib import Path
from typing import Any, cast

from safetensors import SafetensorError
from tokenizers.normalizers import Lowercase, Sequence
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from torch_linformer import models
from torch_linformer.data.tokenizer import reads_from_the_left
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder, class_named
from torch_linformer.encoders.heads import head_of
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerPreTrainedModel,
    LinformerSeq2SeqConfig,
)
from torch_linformer.models.convert import refusal
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.model_files import check_model, model_file
from torch_linformer.opening.pretrained import check_weights, load_any_config, load_backbone, quiet_transformers
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.reporting.files import write_json

_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
_CONFIG = "tokenizer_config.json"
_KEPT = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces")
# Every model by the name of its class.
MODEL_CLASSES: dict[str, type[LinformerPreTrainedModel]] = {
    name: found
    for name, found in vars(models).items()
    if isinstance(found, type) and issubclass(found, LinformerPreTrainedModel) and found is not LinformerPreTrainedModel
}
AnyConfig = LinformerConfig | LinformerSeq2SeqConfig | LinearConfig
AnyModel = LinformerPreTrainedModel | LinearEncoder


def load_own_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model."""
    tokenizer = load_tokenizer_if_any(source)
    if tokenizer is None:
        raise InputError(f"{source}: has no tokenizer; save the model's own into the folder")
    return tokenizer


def load_tokenizer_if_any(source: str) -> PreTrainedTokenizerBase | None:
    """The tokenizer beside a model, or None where there is none.

    Special tokens in a text are text to it, it pads on the right whatever the folder says, and it makes texts lower
    case where a folder of sentence-transformers says so.
    """
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in _FILES):
        return None
    lower = sentence_settings(source).do_lower_case
    try:
        tokenizer = _load(source)
    except InputError:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception
        problem = f"the tokenizer cannot be read: {first_line(error)}"
        raise InputError(f"{source}: {problem}; copy the folder again") from None
    reads_from_the_left(tokenizer).split_special_tokens = True
    return _lower_casing(tokenizer) if lower and isinstance(tokenizer, PreTrainedTokenizerFast) else tokenizer


def check_vocabulary(source: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise ``InputError`` where a tokenizer has tokens for which the model has no embedding."""
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"{source}: the tokenizer has {len(tokenizer):,} tokens and the model {vocab_size:,}: they do not belong "
            "together; save the model's own tokenizer into the folder, or resize the model's token embeddings"
        )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, folder: Path) -> None:
    """Save the tokenizer of a model beside it; ``tokenizer`` is not changed.

    It says whether special tokens in a text are text, as the commands read them: they are, except to a model that fills
    in masks, whose users write its mask token into the text.
    """
    tokenizer.save_pretrained(folder)
    fields = json.loads((folder / _CONFIG).read_text(encoding="utf-8"))
    fills_masks = isinstance(model, LinformerForMaskedLM) or head_of(model) == "masked words"
    write_json(folder / _CONFIG, {**fields, "split_special_tokens": not fills_masks})


def _load(source: str) -> PreTrainedTokenizerBase:
    config = model_file(source, _CONFIG)
    # Where the tokenizer's class lies beside it, transformers would ask on the terminal, or take another class.
    own_code = config is not None and '"auto_map"' in config.read_text(encoding="utf-8", errors="replace")
    if not own_code:
        return cast(PreTrainedTokenizerBase, AutoTokenizer.from_pretrained(source, trust_remote_code=False))
    if model_file(source, "tokenizer.json") is None:
        raise InputError(f"{source}: its tokenizer needs code from the folder, which is never run; save tokenizer.json")
    tokenizer: PreTrainedTokenizerBase = PreTrainedTokenizerFast.from_pretrained(source)
    tokenizer.init_kwargs.pop("auto_map")  # otherwise it would be saved, and ask for the code again
    return tokenizer


def _lower_casing(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same tokenizer after texts became lower case."""
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None and "A" not in backend.normalizer.normalize_str("A"):
        return tokenizer
    backend.normalizer = Sequence([Lowercase(), *([] if backend.normalizer is None else [backend.normalizer])])
    # A class for one family, such as BertTokenizer, would build another normalizer when the saved one is opened.
    kept = {name: getattr(tokenizer, name) for name in _KEPT}
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        split_special_tokens=True,
        extra_special_tokens=tokenizer.extra_special_tokens,
        **kept,
        **tokenizer.special_tokens_map,
    )


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


def load_reader(path: str) -> AnyModel | PreTrainedModel:
    """The model of a folder, of the class it was saved as; or any other encoder of transformers, without its head.

    Raises:
        InputError: it cannot be read, or is an encoder-decoder of transformers.
    """
    config: Any = load_any_config(path)
    if isinstance(config, AnyConfig):
        return load_model(path)
    if config.is_encoder_decoder:
        raise InputError(f"{path}: is an encoder-decoder ({config.model_type}); vectors are made by an encoder")
    return load_backbone(path)


def _check_positions(path: str, model: LinearEncoder) -> None:
    """Learned positions must reach as far as a model reads."""
    positions, length, base = Positions.said_by(model.config), read_length(model.config), base_of(model)
    for name in positions.tables:
        longest = len(base.get_parameter_or_buffer(name)) - positions.offset
        if longest < length:
            raise InputError(
                f"{path}: config.json lets the model read {length:,} tokens, and it has {longest:,} positions; copy "
                "the folder again, or make it linear with max_length"
            )


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder."""
    tokenizer = load_own_tokenizer(path)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{path}: has no tokenizer.json")
    return tokenizer

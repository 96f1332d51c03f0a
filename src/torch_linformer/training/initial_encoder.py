"""An encoder of transformers that a training begins with: opened, made linear, and below the head of a task."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import transformers
from torch import nn
from transformers import PreTrainedModel

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.encoders import linearize
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import LinearEncoder, opened_by, windowed_config
from torch_linformer.encoders.families import Place, set_dropout
from torch_linformer.encoders.linearize import with_options
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.load import UNUSED, AnyModel, check_model, open_by
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.tasks.task import Task
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.model_settings import READ_WINDOW, ModelSettings

Say = Callable[[str], None]
FIELDS: dict[Place, tuple[str, ...]] = {
    # Drawing the random numbers of a dropout on attention takes longer than the attention on a CPU (docs/log.md).
    "attention": ("attention_probs_dropout_prob",),
    # A first head is fitted to states without dropout, and what dropout makes of them is noise to it (docs/log.md).
    "states": ("hidden_dropout_prob", "classifier_dropout"),
}


def open_encoder(first: FirstModel, settings: ModelSettings, say: Say = lambda sentence: None) -> LinearEncoder:
    """The encoder to begin with, in float32, which reads ``settings.length`` tokens.

    It has the head for masked words where they are learned, and otherwise none. ``say`` is told what is new.

    Raises:
        InputError: it cannot be read or made linear, or has no head for masked words.
    """
    auto = transformers.AutoModelForMaskedLM if settings.task == "mlm" else transformers.AutoModel
    if opened_by(auto, type(first.config)) is None:
        raise InputError(
            f"--from {first.source}: {first.config.model_type} has no head for masked words in transformers; --task "
            "mlm begins with an encoder that has one"
        )
    encoder = _opened(first, auto, say)
    try:
        if not isinstance(encoder, LinearEncoder):
            return _linear(encoder, first.source, settings, say)
        if encoder.config.longest_input != settings.length:
            options = replace(encoder.config.linear_options, max_length=settings.length)
            encoder = with_options(encoder, options)
    except ValueError as error:
        raise InputError(f"--from {first.source}: {first_line(error)}") from None
    return cast(LinearEncoder, encoder)


def _opened(first: FirstModel, auto: Any, say: Say) -> PreTrainedModel:
    """The model that an Auto class makes of a folder; ``say`` is told of a head that the folder does not have."""
    check_model(first.source, first.config)
    model, report = open_by(auto, first.source, first.config)
    missing = sorted(name for name in report["missing_keys"] if UNUSED not in name)
    has_head = model.base_model is not model
    of_encoder = [name for name in missing if not has_head or name.startswith(f"{model.base_model_prefix}.")]
    if of_encoder:
        raise InputError(
            f"{first.source}: the weights lack {of_encoder[0]}, which config.json asks for; copy the folder again"
        )
    if missing:
        say(f"{first.source} has no weights for {missing[0]}: the head for masked words is new")
    return model


def _linear(encoder: PreTrainedModel, source: str, settings: ModelSettings, say: Say) -> LinearEncoder:
    """A linear encoder of one that is not, with the slots and the window of the settings."""
    longest = Positions.of(base_of(encoder)).longest
    usual = sentence_settings(source).longest(longest)
    linear = linearize(
        encoder,
        k=None if settings.k is None else int(settings.k),
        window=settings.window,
        max_length=settings.length,
        usual_length=usual,
    )
    saved = (encoder.config.architectures or [type(encoder).__name__])[0]
    kept = "" if settings.task == "mlm" or saved == type(encoder).__name__ else f", without the head of {saved}"
    what = f"{type(encoder).__name__}{kept}, made linear here"
    if usual < min(longest, settings.length):
        say(f"{source}: {what}, begins as a reader of windows of {usual} tokens, which its folder says it is used with")
    else:
        say(f"{source}: {what}, not distilled: linformer adapt first keeps more of it")
    return cast(LinearEncoder, linear)


def on_encoder(encoder: LinearEncoder, task: Task, labels: dict[str, Any], pooling: str) -> AnyModel:
    """A model for a task with an encoder's weights.

    Vectors and masked words are learned by the encoder itself, as transformers has it.

    Args:
        encoder: with a head for masked words where these are learned.
        task: what is learned.
        labels: what the configuration of a head says of them.
        pooling: what a classifier reads.
    """
    config: Any = copy.deepcopy(encoder.config)
    set_dropout(config, "attention", 0.0)
    if issubclass(task.model_class, LinformerModel | LinformerForMaskedLM):
        if "pooling" in labels:
            config.pooling = labels["pooling"]
            set_dropout(config, "states", labels["hidden_dropout_prob"])
        whole: Any = type(encoder)(config)
        _load(whole, encoder)
        return cast(LinearEncoder, whole)
    config.architectures = None
    fields = {name: value for name, value in labels.items() if name != "type_vocab_size"}
    heads = LinformerConfig(backbone_config=config, pooling=pooling, **fields)
    if issubclass(task.model_class, LinformerForSequenceClassification):
        leave_out_dropout(heads, "states")
    model = task.model_class(heads)
    _load(cast(EncoderBackbone, model.base_model).body, encoder)
    return model


def in_windows(
    first: FirstModel, settings: ModelSettings, task: Task, labels: dict[str, Any], say: Say
) -> LinformerForSequenceClassification:
    """A classifier on the encoder as it is, which reads rows of any length in windows."""
    encoder = _opened(first, transformers.AutoModel, say)
    positions = Positions.of(base_of(encoder))
    window = settings.read_window or min(READ_WINDOW, positions.longest)
    if window > positions.longest:
        raise InputError(f"--read-window {window}: {first.source} reads at most {positions.longest:,} tokens at once")
    body = windowed_config(encoder, positions)
    before, after = DocumentEncoder(task.tokenizer, settings.length).marks
    heads = LinformerConfig(
        backbone_config=body,
        read_window=window,
        exact_first=len(before),
        exact_last=len(after),
        max_position_embeddings=settings.length,
        pooling=first.classifier_pooling,
        **{name: value for name, value in labels.items() if name != "type_vocab_size"},
    )
    leave_out_dropout(heads, "attention")
    leave_out_dropout(heads, "states")
    model = LinformerForSequenceClassification(heads)
    _load(cast(EncoderBackbone, model.base_model).body, encoder)
    return model


def _load(body: nn.Module, encoder: PreTrainedModel) -> None:
    """Give one encoder the weights of another, but not those of a pooler that it has not."""
    report = body.load_state_dict(encoder.state_dict(), strict=False)
    differ = [name for name in (*report.missing_keys, *report.unexpected_keys) if not name.startswith(UNUSED)]
    assert not differ, differ


def leave_out_dropout(config: LinformerConfig, place: Place) -> None:
    """Let a configuration of which no model is built yet have no dropout in a place."""
    if config.backbone_config is not None:
        set_dropout(config.backbone_config, place, 0.0)
    for name in FIELDS[place]:
        setattr(config, name, 0.0)


def freeze_lowest(body: nn.Module, attentions: list[str], number: int) -> None:
    """Keep what comes before the layers of an encoder, and its lowest layers, as they are.

    Args:
        body: the encoder without a head.
        attentions: names of its attentions, in the order of their layers.
        number: of layers.

    Raises:
        InputError: layers share their weights.
    """
    layers = list(dict.fromkeys(_layer_of(name) for name in attentions))
    if len(layers) < cast(Any, body).config.num_hidden_layers:
        raise InputError(f"--freeze-layers {number}: the layers of this encoder share their weights: leave it out")
    for name, child in body.named_children():
        if layers[0].startswith(f"{name}."):
            break
        child.requires_grad_(False)
    for layer in layers[:number]:
        body.get_submodule(layer).requires_grad_(False)


def _layer_of(attention: str) -> str:
    """The name of the layer that an attention belongs to: up to the first number in it."""
    parts = attention.split(".")
    end = next(number for number, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[: end + 1])

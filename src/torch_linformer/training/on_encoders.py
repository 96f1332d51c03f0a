"""A model for a task on a linear encoder: its body below a head of this package, or all of it."""

import copy
from typing import Any, cast

from torch import nn

from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.dropouts import Place, set_dropout
from torch_linformer.errors import InputError
from torch_linformer.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.model_folder import AnyModel
from torch_linformer.opening.pretrained import UNUSED
from torch_linformer.tasks.task import Task

FIELDS: dict[Place, tuple[str, ...]] = {
    # Drawing the random numbers of a dropout on attention takes longer than the attention on a CPU (docs/log.md).
    "attention": ("attention_probs_dropout_prob",),
    # A first head is fitted to states without dropout, and what dropout makes of them is noise to it (docs/log.md).
    "states": ("hidden_dropout_prob", "classifier_dropout"),
}


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


def _load(body: nn.Module, encoder: LinearEncoder) -> None:
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

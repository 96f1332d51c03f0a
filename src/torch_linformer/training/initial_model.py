"""The model that a training begins with."""

from collections import Counter
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, set_seed

from torch_linformer.encoders.attentions import find_attentions
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import (
    LinformerConfig,
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.load import AnyConfig, AnyModel, check_vocabulary, load_model, reader_config
from torch_linformer.tasks.task import Task
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_encoder import (
    Say,
    freeze_lowest,
    in_windows,
    leave_out_dropout,
    on_encoder,
    open_encoder,
)
from torch_linformer.training.model_settings import ModelSettings
from torch_linformer.training.new_model import build_config, build_seq2seq_config
from torch_linformer.training.splits import Splits


def build_model(
    settings: ModelSettings,
    first: FirstModel | None,
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    splits: Splits,
    say: Say = lambda sentence: None,
) -> AnyModel:
    """A model for the task: all of random weights that follow from the seed, or with those of the first model.

    ``say`` is told what becomes of the first model.

    Raises:
        InputError: the first model cannot read this many tokens, or cannot be linear.
    """
    set_seed(settings.seed)
    if settings.task == "seq2seq":
        return _build_seq2seq(settings, first, task, tokenizer)
    labels = {
        **task.config,
        "class_weights": _class_weights(settings, splits),
        "lexical_features": None,
        "lexical_letters": 0,
        "threshold": 0.5,
        "max_answer_length": None,
    }
    if first is None:
        return task.model_class(build_config(settings, tokenizer, labels))
    model: AnyModel
    if first.reads_in_windows(settings):
        model = in_windows(first, settings, task, labels, say)
        check_vocabulary(first.source, tokenizer, model.config.vocab_size)
    elif isinstance(source := _open_first(first, settings, task, say), LinearEncoder):
        check_vocabulary(first.source, tokenizer, source.config.vocab_size)
        model = on_encoder(source, task, labels, first.classifier_pooling)
    else:
        model = _on_layers(source, task, labels)
    if settings.freeze_layers > 0:
        _freeze_lowest(model, settings.freeze_layers)
    return model


def _open_first(first: FirstModel, settings: ModelSettings, task: Task, say: Say) -> AnyModel:
    """The model to begin with, in float32; of one whose task needs no more of it, the encoder of transformers in it."""
    if isinstance(first.config, LinearConfig) or not isinstance(first.config, AnyConfig):
        return open_encoder(first, settings, say)
    source = cast(LinformerPreTrainedModel, load_model(first.source))
    _read_up_to(source, settings.length)
    if issubclass(task.model_class, LinformerModel) and isinstance(source.base_model, EncoderBackbone):
        return cast(LinearEncoder, source.base_model.body)
    return source


def _on_layers(source: LinformerPreTrainedModel, task: Task, labels: dict[str, Any]) -> LinformerPreTrainedModel:
    """A model for the task with the weights of another one of this package."""
    types = max(source.config.type_vocab_size, labels.pop("type_vocab_size", 0))
    if source.config.backbone_config is None:
        labels["type_vocab_size"] = types
    config = LinformerConfig(**{**source.config.to_diff_dict(), "architectures": None, **labels})
    leave_out_dropout(config, "attention")
    if has_new_head(source.config, task, config):
        leave_out_dropout(config, "states")
    model = task.model_class(config)
    _carry_over(source, model)
    return model


def _build_seq2seq(
    settings: ModelSettings, first: FirstModel | None, task: Task, tokenizer: PreTrainedTokenizerFast
) -> LinformerPreTrainedModel:
    """A new encoder-decoder, or another that continues to learn."""
    if first is None:
        return task.model_class(cast(Any, build_seq2seq_config(settings, tokenizer, task.config)))
    model = cast(LinformerForConditionalGeneration, load_model(first.source))
    _read_up_to(model, settings.length)
    _read_up_to(model.decoder, settings.target_length, "--max-target-length")
    return model


def _read_up_to(model: LinformerPreTrainedModel, length: int, option: str = "--max-length") -> None:
    """Make a model take rows of ``length`` tokens; one that reads rows of any length only records the length."""
    if reader_config(model.config).longest_input is None:
        model.config.max_position_embeddings = length
        return
    try:
        model.resize_max_len(length, mode="keep")
    except ValueError as error:
        raise InputError(f"{option} {length}: {error}; shorter texts are not padded to it") from None


def has_new_head(first: AnyConfig | PreTrainedConfig, task: Task, config: AnyConfig) -> bool:
    """Whether the model of another configuration becomes a classifier whose head knows nothing yet."""
    is_classifier = issubclass(task.model_class, LinformerForSequenceClassification)
    return is_classifier and not _has_same_head(first, task.model_class, config)


def _has_same_head(
    first: AnyConfig | PreTrainedConfig, model_class: type[LinformerPreTrainedModel], config: AnyConfig
) -> bool:
    """Whether the head of a model, by its configuration, answers what that of another is to learn.

    A regression's head predicts in the unit of its own documents, so that is not what others want of it.
    """
    same = first.architectures == [model_class.__name__] and first.id2label == config.id2label
    return same and config.problem_type != "regression"


def _carry_over(source: LinformerPreTrainedModel, model: LinformerPreTrainedModel) -> None:
    """Copy the weights of one model into another, which may have more token types; the head too, where it is the same.

    Of another head its pooler is copied.
    """
    if _has_same_head(source.config, type(model), model.config):
        pairs: list[tuple[nn.Module, nn.Module]] = [(source, model)]
    else:
        pairs = [(source.base_model, model.base_model)]
        if type(source) is type(model) and isinstance(model, LinformerForSequenceClassification):
            pairs.append((cast(LinformerForSequenceClassification, source).pooler, model.pooler))
    with torch.no_grad():
        for known, new in pairs:
            weights = new.state_dict()
            for name, weight in known.state_dict().items():
                if not name.startswith("lexical."):  # that head is fitted anew
                    weights[name][: len(weight)] = weight


def _freeze_lowest(model: AnyModel, number: int) -> None:
    """Keep the embeddings and the lowest layers, with what these share with others, as they are.

    No gradient goes below them, and so a step saves their backward pass too.
    """
    backbone: Any = model.base_model
    body = backbone.body if isinstance(backbone, EncoderBackbone) else backbone
    if isinstance(body, LinearEncoder) or isinstance(backbone, EncoderBackbone):
        attentions = body.config.attentions if isinstance(body, LinearEncoder) else find_attentions(body)
        freeze_lowest(body, list(attentions), number)
        return
    for kept in (body.embeddings, *body.encoder.layers[:number]):
        kept.requires_grad_(False)


def _class_weights(settings: ModelSettings, splits: Splits) -> list[float] | None:
    """Weights inverse to how often a label occurs, 1 on average over the documents."""
    if settings.class_weights == "none":
        return None
    counts = Counter(splits.train["label"])
    return [counts.total() / (len(counts) * max(1, counts[name])) for name in splits.names]

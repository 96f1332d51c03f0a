"""The model that a training begins with: a new one, or another below the head of the task."""

import copy
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, set_seed

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.encoders import linearize
from torch_linformer.encoders.attentions import base_of, find_attentions
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder, opened_by, windowed_config
from torch_linformer.encoders.families import set_dropout
from torch_linformer.encoders.linearize import with_options
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.models import (
    LinformerConfig,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.load import (
    AnyConfig,
    AnyModel,
    check_model,
    check_vocabulary,
    check_weights,
    is_pooler,
    load_model,
    open_by,
    reader_config,
)
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.tasks.task import Task
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.new_model import build_config, build_seq2seq_config
from torch_linformer.training.splits import Splits
from torch_linformer.training.train_settings import READ_WINDOW, TrainSettings

Say = Callable[[str], None]


def build_model(
    settings: TrainSettings,
    first: FirstModel | None,
    task: Task,
    splits: Splits,
    say: Say = lambda sentence: None,
) -> AnyModel:
    """A model for the task: all of random weights that follow from the seed, or with those of the first model.

    ``say`` is told what becomes of the first model.

    Raises:
        InputError: the first model cannot read this many tokens, or cannot be linear.
    """
    set_seed(settings.seed)
    tokenizer = task.tokenizer
    if settings.task == "seq2seq":
        return _build_seq2seq(settings, first, task)
    labels = {
        **task.config,
        "class_weights": _class_weights(settings, splits),
        "lexical_features": None,
        "lexical_letters": 0,
        "threshold": 0.5,
        "max_answer_length": None,
    }
    if first is None:
        return task.model_class(build_config(settings, len(tokenizer), tokenizer.pad_token_id, labels))
    model: AnyModel
    if first.reads_in_windows(settings):
        model = _in_windows(first, settings, task, labels, say)
    elif isinstance(first.config, LinearConfig) or not isinstance(first.config, AnyConfig):
        model = _on_encoder(_open_encoder(first, settings, say), task, labels, first.classifier_pooling)
    else:
        source = cast(LinformerPreTrainedModel, load_model(first.source))
        _read_up_to(source, settings.length)
        backbone = source.base_model
        if issubclass(task.model_class, LinformerModel) and isinstance(backbone, EncoderBackbone):
            model = _on_encoder(cast(LinearEncoder, backbone.body), task, labels, first.classifier_pooling)
        else:
            model = _on_layers(source, task, labels)
    check_vocabulary(first.source, tokenizer, model.config.vocab_size)
    if settings.freeze_layers > 0:
        _freeze_lowest(model, settings.freeze_layers)
    return model


def _on_layers(source: LinformerPreTrainedModel, task: Task, labels: dict[str, Any]) -> LinformerPreTrainedModel:
    """A model for the task with the weights of another one of this package."""
    types = max(source.config.type_vocab_size, labels.pop("type_vocab_size", 0))
    if source.config.backbone_config is None:
        labels["type_vocab_size"] = types
    config = LinformerConfig(**{**source.config.to_diff_dict(), "architectures": None, **labels})
    _leave_out_dropout(config, has_new_head=has_new_head(source.config, task, config))
    model = task.model_class(config)
    _carry_over(source, model)
    return model


def _build_seq2seq(settings: TrainSettings, first: FirstModel | None, task: Task) -> LinformerPreTrainedModel:
    """A new encoder-decoder, or another that continues to learn."""
    if first is None:
        return task.model_class(cast(Any, build_seq2seq_config(settings, task.tokenizer, task.config)))
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
    """Whether the head of a model, by its configuration, answers what that of another is to learn."""
    # A regression's head predicts in the unit of its own documents, so that is not what others want of it.
    same = first.architectures == [model_class.__name__] and first.id2label == config.id2label
    return same and config.problem_type != "regression"


def _carry_over(source: LinformerPreTrainedModel, model: LinformerPreTrainedModel) -> None:
    """Copy the weights of one model into another, which may have more token types, with the same head or its pooler."""
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
    """Keep the embeddings and the lowest layers as they are; a step saves their backward pass too."""
    backbone: Any = model.base_model
    body = backbone.body if isinstance(backbone, EncoderBackbone) else backbone
    if not isinstance(body, LinearEncoder) and not isinstance(backbone, EncoderBackbone):
        for kept in (body.embeddings, *body.encoder.layers[:number]):
            kept.requires_grad_(False)
        return
    attentions = body.config.attentions if isinstance(body, LinearEncoder) else find_attentions(body)
    # The layer that an attention belongs to: its name up to the first number in it.
    layers = list(dict.fromkeys(cast(re.Match[str], re.match(r".*?\.\d+(?=\.)", name))[0] for name in attentions))
    if len(layers) < body.config.num_hidden_layers:
        raise InputError(f"--freeze-layers {number}: the layers of this encoder share their weights: leave it out")
    for name, child in body.named_children():
        if layers[0].startswith(f"{name}."):
            break
        child.requires_grad_(False)
    for layer in layers[:number]:
        body.get_submodule(layer).requires_grad_(False)


def _class_weights(settings: TrainSettings, splits: Splits) -> list[float] | None:
    """Weights inverse to how often a label occurs, 1 on average over the documents."""
    if settings.class_weights == "none":
        return None
    counts = Counter(splits.train["label"])
    return [counts.total() / (len(counts) * max(1, counts[name])) for name in splits.names]


def _open_encoder(first: FirstModel, settings: TrainSettings, say: Say) -> LinearEncoder:
    """The encoder to begin with, in float32, with the head for masked words where they are learned."""
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
    prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
    check_weights(first.source, report, lambda name: is_pooler(name) or not name.startswith(prefix))
    if missing := sorted(name for name in report["missing_keys"] if not is_pooler(name)):
        say(f"{first.source} has no weights for {missing[0]}: the head for masked words is new")
    return model


def _linear(encoder: PreTrainedModel, source: str, settings: TrainSettings, say: Say) -> LinearEncoder:
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


def _on_encoder(encoder: LinearEncoder, task: Task, labels: dict[str, Any], pooling: str) -> AnyModel:
    """A model for a task with an encoder's weights: for vectors and masked words the encoder itself."""
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
    return _with_head(task, encoder, labels, backbone_config=config, pooling=pooling)


def _in_windows(
    first: FirstModel, settings: TrainSettings, task: Task, labels: dict[str, Any], say: Say
) -> LinformerForSequenceClassification:
    """A classifier on the encoder as it is, which reads rows of any length in windows."""
    encoder = _opened(first, transformers.AutoModel, say)
    positions = Positions.of(base_of(encoder))
    window = settings.read_window or min(READ_WINDOW, positions.longest)
    if window > positions.longest:
        raise InputError(f"--read-window {window}: {first.source} reads at most {positions.longest:,} tokens at once")
    body = windowed_config(encoder, positions)
    before, after = DocumentEncoder(task.tokenizer, settings.length).marks
    model = _with_head(
        task,
        encoder,
        labels,
        backbone_config=body,
        read_window=window,
        exact_first=len(before),
        exact_last=len(after),
        max_position_embeddings=settings.length,
        pooling=first.classifier_pooling,
    )
    return cast(LinformerForSequenceClassification, model)


def _with_head(task: Task, encoder: PreTrainedModel, labels: dict[str, Any], **fields: Any) -> LinformerPreTrainedModel:
    """A model for a task on an encoder, whose own head is new; ``labels`` and ``fields`` are its configuration."""
    config = LinformerConfig(**fields, **{name: value for name, value in labels.items() if name != "type_vocab_size"})
    is_classifier = issubclass(task.model_class, LinformerForSequenceClassification)
    _leave_out_dropout(config, has_new_head=is_classifier)
    model = task.model_class(config)
    _load(cast(EncoderBackbone, model.base_model).body, encoder)
    return model


def _load(body: nn.Module, encoder: PreTrainedModel) -> None:
    """Give one encoder the weights of another, but not those of a pooler that it has not."""
    report = body.load_state_dict(encoder.state_dict(), strict=False)
    differ = [name for name in (*report.missing_keys, *report.unexpected_keys) if not is_pooler(name)]
    assert not differ, differ


def _leave_out_dropout(config: LinformerConfig, *, has_new_head: bool) -> None:
    """Let a configuration of which no model is built yet have no dropout on attention, nor below a new classifier."""
    for part in filter(None, (config, config.backbone_config)):
        # Drawing the random numbers of a dropout on attention takes longer than the attention on a CPU (docs/log.md).
        set_dropout(part, "attention", 0.0)
        if has_new_head:  # fitted to states without dropout: what that makes of them is noise to it (docs/log.md)
            set_dropout(part, "states", 0.0)
    if has_new_head:
        config.classifier_dropout = 0.0

"""The model that a training begins with."""

import dataclasses
from collections import Counter
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast, set_seed

from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import (
    LinformerConfig,
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerPreTrainedModel,
    LinformerSeq2SeqConfig,
)
from torch_linformer.models.configuration import FIELDS, with_changes
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.model_folder import AnyConfig, AnyModel, check_vocabulary, load_model, reader_config
from torch_linformer.tasks.latent_semantics import token_vectors
from torch_linformer.tasks.task import Task
from torch_linformer.training.first_model import (
    Say,
    first_config,
    freeze_lowest,
    leave_out_dropout,
    length_read,
    on_encoder,
    open_first,
    pooling_of_heads,
    refuse_options,
)
from torch_linformer.training.model_settings import DECODER_SLOTS, WINDOW, ModelSettings
from torch_linformer.training.sizes import SIZES, size_of_width
from torch_linformer.training.splits import Splits
from torch_linformer.training.train_settings import FINE_TUNING, TrainSettings

_LSA_DOCUMENTS = 20_000  # at most; drawn at random
_LSA_STEPS = 100  # at the peak rate, that the optimizer would need to undo the vectors
_MODEL_OPTIONS = ("attention", "activation_memory", "chunk_size")  # those of a model that are no options of attention


def build_model(
    settings: ModelSettings,
    task: Task,
    tokenizer: PreTrainedTokenizerFast,
    splits: Splits,
    say: Say = lambda sentence: None,
) -> AnyModel:
    """A model for the task: all of random weights that follow from the seed, or with those of another model.

    ``say`` is told what becomes of the other model.

    Raises:
        InputError: the other model cannot read this many tokens, or cannot be linear.
    """
    set_seed(settings.seed)
    if settings.task == "seq2seq":
        return _build_seq2seq(settings, task, tokenizer)
    labels = {
        **task.config,
        "class_weights": _class_weights(settings, splits),
        "lexical_buckets": None,
        "threshold": 0.5,
        "max_answer_length": None,
    }
    if settings.from_model is None:
        return task.model_class(build_config(settings, tokenizer, labels))
    source = open_first(settings, say)
    if isinstance(source, LinformerPreTrainedModel):
        _read_up_to(source, settings.length)
        if issubclass(task.model_class, LinformerModel) and isinstance(source.base_model, EncoderBackbone):
            source = cast(LinearEncoder, source.base_model.body)
    if isinstance(source, LinearEncoder):
        check_vocabulary(settings.from_model, tokenizer, source.config.vocab_size)
        model = on_encoder(source, task, labels, pooling_of_heads(settings.from_model))
    else:
        model = _on_layers(source, task, labels)
    if settings.freeze_layers > 0:
        _freeze_lowest(model, settings.freeze_layers)
    return model


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


def _build_seq2seq(settings: ModelSettings, task: Task, tokenizer: PreTrainedTokenizerFast) -> LinformerPreTrainedModel:
    """A new encoder-decoder, or another that continues to learn."""
    if settings.from_model is None:
        return task.model_class(cast(Any, build_seq2seq_config(settings, tokenizer, task.config)))
    model = cast(LinformerForConditionalGeneration, load_model(settings.from_model))
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


def check_first_model(settings: ModelSettings, config: AnyConfig | PreTrainedConfig) -> None:
    """Raise ``InputError`` where a model cannot learn what is wanted because of what it is or what its tokens see."""
    refuse_options(settings, config)
    seq2seq, causal = isinstance(config, LinformerSeq2SeqConfig), getattr(config, "causal", False)
    if settings.task == "seq2seq" and not seq2seq:
        wrong = "is no encoder-decoder; --task seq2seq begins with a model of --task seq2seq, or with a new one"
    elif settings.task != "seq2seq" and seq2seq:
        wrong = "is an encoder-decoder, which only learns --task seq2seq; begin with another model, or with a new one"
    elif settings.task == "clm" and not causal:
        wrong = "its tokens see those after them; --task clm begins with a model of --task clm, or with a new one"
    elif settings.task == "embed" and causal:
        wrong = "its tokens do not see those after them; --task embed begins with another model, or with a new one"
    elif settings.task == "mlm" and causal:
        wrong = (
            "its tokens do not see those after them, as --task mlm needs; take --task clm, or begin with a new model"
        )
    elif settings.task == "mlm" and getattr(config, "backbone_config", None) is not None:
        wrong = "has no head for masked words any more; --task mlm begins with the encoder that it was made of"
    elif settings.freeze_layers > (layers := reader_config(cast(AnyConfig, config)).num_hidden_layers):
        wrong = f"--freeze-layers {settings.freeze_layers} is more than its {layers} layers"
    else:
        return
    raise InputError(f"--from {settings.from_model}: {wrong}")


def with_the_first_model(settings: TrainSettings) -> TrainSettings:
    """The settings completed by the model that the training begins with, if any."""
    if settings.from_model is None:
        return settings
    first = first_config(settings.from_model)
    check_first_model(settings, first)
    if isinstance(first, LinformerSeq2SeqConfig) and settings.max_target_length is None:
        longest = cast(LinformerConfig, first.decoder).max_position_embeddings
        settings = dataclasses.replace(settings, max_target_length=longest)
    settings = dataclasses.replace(settings, max_length=settings.max_length or length_read(first))
    if settings.learning_rate is not None or settings.freeze:
        return settings
    peak_rate = FINE_TUNING * size_of_width(reader_config(cast(AnyConfig, first)).hidden_size).learning_rate
    return dataclasses.replace(settings, learning_rate=peak_rate)


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
    if isinstance(body, LinearEncoder):
        freeze_lowest(body, list(body.config.attentions), number)
        return
    for kept in (body.embeddings, *body.encoder.layers[:number]):
        kept.requires_grad_(False)


def add_latent_semantics(model: LinformerPreTrainedModel, documents: Dataset, *, peak_rate: float, seed: int) -> None:
    """Add the tokens' vectors to the random embeddings, at a scale that training refines and does not erase.

    ``documents`` are the tokenized training documents, with a column "input_ids".
    """
    weight = cast(nn.Embedding, model.get_input_embeddings()).weight
    order = np.random.default_rng(seed).permutation(len(documents))
    drawn = documents.select(np.sort(order[:_LSA_DOCUMENTS])).with_format("numpy")
    vectors = token_vectors((row["input_ids"] for row in drawn), weight.shape[0], weight.shape[1], seed=seed)
    with torch.no_grad():
        weight += torch.from_numpy(vectors) * (_LSA_STEPS * peak_rate)
        weight[model.config.pad_token_id] = 0


def build_config(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, labels: dict[str, Any]
) -> LinformerConfig:
    """The configuration of the new model that ``settings`` ask for, with what the task sets in it."""
    size, causal = SIZES[settings.size], settings.task == "clm"
    same_names = [name for name in (*FIELDS, *_MODEL_OPTIONS) if hasattr(settings, name) and settings.applies(name)]
    return LinformerConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": size.hidden_size,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "intermediate_size": size.feed_forward,
            "hidden_dropout_prob": size.dropout,
            "attention_probs_dropout_prob": 0.0,
            "position_embedding": settings.positions,
            "type_vocab_size": 0,
            "max_position_embeddings": settings.length,
            "pad_token_id": tokenizer.pad_token_id,
            **{name: getattr(settings, name) for name in same_names},
            "sharing": settings.map_sharing,
            "k": settings.slots,
            "window": settings.local_window,
            "causal": causal,
            "lm_head_transform": not causal,
            "embedding_norm": not causal,  # with one a language model learns much more slowly (docs/log.md)
            "pooling": "mean_max",
            "norm_first": True,
            **labels,
        }
    )


def build_seq2seq_config(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, tokens: dict[str, Any]
) -> LinformerSeq2SeqConfig:
    """The configuration of the new encoder-decoder that ``settings`` ask for.

    The decoder reads the encoder's output through slots like the encoder's. It is short, and keeps the inputs of its
    layers where the encoder is reversible, which a decoder cannot be.
    """
    encoder = build_config(settings, tokenizer, tokens)
    target = {
        **encoder.to_diff_dict(),
        "max_position_embeddings": settings.target_length,
        "causal": True,
        "position_embedding": "rotary",
        "window": WINDOW,
        "k": min(DECODER_SLOTS, settings.target_length // 4),
        "exact_first": 0,  # that of documents
        "activation_memory": "checkpoint" if encoder.activation_memory == "reversible" else encoder.activation_memory,
        "lm_head_transform": False,
    }
    decoder = LinformerConfig(**with_changes(target, {}))
    return LinformerSeq2SeqConfig(encoder=encoder, decoder=decoder, pad_token_id=tokenizer.pad_token_id, **tokens)


def _class_weights(settings: ModelSettings, splits: Splits) -> list[float] | None:
    """Weights inverse to how often a label occurs, 1 on average over the documents."""
    if settings.class_weights == "none":
        return None
    counts = Counter(splits.train["label"])
    return [counts.total() / (len(counts) * max(1, counts[name])) for name in splits.names]

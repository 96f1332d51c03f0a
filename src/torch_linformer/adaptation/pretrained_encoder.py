"""The encoder to be adapted: opened, with its tokenizer and the pooling that makes embeddings."""

import copy
from dataclasses import dataclass, replace
from typing import Any, cast

import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.adaptation.objectives import OBJECTIVES, Embeddings
from torch_linformer.adaptation.remote_code import names_own_code, run_own_code
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.families import check_kind
from torch_linformer.encoders.heads import AUTO_OF_HEAD, Head, head_of, head_of_class
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.load import (
    UNUSED,
    check_model,
    check_vocabulary,
    load_any_config,
    load_tokenizer,
    needs_code,
    open_by,
)
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.sentence_transformers import (
    AS_THEY_ARE,
    SentenceSettings,
    sentence_pooling,
    sentence_settings,
)

LINEAR = ("linformer", "linear_encoder")  # types of models


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder to be adapted.

    Attributes:
        path: folder, name on the hub, or short name, as it was given.
        model: the encoder with the head that is kept, in float32.
        tokenizer: its own.
        objective: what it is used for.
        sentences: whether it is a folder of sentence-transformers.
        settings: how that reads texts.
    """

    path: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    objective: Embeddings
    sentences: bool = False
    settings: SentenceSettings = AS_THEY_ARE

    @property
    def longest(self) -> int:
        """Tokens that it can read at once."""
        return Positions.of(base_of(self.model)).longest

    @property
    def usual_length(self) -> int:
        """Tokens that it reads at once in use."""
        return self.settings.longest(self.longest)


def load_encoder(
    path: str, task: str | None = None, seed: int = 0, trust_remote_code: bool = False
) -> PretrainedEncoder:
    """Open an encoder for a task, by default that of its head.

    Raises:
        InputError: it is missing, damaged, or of a kind that cannot be linear, has no head for the task, or needs code
            that is not trusted.
    """
    name, path = path, encoder_folder(path)
    config = load_any_config(path, trust_remote_code)
    check_model(path, config)
    pooling = sentence_pooling(path)
    if task is None and pooling is not None:
        task = "embed"
    if trust_remote_code and names_own_code(config):
        model = run_own_code(path, config, task)
        refuse_kind(path, model.config)
    else:
        if names_own_code(config) and not hasattr(transformers, (config.architectures or ["Auto"])[0]):
            raise needs_code(path)
        refuse_kind(path, config)
        model = _open(path, config, task)
    original = encoder_of(model, load_tokenizer(path), name, task=task, pooling=pooling, seed=seed)
    return original if pooling is None else replace(original, sentences=True, settings=sentence_settings(path))


def encoder_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    path: str,
    *,
    task: str | None = None,
    pooling: str | None = None,
    seed: int = 0,
) -> PretrainedEncoder:
    """What is adapted: a model that :func:`refuse_kind` accepted, in float32.

    Raises:
        InputError: it has no head for the task, or is not the tokenizer's.
    """
    head = head_of(model)
    if task is None:
        task = next((name for name, objective in OBJECTIVES.items() if objective.head == head), "embed")
    if task == "embed":
        model = cast(PreTrainedModel, model.base_model)
    elif OBJECTIVES[task].head != head:
        raise _no_head(path, task)
    config: Any = model.config
    check_vocabulary(path, tokenizer, config.vocab_size)
    if pooling is None:  # a classifier says what it reads
        pooling = getattr(config, "classifier_pooling", "cls") if task == "classify" else "mean"
    return PretrainedEncoder(path, model, tokenizer, OBJECTIVES[task](model, tokenizer, pooling, seed))


def refuse_kind(path: str, config: Any) -> None:
    """Raise ``InputError`` for a model whose attention cannot be replaced by slots."""
    if config.model_type in LINEAR:
        raise InputError(
            f"{path} ({config.model_type}) is linear already: linformer train --from {path} goes on with it"
        )
    try:
        check_kind(path, config)
    except ValueError as error:
        raise InputError(str(error)) from None


def in_float32(model: PreTrainedModel) -> PreTrainedModel:
    """A copy."""
    copied = copy.deepcopy(model)
    cast(nn.Module, copied).to(WEIGHTS)
    return copied


def _open(path: str, config: PreTrainedConfig, task: str | None) -> PreTrainedModel:
    """The model of a folder of transformers with the head for a task, by default that it was saved with."""
    saved = _saved_head(config)
    head: Head = saved if task is None else OBJECTIVES[task].head
    if head not in (saved, "none"):
        raise _no_head(path, str(task))
    auto: Any = AUTO_OF_HEAD.get(head, transformers.AutoModel)
    model, report = open_by(auto, path, config)
    lacking = sorted(name for name in report["missing_keys"] if UNUSED not in name)
    if lacking:
        raise InputError(f"{path}: the weights lack {lacking[0]}, which config.json asks for; copy the folder again")
    return model


def _saved_head(config: PreTrainedConfig) -> Head:
    """The head that a folder's weights were saved with, as far as a task here has it."""
    name = (config.architectures or [""])[0]
    if name.endswith("ForPreTraining"):  # BERT's with next sentences: its masked words are kept
        return "masked words"
    kind = getattr(transformers, name, None)
    head = head_of_class(kind) if getattr(kind, "config_class", None) is type(config) else "none"
    return head if head in {objective.head for objective in OBJECTIVES.values()} else "none"


def _no_head(path: str, task: str) -> InputError:
    return InputError(f"--task {task}: {path} has no head for it; --task embed adapts only the encoder")

"""The encoder to be adapted: opened for a task, with its tokenizer and the pooling that makes embeddings.

One with code in its folder becomes the model of transformers that this code extends, if both compute the same.
"""

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.adaptation.objectives import OBJECTIVES, Embeddings
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.families import check_kind
from torch_linformer.encoders.heads import AUTO_OF_HEAD, Head, head_of, head_of_class
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.opening.load import (
    check_model,
    check_vocabulary,
    check_weights,
    is_pooler,
    load_any_config,
    load_tokenizer,
    longest_input,
    needs_code,
    open_by,
)
from torch_linformer.opening.sentence_transformers import (
    AS_THEY_ARE,
    SentenceSettings,
    document_vectors,
    sentence_pooling,
    sentence_settings,
)

OF_OWN_CODE = ("model_type", "auto_map", "architectures")  # of a configuration
KEPT_HEADS = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification")  # ends of the names of their classes
POSITIONS = "embeddings.position_ids"  # 0, 1, 2, …, which older versions of transformers saved


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder to be adapted."""

    path: str  # as it was given
    model: PreTrainedModel  # with the head that is kept, in float32
    tokenizer: PreTrainedTokenizerFast
    objective: Embeddings
    sentences: bool = False  # whether it is a folder of sentence-transformers, and how that reads texts
    settings: SentenceSettings = AS_THEY_ARE

    @property
    def usual_length(self) -> int:
        """Tokens that it reads at once in use: no more than it can."""
        return self.settings.longest(Positions.of(base_of(self.model)).longest)


def load_encoder(
    path: str, task: str | None = None, seed: int = 0, trust_remote_code: bool = False
) -> PretrainedEncoder:
    """Open an encoder for a task, by default that of its head.

    Raises:
        InputError: it is missing, damaged, or of a kind that cannot be linear, has no head for the task, or needs code
            that is not trusted.
    """
    config = load_any_config(path, trust_remote_code)
    check_model(path, config)
    _refuse_kind(path, config)
    pooling = sentence_pooling(path)
    pieces = None if pooling is None else document_vectors(path, config).pieces
    if pieces is not None and pieces.window is not None:
        raise InputError(
            f"{path}: makes vectors of windows of {pieces.window} tokens, and what is adapted reads texts at once; "
            "name the encoder it was trained with"
        )
    if task is None and pooling is not None:
        task = "embed"
    architecture = (config.architectures or [""])[0]
    auto_map = getattr(config, "auto_map", None) or {}
    needs = _is_own_code(type(config)) or any(name.startswith("AutoModel") for name in auto_map)
    if trust_remote_code and needs:
        names = {str(reference).rpartition(".")[2]: name for name, reference in auto_map.items()}
        auto: Any = getattr(transformers, names.get(architecture, "AutoModel"), AutoModel)
        try:
            model, report = auto.from_pretrained(path, config=config, trust_remote_code=True, output_loading_info=True)
        except Exception as error:  # the code may raise anything
            raise InputError(f"{path}: its own code cannot open it: {first_line(error)}") from None
        model = without_own_code(model, path, task, missing=report["missing_keys"])
        _refuse_kind(path, model.config)
    else:
        if needs and not hasattr(transformers, architecture or "Auto"):
            raise needs_code(path)
        saved = _saved_head(config)
        head: Head = saved if task is None else OBJECTIVES[task].head
        if head not in (saved, "none"):
            raise _no_head(path, str(task))
        model, report = open_by(AUTO_OF_HEAD.get(head, AutoModel), path, config)
        check_weights(path, report, is_pooler)
    original = encoder_of(model, load_tokenizer(path), path, task=task, pooling=pooling, seed=seed)
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
    """What is adapted: a model whose attention can be replaced, in float32.

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


def _refuse_kind(path: str, config: Any) -> None:
    """Raise ``InputError`` for a model whose attention cannot be replaced by slots."""
    if config.model_type in ("linformer", "linear_encoder"):
        raise InputError(
            f"{path} ({config.model_type}) is linear already: linformer train --from {path} goes on with it"
        )
    try:
        check_kind(path, config)
    except ValueError as error:
        raise InputError(str(error)) from None


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


def _is_own_code(cls: type) -> bool:
    """Whether a class belongs neither to transformers nor to this package."""
    return cls.__module__.partition(".")[0] not in ("transformers", "torch_linformer")


def without_own_code(
    model: PreTrainedModel, path: str, task: str | None = None, missing: Collection[str] = ()
) -> PreTrainedModel:
    """The model of transformers that the class of ``model`` extends, with its weights, checked to give the same output.

    ``task`` ``embed``, or None without a head that is kept, takes the encoder below it; ``missing`` are names of
    tensors that its file lacks.

    Raises:
        InputError: it extends no model, has other weights or lacks some, or computes something else.
    """

    def extended(side: PreTrainedModel) -> Any:
        """The nearest base class in transformers or in this package."""
        classes = type(side).__mro__
        return next(cls for cls in classes if issubclass(cls, PreTrainedModel) and not _is_own_code(cls))

    below = task == "embed" or (task is None and not extended(model).__name__.endswith(KEPT_HEADS))
    part = cast(PreTrainedModel, model.base_model) if below else model
    known, name = extended(part), type(part).__name__
    if known.__name__.endswith("PreTrainedModel"):
        remedy = "" if below else "; --task embed adapts the encoder below its head"
        raise InputError(f"{path}: {name} extends no model of transformers, only {known.__name__}{remedy}")
    prefix = "" if part is model else f"{model.base_model_prefix}."
    lacking = sorted(tensor.removeprefix(prefix) for tensor in missing if tensor.startswith(prefix))
    if part.base_model is part:
        lacking = [tensor for tensor in lacking if not is_pooler(tensor)]
    if lacking:
        raise InputError(f"{path}: the weights lack {lacking[0]}, which its own code wants; copy the folder again")
    fields = {key: value for key, value in part.config.to_dict().items() if key not in OF_OWN_CODE}
    twin: PreTrainedModel = known(known.config_class.from_dict(fields))
    theirs, ours = (cast(nn.Module, side).state_dict() for side in (part, twin))
    for key, tensor in theirs.items():
        if (key not in ours or ours[key].shape != tensor.shape) and not key.endswith(POSITIONS):
            raise InputError(f"{path}: {name} cannot be adapted: {known.__name__} has no counterpart of its {key}")
    cast(nn.Module, twin).load_state_dict(theirs, strict=False)
    try:
        same = _same_output(part, twin)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: {name} cannot read a text: {first_line(error)}") from None
    if not same:
        raise InputError(f"{path}: {name} computes something else than {known.__name__}, and cannot be adapted")
    return twin


@torch.no_grad()
def _same_output(model: PreTrainedModel, twin: PreTrainedModel) -> bool:
    """Whether both give the same for two texts of random tokens, one of the greatest length and one half as long."""
    padding, vocab_size = max(twin.config.pad_token_id or 0, 0), twin.config.vocab_size
    length = cast(int, longest_input(twin))
    token_ids = torch.randint(vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    token_ids[token_ids == padding] = (padding + 1) % vocab_size  # no real token is padding
    mask = torch.ones_like(token_ids)
    mask[1, length // 2 :] = 0
    token_ids[mask == 0] = padding

    def read(side: PreTrainedModel) -> Tensor:
        output = copy.deepcopy(cast(nn.Module, side)).cpu().float().eval()(input_ids=token_ids, attention_mask=mask)
        first: Tensor = next(iter(output.values())) if isinstance(output, dict) else output[0]
        return first[mask == 1] if first.ndim == 3 else first  # padding is not compared

    theirs, ours = read(model), read(twin)
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-4, atol=1e-4)

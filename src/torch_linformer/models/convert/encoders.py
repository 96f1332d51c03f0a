"""Encoders of transformers as Linformers of the same width, their slots the means of segments: what families share."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import build, check_names, fill, refusal, report_left_out
from torch_linformer.models.heads import LinformerForQuestionAnswering, LinformerForTokenClassification
from torch_linformer.models.with_attention import with_attention

Source = str | PathLike[str] | PreTrainedModel
Means = Literal["mean", "linear"]


@dataclass(frozen=True)
class Head:
    """A class of a family here.

    Attributes:
        model_class: what it becomes.
        names: of its parts beside the backbone, each with weight and bias, to ours.
        fields: of the configuration, over those of the family.
        hidden_act: the activation of a head for masked words, where it is not that of the layers.
    """

    model_class: type[LinformerPreTrainedModel]
    names: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    hidden_act: str | None = None


@dataclass(frozen=True)
class Family:
    """Models of one kind.

    Attributes:
        name: their ``model_type``.
        embeddings: names of tensors below the backbone's prefix, to ours.
        layer: names of the parts of layer {layer} there, each with weight and bias, to ours.
        heads: what their classes become.
        fields: names of ours in a configuration to theirs, beside :data:`SAME_FIELDS`.
        constants: what their configuration does not say because it is always so.
        repeated: tensors that are another under a second name.
        left_out: beginnings, below the prefix, of names that have no counterpart.
        positions_behind_padding: the position table begins with ``pad_token_id + 1`` rows for padding.
    """

    name: str
    embeddings: Mapping[str, str]
    layer: Mapping[str, str]
    heads: Mapping[str, Head]
    fields: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    positions_behind_padding: bool = False


SAME_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "initializer_range",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "problem_type",
    "id2label",
    "label2id",
)
BACKBONE = Head(LinformerModel)
TOKENS = Head(LinformerForTokenClassification, {"classifier": "classifier"})
ANSWERS = Head(LinformerForQuestionAnswering, {"qa_outputs": "qa_outputs"})


def on_first_token(model_class: type[LinformerPreTrainedModel], dense: str, classifier: str, activation: str) -> Head:
    """A classifier that reads the first token through a dense layer with an activation."""
    names = {dense: "pooler.dense", classifier: "classifier"}
    return Head(model_class, names, {"pooling": "cls", "classifier_hidden_act": activation})


def from_encoder(
    family: Family, source: Source, max_len: int | None, k: int | None, projection: Means
) -> LinformerPreTrainedModel:
    """A Linformer of a model of the family; see :func:`torch_linformer.models.convert.from_bert`."""
    if projection not in ("mean", "linear"):
        raise ValueError(f"projection must be mean or linear, got {projection!r}")
    model = source if isinstance(source, PreTrainedModel) else _load(family, source)
    original, head = model.config, _head(family, type(model).__name__)
    _refuse(original, head)
    names = _names(family, model)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in family.repeated}
    left_out = [name for name in state if name not in names and _below(model, name).startswith(family.left_out)]
    report_left_out(left_out, "having no counterpart")
    check_names(family.name, set(state).difference(left_out), names)

    tensors = {our_name: state[their_name] for their_name, our_name in names.items()}
    ours = _prefix(head)
    positions = tensors[f"{ours}embeddings.position_embeddings.weight"]
    if family.positions_behind_padding:
        positions = positions[original.pad_token_id + 1 :]
    tensors[f"{ours}embeddings.position_embeddings.weight"] = positions
    exact = build(head.model_class, _config(family, head, original, len(positions)), tensors)
    max_len = len(positions) if max_len is None else max_len
    return with_attention(
        exact,
        attention="linformer",
        max_position_embeddings=max_len,
        k=_slots(max_len, k),
        projection=projection,
    )


def _load(family: Family, source: str | PathLike[str]) -> PreTrainedModel:
    """The model of a folder or of the hub, of the class it was saved as; every tensor it wants must be there."""
    config = AutoConfig.from_pretrained(source)
    name = (config.architectures or [type(config).__name__.replace("Config", "Model")])[0]
    _head(family, name)
    try:
        with _silence():
            model, report = getattr(transformers, name).from_pretrained(source, output_loading_info=True)
    except pickle.UnpicklingError as error:
        raise refusal(source, error) from None
    missing = set(report["missing_keys"]).intersection(_names(family, model))
    # A model for one task is often saved over a checkpoint of another; older versions saved the positions' numbers.
    known = (*family.left_out, "classifier.", "pre_classifier.", "embeddings.position_ids")
    unknown = [key for key in report["unexpected_keys"] if not _below(model, key).startswith(known)]
    check_names(family.name, unknown, missing)
    return model


def _head(family: Family, name: str) -> Head:
    if name not in family.heads:
        raise ValueError(f"a {name} cannot be imported as {family.name}, only one of {', '.join(family.heads)}")
    return family.heads[name]


def _refuse(original: Any, head: Head) -> None:
    """Refuse what a configuration says and no Linformer can be."""
    if getattr(original, "is_decoder", False) or getattr(original, "add_cross_attention", False):
        raise ValueError("a decoder (is_decoder, add_cross_attention) cannot be expressed")
    positions = getattr(original, "position_embedding_type", "absolute")
    if positions != "absolute":  # of older versions of transformers, and of models with code of their own
        raise ValueError(
            f"positions are {positions} (position_embedding_type): scores depend on the distance to a key, and a slot "
            "has none"
        )
    if head.hidden_act is not None and head.hidden_act != original.hidden_act:
        raise ValueError(
            f"the head for masked words uses {head.hidden_act}, the layers {original.hidden_act}: here one serves both"
        )


def _names(family: Family, model: PreTrainedModel) -> dict[str, str]:
    """Every name the model's tensors must have, to ours."""
    head = _head(family, type(model).__name__)
    theirs = "" if model.base_model is model else f"{model.base_model_prefix}."
    names = fill(family.embeddings, theirs, _prefix(head)) | _with_bias(head.names)
    for layer in range(model.config.num_hidden_layers):
        names |= fill(_with_bias(family.layer), theirs, _prefix(head), layer=layer)
    return names


def _prefix(head: Head) -> str:
    """Of the backbone's tensors in our model."""
    return "" if head.model_class is LinformerModel else "linformer."


def _below(model: PreTrainedModel, name: str) -> str:
    """The name of a tensor without the prefix of the backbone."""
    return name.removeprefix(f"{model.base_model_prefix}.")


def _with_bias(parts: Mapping[str, str]) -> dict[str, str]:
    return {f"{theirs}.{what}": f"{ours}.{what}" for theirs, ours in parts.items() for what in ("weight", "bias")}


def _slots(max_len: int, k: int | None) -> int:
    """K, checked beside ``max_len``."""
    if max_len < 1:
        raise ValueError(f"max_len (--max-length) must be at least 1, got {max_len}")
    k = max(1, min(256, max_len // 4)) if k is None else k
    if not 1 <= k <= max_len:
        raise ValueError(f"k must lie between 1 and max_len (--max-length) = {max_len}, got {k}")
    return k


def _config(family: Family, head: Head, original: Any, max_len: int) -> LinformerConfig:
    names = {**dict(zip(SAME_FIELDS, SAME_FIELDS, strict=True)), **family.fields}
    fields = {ours: getattr(original, theirs) for ours, theirs in names.items()}
    return LinformerConfig(
        **{**fields, **family.constants, **head.fields},
        max_position_embeddings=max_len,
        k=1,
        attention="full",
    )


@contextmanager
def _silence() -> Iterator[None]:
    """No progress bar and no table of tensors from transformers: what matters of it is checked here."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()

"""Encoders of transformers as Linformers of the same width whose slots are the means of segments."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal, cast

import transformers
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.families import BERT, DISTILBERT, MODEL_CLASSES, ROBERTA, XLM_ROBERTA, Family
from torch_linformer.models.convert.state import (
    build,
    check_names,
    expanded,
    refusal,
    renamed,
    report_left_out,
)
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel
from torch_linformer.models.with_attention import with_attention
from torch_linformer.nn.options import check_k, default_k

Source = str | PathLike[str] | PreTrainedModel
Means = Literal["mean", "linear"]

FIELDS = (  # those of our configuration that come from the original's
    "vocab_size", "type_vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "layer_norm_eps",
    "initializer_range", "pad_token_id", "bos_token_id", "eos_token_id", "tie_word_embeddings", "problem_type",
    "id2label", "label2id",
)  # fmt: skip


def from_bert(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a BERT of transformers, whose slots are the means of segments.

    With ``k = max_len`` a segment is one token, and the hidden states and scores are BERT's. With fewer slots the model
    is a start for training, not a replacement: its layers have never seen means of tokens.

    Args:
        source: a model, its folder, or its name on the hub. The heads for masked language modeling (``ForPreTraining``
            too), token classification, question answering, sequence classification and multiple choice are imported,
            the last two with the pooler they read. The pooler of a bare model, and the next-sentence head, have no
            counterpart: they are left out, and a log line lists their tensors.
        max_len: longest input in tokens; by default the original's. Positions beyond it repeat the original's.
        k: slots, min(256, max_len / 4) by default; lowered to the number of segments of ⌈max_len / k⌉ tokens.
        projection: ``mean``, under which padding is exact, or ``linear``: learned E and F initialized to those means,
            without length factor, so that padding takes its share of the mean.

    Raises:
        ValueError: another kind of model, a decoder, a number out of range, or names or shapes that do not fit.
        OSError: there is no such model.
    """
    return _from_encoder(BERT, source, max_len, k, projection)


def from_distilbert(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a DistilBERT of transformers; arguments and results as in :func:`from_bert`.

    Its positions are learned, even where they were initialized to sinusoids.
    """
    return _from_encoder(DISTILBERT, source, max_len, k, projection)


def from_roberta(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a RoBERTa of transformers; arguments and results as in :func:`from_bert`.

    Its position table loses the rows that RoBERTa keeps for padding.
    """
    return _from_encoder(ROBERTA, source, max_len, k, projection)


def from_xlm_roberta(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of an XLM-RoBERTa of transformers; see :func:`from_roberta`."""
    return _from_encoder(XLM_ROBERTA, source, max_len, k, projection)


def _from_encoder(
    family: Family, source: Source, max_len: int | None, k: int | None, projection: Means
) -> LinformerPreTrainedModel:
    if projection not in ("mean", "linear"):
        raise ValueError(f"projection must be mean or linear, got {projection!r}")
    model = source if isinstance(source, PreTrainedModel) else _load(family, source)
    task = _task(family, type(model).__name__)
    _refuse(family, task, model.config)
    names = _names(family, task, model)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in family.repeated}
    left_out = {name for name in state if name not in names and _below(model, name).startswith(family.left_out)}
    report_left_out(left_out, "having no counterpart")
    tensors = renamed(family.name, {name: state[name] for name in state if name not in left_out}, names)

    table = f"{_prefix(task)}embeddings.position_embeddings.weight"
    if family.padding_rows:
        tensors[table] = tensors[table][model.config.pad_token_id + 1 :]
    positions = len(tensors[table])
    exact = build(MODEL_CLASSES[task], _config(family, task, model.config, positions), tensors)
    max_len = positions if max_len is None else max_len
    return with_attention(
        exact, attention="linformer", max_position_embeddings=max_len, k=_slots(max_len, k), projection=projection
    )


def _load(family: Family, source: str | PathLike[str]) -> PreTrainedModel:
    """The model of a folder or of the hub, as the class it was saved as; every tensor of that class must be there."""
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    name = (config.architectures or [type(config).__name__.replace("Config", "Model")])[0]
    task = _task(family, name)
    try:
        with _silence():
            model, report = getattr(transformers, name).from_pretrained(source, output_loading_info=True)
    except pickle.UnpicklingError as error:
        raise refusal(source, error) from None
    missing = set(report["missing_keys"]).intersection(_names(family, task, model))
    # A model for one task is often saved over a checkpoint of another; older versions saved the positions' indices.
    known = (*family.left_out, "classifier.", "pre_classifier.", "embeddings.position_ids")
    unknown = [key for key in report["unexpected_keys"] if not _below(model, key).startswith(known)]
    check_names(family.name, unknown, missing)
    return cast(PreTrainedModel, model)


def _task(family: Family, name: str) -> str:
    """What the name of a class says after that of the family."""
    task = name.removeprefix(family.classes)
    if family.classes + task != name or task not in family.heads:
        known = ", ".join(family.classes + known for known in family.heads)
        raise ValueError(f"a {name} cannot be imported as {family.name}, only one of {known}")
    return task


def _refuse(family: Family, task: str, original: Any) -> None:
    """Refuse what a configuration states and no Linformer can be."""
    if getattr(original, "is_decoder", False) or getattr(original, "add_cross_attention", False):
        raise ValueError("a decoder (is_decoder, add_cross_attention) cannot be expressed")
    positions = getattr(original, "position_embedding_type", "absolute")
    if positions != "absolute":  # of older versions of transformers, and of models with code of their own
        raise ValueError(
            f"positions are {positions} (position_embedding_type): scores depend on the distance to a key, and a slot "
            "has none"
        )
    fixed = family.masked_lm_act if task == "ForMaskedLM" else None
    if fixed is not None and fixed != original.hidden_act:
        raise ValueError(
            f"the masked-language-modeling head uses {fixed}, the layers use {original.hidden_act}: "
            "here both use the same activation"
        )


def _names(family: Family, task: str, model: PreTrainedModel) -> dict[str, str]:
    """Every name that the model's tensors must have, to ours."""
    theirs, ours = "" if model.base_model is model else f"{model.base_model_prefix}.", _prefix(task)
    names = expanded(family.embeddings, theirs, ours) | expanded(family.heads[task])
    for layer in range(model.config.num_hidden_layers):
        here, there = f"{ours}encoder.layers.{layer}.", theirs + family.layers.format(layer=layer)
        names |= expanded(family.layer, there, here)
    return names


def _prefix(task: str) -> str:
    """Prefix of the backbone's tensors in our model."""
    return "" if MODEL_CLASSES[task] is LinformerModel else "linformer."


def _below(model: PreTrainedModel, name: str) -> str:
    """The name of a tensor without the prefix of the backbone."""
    return name.removeprefix(f"{model.base_model_prefix}.")


def _slots(max_len: int, k: int | None) -> int:
    """The number of slots, checked against ``max_len``."""
    k = default_k(max_len) if k is None else k
    check_k(k, max_len, limit="max_len (--max-length)")
    return k


def _config(family: Family, task: str, original: Any, max_len: int) -> LinformerConfig:
    names = {ours: family.fields.get(ours, ours) for ours in FIELDS if ours not in family.constants}
    fields = {ours: getattr(original, theirs) for ours, theirs in names.items()} | dict(family.constants)
    if "pooler.dense.*" in family.heads[task].values():
        fields |= {"pooling": "cls", "classifier_hidden_act": family.pooler_act}
    fields |= family.task_fields.get(task, {})
    return LinformerConfig(**fields, max_position_embeddings=max_len, k=1, attention="full")


@contextmanager
def _silence() -> Iterator[None]:
    """No progress bar and no table of tensors from transformers: what matters of them is checked here."""
    utilities: Any = logging  # not all of it is typed
    verbosity, bars = utilities.get_verbosity(), utilities.is_progress_bar_enabled()
    utilities.set_verbosity_error()
    utilities.disable_progress_bar()
    try:
        yield
    finally:
        utilities.set_verbosity(verbosity)
        if bars:
            utilities.enable_progress_bar()

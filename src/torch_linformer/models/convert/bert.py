"""BERT and RoBERTa of transformers as Linformers of the same width, their slots the means of segments."""

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel
from transformers.utils import logging

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import build, check_names, fill, refusal, report_left_out
from torch_linformer.models.heads import (
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForTokenClassification,
)

Source = str | PathLike[str] | PreTrainedModel

EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight": "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight": "embeddings.norm.weight",
    "embeddings.LayerNorm.bias": "embeddings.norm.bias",
}
PARTS = {  # of layer {layer}, each with weight and bias
    "encoder.layer.{layer}.attention.self.query": "encoder.layers.{layer}.self_attn.q_proj",
    "encoder.layer.{layer}.attention.self.key": "encoder.layers.{layer}.self_attn.k_proj",
    "encoder.layer.{layer}.attention.self.value": "encoder.layers.{layer}.self_attn.v_proj",
    "encoder.layer.{layer}.attention.output.dense": "encoder.layers.{layer}.self_attn.out_proj",
    "encoder.layer.{layer}.attention.output.LayerNorm": "encoder.layers.{layer}.norm1",
    "encoder.layer.{layer}.intermediate.dense": "encoder.layers.{layer}.linear1",
    "encoder.layer.{layer}.output.dense": "encoder.layers.{layer}.linear2",
    "encoder.layer.{layer}.output.LayerNorm": "encoder.layers.{layer}.norm2",
}
BERT_WORDS = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.norm",
    "cls.predictions.decoder": "lm_head.decoder",
}
ROBERTA_WORDS = {
    "lm_head.dense": "lm_head.dense",
    "lm_head.layer_norm": "lm_head.norm",
    "lm_head.decoder": "lm_head.decoder",
}
REPEATED = ("cls.predictions.bias", "lm_head.bias")  # the decoder's, under a second name
LEFT_OUT = ("pooler.", "cls.seq_relationship.", "classifier.")

Target = tuple[type[LinformerPreTrainedModel], Mapping[str, str]]  # our class, and the table of its head
_BACKBONE: Target = (LinformerModel, {})
_TOKENS: Target = (LinformerForTokenClassification, {"classifier": "classifier"})
_ANSWERS: Target = (LinformerForQuestionAnswering, {"qa_outputs": "qa_outputs"})
CLASSES: dict[str, dict[str, Target]] = {
    "bert": {
        "BertModel": _BACKBONE,
        "BertForMaskedLM": (LinformerForMaskedLM, BERT_WORDS),
        "BertForPreTraining": (LinformerForMaskedLM, BERT_WORDS),
        "BertForTokenClassification": _TOKENS,
        "BertForQuestionAnswering": _ANSWERS,
        "BertForSequenceClassification": _BACKBONE,
        "BertForMultipleChoice": _BACKBONE,
        "BertForNextSentencePrediction": _BACKBONE,
    },
    "roberta": {
        "RobertaModel": _BACKBONE,
        "RobertaForMaskedLM": (LinformerForMaskedLM, ROBERTA_WORDS),
        "RobertaForTokenClassification": _TOKENS,
        "RobertaForQuestionAnswering": _ANSWERS,
        "RobertaForSequenceClassification": _BACKBONE,
        "RobertaForMultipleChoice": _BACKBONE,
    },
}
SAME_FIELDS = (  # of the configurations
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
    "tie_word_embeddings",
    "classifier_dropout",
    "id2label",
    "label2id",
)
Means = Literal["mean", "linear"]


def from_bert(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a BERT of transformers, whose slots are the means of segments.

    With ``k = max_len`` a segment is one token, and the hidden states are BERT's. With fewer slots the model is a
    start for training and no replacement: its layers have never seen means of tokens.

    Args:
        source: a model, its folder, or its name on the hub. The heads for masked words (``ForPreTraining`` too),
            tokens and answers come along. The pooler, and the classifiers that read it, have no counterpart: of such a
            model the backbone comes, and a line of the log says what was left out.
        max_len: longest input in tokens; by default the original's. Positions beyond it repeat the original's.
        k: slots, min(256, max_len / 4) by default; lowered to the segments there are of ⌈max_len / k⌉ tokens each.
        projection: ``mean``, under which padding is exact, or ``linear``: learned E and F that begin as those means,
            without length factor, so that padding takes its share of the mean.

    Raises:
        ValueError: another kind of model, a decoder, a number out of range, names or shapes of something else.
        OSError: there is no such model.
    """
    return _from_encoder("bert", source, max_len, k, projection)


def from_roberta(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a RoBERTa of transformers; arguments and results as in :func:`from_bert`.

    Its position table loses the rows that RoBERTa keeps for padding.
    """
    return _from_encoder("roberta", source, max_len, k, projection)


def _from_encoder(
    kind: str, source: Source, max_len: int | None, k: int | None, projection: Means
) -> LinformerPreTrainedModel:
    if projection not in ("mean", "linear"):
        raise ValueError(f"projection must be mean or linear, got {projection!r}")
    model = source if isinstance(source, PreTrainedModel) else _load(kind, source)
    model_class, head = _target(kind, type(model).__name__)
    original = model.config
    _refuse(original, model_class)
    base = "" if type(model).__name__.endswith("Model") else f"{kind}."
    ours = "" if model_class is LinformerModel else "linformer."
    names = _names(base, ours, head, original.num_hidden_layers)
    state = {name: tensor for name, tensor in model.state_dict().items() if name not in REPEATED}
    left_out = [name for name in state if name not in names and name.removeprefix(base).startswith(LEFT_OUT)]
    report_left_out(left_out, "having no counterpart")
    check_names(kind, set(state).difference(left_out), names)

    tensors = {our_name: state[their_name] for their_name, our_name in names.items()}
    positions = tensors[f"{ours}embeddings.position_embeddings.weight"]
    if kind == "roberta":
        positions = positions[original.pad_token_id + 1 :]
    max_len = len(positions) if max_len is None else max_len
    window = _window(max_len, k)
    tensors[f"{ours}embeddings.position_embeddings.weight"] = positions[torch.arange(max_len) % len(positions)]
    config = _config(original, max_len, -(-max_len // window), projection)
    if projection == "linear":
        means = segment_means(max_len, window).to(positions.dtype)
        for layer in range(config.num_hidden_layers):
            for name in ("proj_k", "proj_v"):
                tensors[f"{ours}encoder.layers.{layer}.self_attn.{name}.weight"] = means
    return build(model_class, config, tensors)


def _load(kind: str, source: str | PathLike[str]) -> PreTrainedModel:
    """The model of a folder or of the hub, of the class it was saved as; every tensor it wants must be there."""
    config = AutoConfig.from_pretrained(source)
    name = (config.architectures or [f"{config.model_type.title()}Model"])[0]
    _target(kind, name)
    try:
        with _silence():
            model, report = getattr(transformers, name).from_pretrained(source, output_loading_info=True)
    except pickle.UnpicklingError as error:
        raise refusal(source, error) from None
    missing = [key for key in report["missing_keys"] if not key.removeprefix(f"{kind}.").startswith("pooler.")]
    # A model for one task is often saved over a checkpoint of another; older versions saved the positions' numbers.
    known = (*LEFT_OUT, "embeddings.position_ids")
    unknown = [key for key in report["unexpected_keys"] if not key.removeprefix(f"{kind}.").startswith(known)]
    check_names(kind, unknown, missing)
    return model


def _target(kind: str, name: str) -> Target:
    if name not in CLASSES[kind]:
        raise ValueError(f"a {name} cannot be imported as {kind}, only one of {', '.join(CLASSES[kind])}")
    return CLASSES[kind][name]


def _refuse(original: Any, model_class: type[LinformerPreTrainedModel]) -> None:
    """Refuse what a configuration says and no Linformer can be."""
    if original.is_decoder or original.add_cross_attention:
        raise ValueError("a decoder (is_decoder, add_cross_attention) cannot be expressed")
    if original.model_type == "roberta" and model_class is LinformerForMaskedLM and original.hidden_act != "gelu":
        raise ValueError(
            f"RoBERTa's head for masked words uses gelu, its layers {original.hidden_act}: here one serves both"
        )


def _names(base: str, ours: str, head: Mapping[str, str], layers: int) -> dict[str, str]:
    """Every name the model's tensors must have, to ours."""
    names = fill(EMBEDDINGS, base, ours) | _with_bias(head)
    for layer in range(layers):
        names |= fill(_with_bias(PARTS), base, ours, layer=layer)
    return names


def _with_bias(parts: Mapping[str, str]) -> dict[str, str]:
    return {f"{theirs}.{what}": f"{ours}.{what}" for theirs, ours in parts.items() for what in ("weight", "bias")}


def _window(max_len: int, k: int | None) -> int:
    """Tokens in a segment; checks both numbers."""
    if max_len < 1:
        raise ValueError(f"max_len (--max-length) must be at least 1, got {max_len}")
    k = max(1, min(256, max_len // 4)) if k is None else k
    if not 1 <= k <= max_len:
        raise ValueError(f"k must lie between 1 and max_len (--max-length) = {max_len}, got {k}")
    return -(-max_len // k)


def segment_means(max_len: int, window: int) -> Tensor:
    """E ``(max_len, ⌈max_len / window⌉)`` whose slot j is the mean of segment j."""
    segments = torch.arange(max_len) // window
    members = torch.nn.functional.one_hot(segments).double()
    return members / members.sum(dim=0)


def _config(original: Any, max_len: int, k: int, projection: Means) -> LinformerConfig:
    return LinformerConfig(
        **{name: getattr(original, name) for name in SAME_FIELDS},
        max_position_embeddings=max_len,
        k=k,
        projection=projection,
        length_scaling=projection == "mean",
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

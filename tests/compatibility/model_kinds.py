"""What the saved models are built of: every class, and every option at least once."""

from typing import Any

import torch
import transformers
from torch import Tensor

import torch_linformer
from torch_linformer.models.convert import from_bert, from_roberta

TINY = {
    "vocab_size": 17,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 13,
    "k": 4,
}
TWO = {"num_hidden_layers": 2}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}  # training is recorded too

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "base": ("LinformerModel", TWO),
    "base-full-sinusoidal": ("LinformerModel", {"attention": "full", "position_embedding": "sinusoidal"}),
    "base-layerwise-in-chunks": ("LinformerModel", {**TWO, "sharing": "layerwise", "chunk_size": 3}),
    "base-without-positions": ("LinformerModel", {"position_embedding": "none", "projection": "random"}),
    "base-dynamic": (
        "LinformerModel",
        {
            **TWO,
            "projection": "dynamic",
            "sharing": "kv_per_head",
            "slot_mass": "learned",
            "exact_first": 1,
            "exact_last": 2,
            "window": 3,
        },
    ),
    "masked-lm-dynamic-layerwise": (
        "LinformerForMaskedLM",
        {**TWO, "projection": "dynamic", "sharing": "layerwise", "slot_mass": "fixed"},
    ),
    "masked-lm": ("LinformerForMaskedLM", {"sharing": "none", "norm_first": True, "gated": True, "hidden_act": "silu"}),
    "masked-lm-untied": (
        "LinformerForMaskedLM",
        {"tie_word_embeddings": False, "projection": "conv", "sharing": "kv", "layer_norm_eps": 1e-3},
    ),
    "masked-lm-as-imported": (
        "LinformerForMaskedLM",
        {
            "slot_bias": True,
            "length_scaling": False,
            "embedding_norm": False,
            "norm_first": True,
            "final_norm": False,
            "lm_head_transform": False,
            "type_vocab_size": 0,
            "head_dim": 3,
            "num_key_value_heads": 1,
        },
    ),
    "classifier-mean": ("LinformerForSequenceClassification", {"projection": "mean", "window": 3, "num_labels": 5}),
    "classifier-cls": (
        "LinformerForSequenceClassification",
        {"pooling": "cls", "classifier_hidden_act": "tanh", "projection": "max", "norm_first": True, "num_labels": 5},
    ),
    "classifier-last-multilabel": (
        "LinformerForSequenceClassification",
        {**TWO, "pooling": "last", "k": [3, 5], "problem_type": "multi_label_classification", "num_labels": 5},
    ),
    "classifier-max-regression": (
        "LinformerForSequenceClassification",
        {"pooling": "max", "projection": "conv", "sharing": "none", "problem_type": "regression", "num_labels": 1},
    ),
    "classifier-mean-max-weighted": (
        "LinformerForSequenceClassification",
        {
            **TWO,
            "pooling": "mean_max",
            "class_weights": [0.5, 1.0, 2.0],
            "num_labels": 3,
            "memory": "reversible",
            "norm_first": True,
        },
    ),
    "classifier-causal": (
        "LinformerForSequenceClassification",
        {"causal": True, "pooling": "last", "window": 3, "position_embedding": "none", "num_labels": 5},
    ),
    "tagger": ("LinformerForTokenClassification", {"memory": "checkpoint", "sharing": "kv", "num_labels": 5}),
    "reader": ("LinformerForQuestionAnswering", {"window": 5, "chunk_size": 4}),
    "tagger-window-alone": ("LinformerForTokenClassification", {"k": 0, "window": 4, "exact_first": 1}),
    "chooser": ("LinformerForMultipleChoice", {"projection": "mean", "num_key_value_heads": 1}),
    "causal-lm-rotary": (
        "LinformerForCausalLM",
        {"causal": True, "window": 3, "position_embedding": "rotary", "norm_first": True, "gated": True},
    ),
    "causal-lm-window-alone": (
        "LinformerForCausalLM",
        {"causal": True, "k": 0, "window": 4, "position_embedding": "rotary", "partial_rotary_factor": 1.0},
    ),
    "causal-lm-exact-first": ("LinformerForCausalLM", {"causal": True, "window": 3, "exact_first": 2}),
    "causal-lm-slots-alone": (
        "LinformerForCausalLM",
        {**TWO, "causal": True, "k": [2, 5], "num_key_value_heads": 1, "chunk_size": 4},
    ),
    "causal-lm-full": (
        "LinformerForCausalLM",
        {
            "causal": True,
            "attention": "full",
            "position_embedding": "rotary",
            "memory": "reversible",
            "norm_first": True,
        },
    ),
    "seq2seq": ("LinformerForConditionalGeneration", {}),
    "seq2seq-of-two-vocabularies": (
        "LinformerForConditionalGeneration",
        {
            "share_embeddings": False,
            "memory_projection": "mean",
            "memory_k": [2, 5],
            "decoder": {**TWO, "vocab_size": 19, "window": 3, "position_embedding": "rotary", "memory": "checkpoint"},
        },
    ),
    "seq2seq-layerwise": (
        "LinformerForConditionalGeneration",
        {"memory_sharing": "layerwise", "decoder": {**TWO, "norm_first": True, "lm_head_transform": False}},
    ),
    "seq2seq-full-decoder": ("LinformerForConditionalGeneration", {"decoder": {"attention": "full", "gated": True}}),
    "imported-bert": ("BertForMaskedLM", {}),
    "imported-roberta": ("RobertaForSequenceClassification", {"num_labels": 3}),
}
IMPORTS = {"Bert": from_bert, "Roberta": from_roberta}


def build_model(kind: str) -> transformers.PreTrainedModel:
    """A model of that kind whose weights are all far from 0 and 1, in float32."""
    class_name, fields = KINDS[kind]
    torch.manual_seed(0)
    model = _imported(class_name, fields) if kind.startswith("imported") else _ours(class_name, fields)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def _ours(class_name: str, fields: dict[str, Any]) -> transformers.PreTrainedModel:
    if class_name == "LinformerForConditionalGeneration":
        parts = {
            "encoder": {**TINY, **WITHOUT_DROPOUT},
            "decoder": {**TINY, **WITHOUT_DROPOUT, "causal": True, **fields.get("decoder", {})},
        }
        config = torch_linformer.LinformerSeq2SeqConfig(**{**fields, **parts})
    else:
        config = torch_linformer.LinformerConfig(**{**TINY, **WITHOUT_DROPOUT, **fields})
    return getattr(torch_linformer, class_name)(config)


def _imported(class_name: str, fields: dict[str, Any]) -> transformers.PreTrainedModel:
    family = class_name.partition("For")[0]
    model_class = getattr(transformers, class_name)
    names = {name: TINY[name] for name in TINY if name not in ("k", "max_position_embeddings")}
    positions = TINY["max_position_embeddings"] + 2 * (family == "Roberta")  # whose first rows are padding's
    config = model_class.config_class(**names, **WITHOUT_DROPOUT, **fields, max_position_embeddings=positions)
    return IMPORTS[family](model_class(config), k=4)


def inputs_of(model: transformers.PreTrainedModel) -> dict[str, Tensor]:
    """Two rows, the second padded on the left and in the middle, with token types and labels where there are any."""
    shape = (2, 3, 11) if type(model).__name__ == "LinformerForMultipleChoice" else (2, 11)
    reader = getattr(model.config, "encoder", model.config)
    mask = torch.ones(shape, dtype=torch.long)
    mask[-1, ..., :2] = mask[-1, ..., 6] = 0
    inputs = {"input_ids": _numbers(shape, reader.vocab_size - 1) + 1, "attention_mask": mask}
    if reader.type_vocab_size:
        inputs["token_type_ids"] = (torch.arange(11) > 5).long().expand(shape).contiguous() % reader.type_vocab_size
    return inputs | _labels(model, inputs)


def _labels(model: transformers.PreTrainedModel, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    name, config = type(model).__name__, model.config
    if name == "LinformerModel":
        return {}
    if name == "LinformerForQuestionAnswering":
        return {"start_positions": torch.tensor([2, 4]), "end_positions": torch.tensor([5, 4])}
    if name == "LinformerForConditionalGeneration":
        target = _numbers((2, 7), config.vocab_size - 1) + 1
        mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
        labels = target.masked_fill(mask == 0, -100)
        return {"decoder_input_ids": target.roll(1, 1), "decoder_attention_mask": mask, "labels": labels}
    if name == "LinformerForMultipleChoice":
        return {"labels": torch.tensor([2, 0])}
    if name == "LinformerForSequenceClassification":
        return {"labels": _document_labels(config)}
    classes = config.num_labels if name == "LinformerForTokenClassification" else config.vocab_size
    return {"labels": _numbers((2, 11), classes).masked_fill(inputs["attention_mask"] == 0, -100)}


def _document_labels(config: transformers.PretrainedConfig) -> Tensor:
    if config.problem_type == "regression":
        return torch.tensor([0.5, -1.5])
    if config.problem_type == "multi_label_classification":
        return _numbers((2, config.num_labels), 2).double()
    return torch.tensor([2, 0])


def _numbers(shape: tuple[int, ...], most: int) -> Tensor:
    """Whole numbers from 0 and below ``most``, in no order."""
    return (torch.arange(torch.Size(shape).numel()) ** 2 % 101 % most).view(shape)

"""The encoders of transformers that can be imported: their classes, tensors and configuration fields, to ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.heads import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForTokenClassification,
)
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel
from torch_linformer.models.sequence_classification import LinformerForSequenceClassification

# What a class becomes, by the part of its name after that of the family.
MODEL_CLASSES: Mapping[str, type[LinformerPreTrainedModel]] = {
    "Model": LinformerModel,
    "ForMaskedLM": LinformerForMaskedLM,
    "ForPreTraining": LinformerForMaskedLM,
    "ForTokenClassification": LinformerForTokenClassification,
    "ForQuestionAnswering": LinformerForQuestionAnswering,
    "ForSequenceClassification": LinformerForSequenceClassification,
    "ForMultipleChoice": LinformerForMultipleChoice,
    "ForNextSentencePrediction": LinformerModel,
}


@dataclass(frozen=True)
class Family:
    """Models that share one table of names, in which ``.*`` stands for ``.weight`` and ``.bias``.

    Attributes:
        name: their ``model_type``.
        classes: how the names of their classes begin.
        heads: for the rest of those names, the tensors of each class outside the backbone, to ours.
        embeddings: those of the embeddings, without the backbone's prefix, to ours.
        layers: how the names in layer {layer} begin, without that prefix.
        layer: the tensors of a layer, after that, to ours.
        pooler_act: the activation of the dense layer that reads the first token.
        masked_lm_act: the activation of the masked-language-modeling head, where it is fixed.
        fields: configuration fields of ours that have another name there, to that name.
        constants: configuration fields that are missing there because the value is always the same.
        task_fields: configuration fields of single classes, over all others.
        repeated: tensors that repeat another one under a second name.
        left_out: how the names of tensors without counterpart begin, without the backbone's prefix.
        padding_rows: whether the position table begins with ``pad_token_id + 1`` rows for padding.
    """

    name: str
    classes: str
    heads: Mapping[str, Mapping[str, str]]
    embeddings: Mapping[str, str]
    layers: str
    layer: Mapping[str, str]
    pooler_act: str = "tanh"
    masked_lm_act: str | None = None
    fields: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    task_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    repeated: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    padding_rows: bool = False


SAME_HEADS: Mapping[str, Mapping[str, str]] = {
    "Model": {},
    "ForTokenClassification": {"classifier.*": "classifier.*"},
    "ForQuestionAnswering": {"qa_outputs.*": "qa_outputs.*"},
}
BERT_MASKED_LM = {
    "cls.predictions.transform.dense.*": "lm_head.dense.*",
    "cls.predictions.transform.LayerNorm.*": "lm_head.norm.*",
    "cls.predictions.decoder.*": "lm_head.decoder.*",
}
BERT = Family(
    name="bert",
    classes="Bert",
    heads={
        **SAME_HEADS,
        "ForMaskedLM": BERT_MASKED_LM,
        "ForPreTraining": BERT_MASKED_LM,
        "ForSequenceClassification": {"bert.pooler.dense.*": "pooler.dense.*", "classifier.*": "classifier.*"},
        "ForMultipleChoice": {"bert.pooler.dense.*": "pooler.dense.*", "classifier.*": "classifier.*"},
        "ForNextSentencePrediction": {},
    },
    embeddings={
        "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
        "embeddings.position_embeddings.weight": "embeddings.position_embeddings.weight",
        "embeddings.token_type_embeddings.weight": "embeddings.token_type_embeddings.weight",
        "embeddings.LayerNorm.*": "embeddings.norm.*",
    },
    layers="encoder.layer.{layer}.",
    layer={
        "attention.self.query.*": "self_attn.q_proj.*",
        "attention.self.key.*": "self_attn.k_proj.*",
        "attention.self.value.*": "self_attn.v_proj.*",
        "attention.output.dense.*": "self_attn.out_proj.*",
        "attention.output.LayerNorm.*": "norm1.*",
        "intermediate.dense.*": "linear1.*",
        "output.dense.*": "linear2.*",
        "output.LayerNorm.*": "norm2.*",
    },
    repeated=("cls.predictions.bias",),
    left_out=("pooler.", "cls.seq_relationship."),
)
DISTILBERT = Family(
    name="distilbert",
    classes="DistilBert",
    heads={
        **SAME_HEADS,
        "ForMaskedLM": {
            "vocab_transform.*": "lm_head.dense.*",
            "vocab_layer_norm.*": "lm_head.norm.*",
            "vocab_projector.*": "lm_head.decoder.*",
        },
        "ForSequenceClassification": {"pre_classifier.*": "pooler.dense.*", "classifier.*": "classifier.*"},
        "ForMultipleChoice": {"pre_classifier.*": "pooler.dense.*", "classifier.*": "classifier.*"},
    },
    embeddings={name: ours for name, ours in BERT.embeddings.items() if "token_type" not in name},
    layers="transformer.layer.{layer}.",
    layer={
        "attention.q_lin.*": "self_attn.q_proj.*",
        "attention.k_lin.*": "self_attn.k_proj.*",
        "attention.v_lin.*": "self_attn.v_proj.*",
        "attention.out_lin.*": "self_attn.out_proj.*",
        "sa_layer_norm.*": "norm1.*",
        "ffn.lin1.*": "linear1.*",
        "ffn.lin2.*": "linear2.*",
        "output_layer_norm.*": "norm2.*",
    },
    pooler_act="relu",
    fields={
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    constants={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
    # Tokens are classified after the dropout of the layers; seq_classif_dropout is for the other two classifiers.
    task_fields={"ForTokenClassification": {"classifier_dropout": None}},
)
ROBERTA = replace(
    BERT,
    name="roberta",
    classes="Roberta",
    heads={
        **SAME_HEADS,
        "ForMaskedLM": {
            "lm_head.dense.*": "lm_head.dense.*",
            "lm_head.layer_norm.*": "lm_head.norm.*",
            "lm_head.decoder.*": "lm_head.decoder.*",
        },
        "ForSequenceClassification": {"classifier.dense.*": "pooler.dense.*", "classifier.out_proj.*": "classifier.*"},
        "ForMultipleChoice": {"roberta.pooler.dense.*": "pooler.dense.*", "classifier.*": "classifier.*"},
    },
    masked_lm_act="gelu",
    repeated=("lm_head.bias",),
    left_out=("pooler.",),
    padding_rows=True,
)
# The names of its tensors are RoBERTa's, the prefix of the backbone included.
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", classes="XLMRoberta")

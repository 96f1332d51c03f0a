"""DistilBERT of transformers."""

from dataclasses import replace

from torch_linformer.models.backbone import LinformerPreTrainedModel
from torch_linformer.models.convert.encoders import (
    ANSWERS,
    BACKBONE,
    TOKENS,
    Family,
    Head,
    Means,
    Source,
    from_encoder,
    on_first_token,
)
from torch_linformer.models.heads import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForSequenceClassification,
)

EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight": "embeddings.position_embeddings.weight",
    "embeddings.LayerNorm.weight": "embeddings.norm.weight",
    "embeddings.LayerNorm.bias": "embeddings.norm.bias",
}
LAYER = {
    "transformer.layer.{layer}.attention.q_lin": "encoder.layers.{layer}.self_attn.q_proj",
    "transformer.layer.{layer}.attention.k_lin": "encoder.layers.{layer}.self_attn.k_proj",
    "transformer.layer.{layer}.attention.v_lin": "encoder.layers.{layer}.self_attn.v_proj",
    "transformer.layer.{layer}.attention.out_lin": "encoder.layers.{layer}.self_attn.out_proj",
    "transformer.layer.{layer}.sa_layer_norm": "encoder.layers.{layer}.norm1",
    "transformer.layer.{layer}.ffn.lin1": "encoder.layers.{layer}.linear1",
    "transformer.layer.{layer}.ffn.lin2": "encoder.layers.{layer}.linear2",
    "transformer.layer.{layer}.output_layer_norm": "encoder.layers.{layer}.norm2",
}
WORDS = {
    "vocab_transform": "lm_head.dense",
    "vocab_layer_norm": "lm_head.norm",
    "vocab_projector": "lm_head.decoder",
}
DISTILBERT = Family(
    name="distilbert",
    embeddings=EMBEDDINGS,
    layer=LAYER,
    heads={
        "DistilBertModel": BACKBONE,
        "DistilBertForMaskedLM": Head(LinformerForMaskedLM, WORDS),
        # Its dropout is that of the layers; the one of classifiers is for documents and choices.
        "DistilBertForTokenClassification": replace(TOKENS, fields={"classifier_dropout": None}),
        "DistilBertForQuestionAnswering": ANSWERS,
        "DistilBertForSequenceClassification": on_first_token(
            LinformerForSequenceClassification, "pre_classifier", "classifier", "relu"
        ),
        "DistilBertForMultipleChoice": on_first_token(
            LinformerForMultipleChoice, "pre_classifier", "classifier", "relu"
        ),
    },
    fields={
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "attention_probs_dropout_prob": "attention_dropout",
        "classifier_dropout": "seq_classif_dropout",
    },
    constants={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
)


def from_distilbert(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a DistilBERT of transformers; arguments and results as in :func:`from_bert`.

    Its positions are learned, also where sinusoids were their first values.
    """
    return from_encoder(DISTILBERT, source, max_len, k, projection)

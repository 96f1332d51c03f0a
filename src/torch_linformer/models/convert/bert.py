"""BERT of transformers."""

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
    "embeddings.token_type_embeddings.weight": "embeddings.token_type_embeddings.weight",
    "embeddings.LayerNorm.weight": "embeddings.norm.weight",
    "embeddings.LayerNorm.bias": "embeddings.norm.bias",
}
LAYER = {
    "encoder.layer.{layer}.attention.self.query": "encoder.layers.{layer}.self_attn.q_proj",
    "encoder.layer.{layer}.attention.self.key": "encoder.layers.{layer}.self_attn.k_proj",
    "encoder.layer.{layer}.attention.self.value": "encoder.layers.{layer}.self_attn.v_proj",
    "encoder.layer.{layer}.attention.output.dense": "encoder.layers.{layer}.self_attn.out_proj",
    "encoder.layer.{layer}.attention.output.LayerNorm": "encoder.layers.{layer}.norm1",
    "encoder.layer.{layer}.intermediate.dense": "encoder.layers.{layer}.linear1",
    "encoder.layer.{layer}.output.dense": "encoder.layers.{layer}.linear2",
    "encoder.layer.{layer}.output.LayerNorm": "encoder.layers.{layer}.norm2",
}
WORDS = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.norm",
    "cls.predictions.decoder": "lm_head.decoder",
}
FIELDS = {
    "intermediate_size": "intermediate_size",
    "hidden_act": "hidden_act",
    "hidden_dropout_prob": "hidden_dropout_prob",
    "attention_probs_dropout_prob": "attention_probs_dropout_prob",
    "classifier_dropout": "classifier_dropout",
    "type_vocab_size": "type_vocab_size",
    "layer_norm_eps": "layer_norm_eps",
}
POOLER = "bert.pooler.dense"
BERT = Family(
    name="bert",
    embeddings=EMBEDDINGS,
    layer=LAYER,
    heads={
        "BertModel": BACKBONE,
        "BertForMaskedLM": Head(LinformerForMaskedLM, WORDS),
        "BertForPreTraining": Head(LinformerForMaskedLM, WORDS),
        "BertForTokenClassification": TOKENS,
        "BertForQuestionAnswering": ANSWERS,
        "BertForSequenceClassification": on_first_token(
            LinformerForSequenceClassification, POOLER, "classifier", "tanh"
        ),
        "BertForMultipleChoice": on_first_token(LinformerForMultipleChoice, POOLER, "classifier", "tanh"),
        "BertForNextSentencePrediction": BACKBONE,
    },
    fields=FIELDS,
    repeated=("cls.predictions.bias",),
    left_out=("pooler.", "cls.seq_relationship."),
)


def from_bert(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a BERT of transformers, whose slots are the means of segments.

    With ``k = max_len`` a segment is one token, and the hidden states and scores are BERT's. With fewer slots the model
    is a start for training and no replacement: its layers have never seen means of tokens.

    Args:
        source: a model, its folder, or its name on the hub. The heads for masked words (``ForPreTraining`` too),
            tokens, answers, documents and choices come along, the last two with the pooler they read. The pooler of a
            bare model, and the head for the next sentence, have no counterpart: of such a model the backbone comes,
            and a line of the log says what was left out.
        max_len: longest input in tokens; by default the original's. Positions beyond it repeat the original's.
        k: slots, min(256, max_len / 4) by default; lowered to the segments there are of ⌈max_len / k⌉ tokens each.
        projection: ``mean``, under which padding is exact, or ``linear``: learned E and F that begin as those means,
            without length factor, so that padding takes its share of the mean.

    Raises:
        ValueError: another kind of model, a decoder, a number out of range, names or shapes of something else.
        OSError: there is no such model.
    """
    return from_encoder(BERT, source, max_len, k, projection)

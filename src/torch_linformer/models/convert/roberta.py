"""RoBERTa and XLM-RoBERTa of transformers: the names of BERT, with heads of their own."""

from dataclasses import replace

from torch_linformer.models.backbone import LinformerPreTrainedModel
from torch_linformer.models.convert.bert import EMBEDDINGS, FIELDS, LAYER
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

WORDS = {
    "lm_head.dense": "lm_head.dense",
    "lm_head.layer_norm": "lm_head.norm",
    "lm_head.decoder": "lm_head.decoder",
}
ROBERTA = Family(
    name="roberta",
    embeddings=EMBEDDINGS,
    layer=LAYER,
    heads={
        "RobertaModel": BACKBONE,
        "RobertaForMaskedLM": Head(LinformerForMaskedLM, WORDS, hidden_act="gelu"),
        "RobertaForTokenClassification": TOKENS,
        "RobertaForQuestionAnswering": ANSWERS,
        "RobertaForSequenceClassification": on_first_token(
            LinformerForSequenceClassification, "classifier.dense", "classifier.out_proj", "tanh"
        ),
        "RobertaForMultipleChoice": on_first_token(
            LinformerForMultipleChoice, "roberta.pooler.dense", "classifier", "tanh"
        ),
    },
    fields=FIELDS,
    repeated=("lm_head.bias",),
    left_out=("pooler.",),
    positions_behind_padding=True,
)
# Its tensors are named as RoBERTa's, the prefix of the backbone too.
XLM_ROBERTA = replace(ROBERTA, name="xlm-roberta", heads={f"XLM{name}": head for name, head in ROBERTA.heads.items()})


def from_roberta(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of a RoBERTa of transformers; arguments and results as in :func:`from_bert`.

    Its position table loses the rows that RoBERTa keeps for padding.
    """
    return from_encoder(ROBERTA, source, max_len, k, projection)


def from_xlm_roberta(
    source: Source, *, max_len: int | None = None, k: int | None = None, projection: Means = "mean"
) -> LinformerPreTrainedModel:
    """A Linformer with the weights of an XLM-RoBERTa of transformers; see :func:`from_roberta`."""
    return from_encoder(XLM_ROBERTA, source, max_len, k, projection)

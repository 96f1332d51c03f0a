"""Task heads on the Linformer backbone.

Those that transformers has for any backbone (``GenericForTokenClassification`` and its kin) are for decoders: they read
no ``token_type_ids``, take the last token that is not ``pad_token_id`` for the whole row, whatever the mask, look for
answers in padding too, and name the last layer otherwise than saved folders do.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from torch_linformer.functional.padding import Padding
from torch_linformer.models.arguments import known_arguments
from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.encoder_backbone import EncoderBackbone, backbone_of
from torch_linformer.models.loss import IGNORED, token_loss
from torch_linformer.models.packed import refuse_packed_rows
from torch_linformer.models.pooling import Pooler
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel
from torch_linformer.nn.linear import run_linear

LabeledOutput = SequenceClassifierOutput | TokenClassifierOutput | MaskedLMOutput
ONE_DOCUMENT = "this head reads one document per row; give each document its own row"


def classifier_dropout(config: LinformerConfig) -> float:
    """Dropout before a classifier: ``config.classifier_dropout``, or else that of the hidden states."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class LabeledModel(LinformerPreTrainedModel):
    """A backbone, logits from its hidden states, and a loss if labels are given: what three heads share."""

    linformer: LinformerModel | EncoderBackbone
    output_class: type[LabeledOutput]
    takes_pieces = True
    scores_tokens = True  # each token has logits of its own, so a row may hold several documents

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> LabeledOutput:
        """Logits, and the loss if ``labels`` are given; the other arguments are those of the backbone."""
        if not self.scores_tokens:
            refuse_packed_rows(position_ids, attention_mask, ONE_DOCUMENT)
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.logits_of(outputs.last_hidden_state, attention_mask)
        return self.labeled(outputs, logits, labels, attention_mask)

    def labeled(
        self,
        outputs: BaseModelOutput,
        logits: Tensor,
        labels: Tensor | None,
        attention_mask: Tensor | Padding | None,
    ) -> LabeledOutput:
        """What :meth:`forward` returns, from what the backbone does."""
        return self.output_class(
            loss=None if labels is None else token_loss(logits, labels, rows=attention_mask),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def logits_of(self, hidden: Tensor, attention_mask: Tensor | Padding | None) -> Tensor:
        """Logits from the backbone's last hidden states ``(B, N, C)``."""
        raise NotImplementedError


class LinformerForTokenClassification(LabeledModel):
    """One of ``num_labels`` labels for every token, ``(B, N, num_labels)``; labels of −100 are ignored in the loss."""

    output_class = TokenClassifierOutput

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = len(config.label_names)
        self.linformer = backbone_of(config)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
        self.post_init()

    def logits_of(self, hidden: Tensor, attention_mask: Tensor | Padding | None) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(hidden))
        return logits


class LinformerForQuestionAnswering(LinformerPreTrainedModel):
    """Logits of every token for being the first, and the last, of the answer."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = backbone_of(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Two logits ``(B, N)``; if both positions ``(B,)`` are given, the loss is the mean of their cross-entropies.

        A position beyond the input (an answer that was cut off) is ignored in the loss, and padding is no choice there.
        """
        refuse_packed_rows(position_ids, attention_mask, ONE_DOCUMENT)
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            length = start_logits.shape[1]
            choices = torch.stack([start_logits, end_logits]).float()
            if attention_mask is not None:
                choices = choices.masked_fill(attention_mask == 0, torch.finfo(choices.dtype).min)
            losses = [
                F.cross_entropy(scores, positions.view(-1).clamp(0, length), ignore_index=length)
                for scores, positions in zip(choices, (start_positions, end_positions), strict=True)
            ]
            loss = (losses[0] + losses[1]) / 2
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits,
            end_logits=end_logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForMultipleChoice(LinformerPreTrainedModel):
    """Which of several texts fits: one logit per choice, from its pooled hidden states."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.pooler = Pooler(config)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(self.pooler.out_features, 1)
        self.post_init()

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MultipleChoiceModelOutput:
        """Logits ``(B, choices)`` from inputs ``(B, choices, N)``; the loss if ``labels`` ``(B,)`` are given.

        ``hidden_states`` and ``attentions`` have a row for each choice: ``(B · choices, …)``.
        """
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is None:
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        rows = [None if x is None else x.flatten(0, 1) for x in inputs]
        refuse_packed_rows(rows[3], rows[1], ONE_DOCUMENT)
        outputs = self.linformer(*rows, return_dict=True, **kwargs)
        pooled = self.pooler(outputs.last_hidden_state, rows[1])
        logits = self.classifier(self.dropout(pooled)).view(tokens.shape[:2])
        return MultipleChoiceModelOutput(
            loss=None if labels is None else F.cross_entropy(logits.float(), labels.view(-1)),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerLMHead(nn.Module):
    """Dense layer, activation, norm, then logits over the vocabulary (their weight tied to the word embeddings).

    Without ``config.lm_head_transform`` only the last.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.transforms = config.lm_head_transform
        if self.transforms:
            self.dense = nn.Linear(config.hidden_size, config.hidden_size)
            self.activation = ACT2FN[config.hidden_act]
            self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        if self.transforms:
            hidden = self.norm(self.activation(run_linear(self.dense, hidden)))
        return run_linear(self.decoder, hidden)


class VocabularyScores:
    """A model with ``lm_head``, whose weight is tied to the word embeddings; a base before transformers' class."""

    lm_head: LinformerLMHead
    _tied_weights_keys = {  # noqa: RUF012 - transformers reads it from the class
        "lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"
    }

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings


class LinformerForMaskedLM(VocabularyScores, LabeledModel):
    """Logits over the vocabulary at every position, ``(B, N, vocab_size)``; labels of −100 are ignored in the loss."""

    output_class = MaskedLMOutput

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        sparse_prediction: bool = False,
        **kwargs: Any,
    ) -> LabeledOutput:
        """Logits, and the loss if ``labels`` are given; the other arguments are those of the backbone.

        Args:
            labels: ``(B, N)``.
            sparse_prediction: compute the logits only where a label is not −100, ``(labels, vocab_size)``. The loss is
                the same; of a masked language model's training step most of the work is logits that it ignores.
        """
        if sparse_prediction and labels is None:
            raise ValueError("sparse_prediction=True predicts the tokens that have labels: give labels")
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        hidden = outputs.last_hidden_state
        if sparse_prediction and labels is not None:
            asked = labels != IGNORED
            hidden, labels = hidden[asked], labels[asked]
        return self.labeled(outputs, self.logits_of(hidden, None), labels, attention_mask)

    def logits_of(self, hidden: Tensor, attention_mask: Tensor | Padding | None) -> Tensor:
        logits: Tensor = self.lm_head(hidden)
        return logits

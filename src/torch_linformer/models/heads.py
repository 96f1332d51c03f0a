"""Task heads on the Linformer backbone."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.modeling_outputs import MaskedLMOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig


def pool(hidden: Tensor, attention_mask: Tensor | None, pooling: str) -> Tensor:
    """One vector a row from ``(B, N, C)``; padding takes no part, and a row of padding alone gives zeros.

    ``mean_max`` gives ``(B, 2C)``, the others ``(B, C)``; ``cls`` is the first real token.
    """
    every_token = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
    real = every_token if attention_mask is None else attention_mask != 0
    if pooling == "mean_max":
        return torch.cat([pool(hidden, attention_mask, part) for part in ("mean", "max")], dim=-1)
    any_real = real.any(dim=-1, keepdim=True)
    if pooling == "cls":
        first = real.to(torch.uint8).argmax(dim=-1)
        pooled = hidden[torch.arange(hidden.shape[0], device=hidden.device), first]
        return pooled.masked_fill(~any_real, 0.0)
    padding = ~real.unsqueeze(-1)
    if pooling == "max":
        return hidden.masked_fill(padding, float("-inf")).amax(dim=1).masked_fill(~any_real, 0.0)
    # Half precision cannot count a long document.
    accurate = torch.promote_types(hidden.dtype, torch.float32)
    total = hidden.masked_fill(padding, 0.0).sum(dim=1, dtype=accurate)
    return (total / real.sum(dim=-1, keepdim=True).clamp(min=1)).to(hidden.dtype)


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """Pooled hidden states to one of ``num_labels``; cross-entropy weighted by ``config.class_weights``."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.class_weights is not None and len(config.class_weights) != config.num_labels:
            raise ValueError(f"class_weights has {len(config.class_weights)} numbers for {config.num_labels} labels")
        self.num_labels = len(config.label_names)
        self.linformer = LinformerModel(config)
        dropout = config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout
        self.dropout = nn.Dropout(dropout)
        width = config.hidden_size * (2 if config.pooling == "mean_max" else 1)
        self.classifier = nn.Linear(width, self.num_labels)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Logits ``(B, num_labels)``, and the loss where ``labels`` ``(B,)`` are given."""
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        pooled = pool(outputs.last_hidden_state, attention_mask, self.config.pooling)
        logits = self.classifier(self.dropout(pooled))
        loss = None
        if labels is not None:
            weights = self.config.class_weights
            scores = logits.float()
            weight = None if weights is None else scores.new_tensor(weights)
            loss = F.cross_entropy(scores, labels.view(-1), weight=weight)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class LinformerLMHead(nn.Module):
    """Dense, activation, norm, then the scores of every token (its weight tied to the word embeddings)."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = ACT2FN[config.hidden_act]
        self.norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)

    def forward(self, hidden: Tensor) -> Tensor:
        scores: Tensor = self.decoder(self.norm(self.activation(self.dense(hidden))))
        return scores


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """Scores of the vocabulary at every position; labels of −100 take no part in the loss."""

    _tied_weights_keys = {  # noqa: RUF012 - transformers reads it from the class
        "lm_head.decoder.weight": "linformer.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head.decoder = new_embeddings

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits ``(B, N, vocab_size)``, and the mean loss over labelled positions where ``labels`` are given."""
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.lm_head(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

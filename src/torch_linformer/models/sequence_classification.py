"""A label, several labels or a number for a whole row: from its hidden states, and from its words."""

from dataclasses import dataclass, replace
from typing import Any, cast

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_outputs import SequenceClassifierOutput

from torch_linformer.functional.padding import Padding
from torch_linformer.models.arguments import known_arguments
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.encoder_backbone import backbone_of
from torch_linformer.models.heads import LabeledModel, classifier_dropout
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.models.pooling import Pooler


@dataclass
class LinformerSequenceClassifierOutput(SequenceClassifierOutput):
    """As in transformers, and ``lexical_logits`` ``(B, num_labels)``: the lexical head's part of the logits, if any."""

    lexical_logits: Tensor | None = None


class LinformerForSequenceClassification(LabeledModel):
    """Pooled hidden states to ``num_labels`` numbers per row, ``(B, num_labels)``.

    ``config.problem_type`` says what they are: ``single_label_classification`` (cross-entropy, weighted by
    ``config.class_weights``), ``multi_label_classification`` (binary cross-entropy) or ``regression`` (mean squared
    error). Where it is None, ``num_labels = 1`` means regression, integer labels mean one label per row, and
    floating-point labels several. Labels are ``(B,)``, or ``(B, num_labels)`` where a row has several of them.

    With ``config.lexical_features`` the logits of a ``torch_linformer.models.lexical_head.LexicalHead`` are added.

    Raises:
        ValueError: ``class_weights`` does not fit the labels, or the problem has no classes to weight.
    """

    output_class = LinformerSequenceClassifierOutput
    scores_tokens = False

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = len(config.label_names)
        if config.class_weights is not None:
            if len(config.class_weights) != self.num_labels:
                raise ValueError(f"class_weights has {len(config.class_weights)} numbers for {self.num_labels} labels")
            if config.problem_type not in (None, "single_label_classification"):
                raise ValueError(f"class_weights are for one label per row; problem_type is {config.problem_type!r}")
        self.linformer = backbone_of(config)
        self.pooler = Pooler(config)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(self.pooler.out_features, self.num_labels)
        self.lexical: LexicalHead | None = None
        if config.lexical_features is not None:
            sizes = config.vocab_size, config.lexical_features, self.num_labels, config.lexical_letters
            self.lexical = LexicalHead(*sizes)
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
        whole_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> LinformerSequenceClassifierOutput:
        """Logits, and the loss if ``labels`` are given; the other arguments are those of the backbone.

        Where a row is only a part of its document, a lexical head may read all of it: ``whole_ids`` ``(B, M)``, padded
        with ``config.pad_token_id`` or a negative number.

        Raises:
            ValueError: ``whole_ids`` without a lexical head, or a lexical head without ids.
        """
        if self.lexical is None and whole_ids is not None:
            raise ValueError("whole_ids are read by a lexical head, and this model has none (lexical_features=None)")
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = cast(LinformerSequenceClassifierOutput, super().forward(*inputs, **{**kwargs, "return_dict": True}))
        logits = cast(Tensor, outputs.logits)
        lexical = self.lexical_logits(input_ids, attention_mask, whole_ids)
        logits = logits if lexical is None else logits + lexical
        loss = None if labels is None else self.loss_of(logits, labels)
        return replace(outputs, loss=loss, logits=logits, lexical_logits=lexical)

    def lexical_logits(
        self, input_ids: Tensor | None, attention_mask: Tensor | Padding | None = None, whole_ids: Tensor | None = None
    ) -> Tensor | None:
        """The lexical head's part of the logits, ``(B, num_labels)``; None without one. It is read as in `forward`."""
        if self.lexical is None:
            return None
        if whole_ids is None and input_ids is None:
            raise ValueError(
                "the lexical head reads input_ids, and inputs_embeds have no words: give whole_ids beside them, or "
                "load the model with lexical_features=None"
            )
        if whole_ids is None and isinstance(attention_mask, Padding):
            raise ValueError("the lexical head reads whole rows, and these are pieces of them: give whole_ids too")
        logits: Tensor = self.lexical(input_ids, attention_mask) if whole_ids is None else self.lexical(whole_ids)
        return logits

    def logits_of(self, hidden: Tensor, attention_mask: Tensor | Padding | None) -> Tensor:
        logits: Tensor = self.classifier(self.dropout(self.pooler(hidden, attention_mask)))
        return logits

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As in transformers; tokens that are new count for nothing in the lexical head."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.lexical is not None:
            self.lexical.resize(self.config.vocab_size)
        return embeddings

    def loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of logits ``(B, num_labels)``, in float32.

        Of several labels or numbers those that are NaN are unknown, and the mean is over the others.
        """
        scores = logits.float()
        problem = self.config.problem_type
        if problem is None and self.num_labels == 1:
            problem = "regression"
        if problem is None:
            whole = not labels.is_floating_point()
            problem = "single_label_classification" if whole else "multi_label_classification"
        if problem != "single_label_classification":
            targets = labels.to(scores.dtype)
            if problem == "regression":
                targets = targets.view_as(scores)
            known = ~targets.isnan()
            targets = targets.where(known, 0.0)
            if problem == "regression":
                losses = F.mse_loss(scores, targets, reduction="none")
            else:
                losses = F.binary_cross_entropy_with_logits(scores, targets, reduction="none")
            return losses.where(known, 0.0).sum() / known.sum().clamp(min=1)
        weights = self.config.class_weights
        weight = None if weights is None else scores.new_tensor(weights)
        return F.cross_entropy(scores, labels.view(-1), weight=weight)

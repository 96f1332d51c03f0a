"""Task heads on the Linformer backbone, and on linear encoders.

Those that transformers has for any backbone (``GenericForTokenClassification`` and its kin) are for decoders: they read
no ``token_type_ids``, take the last token that is not ``pad_token_id`` for the whole row, whatever the mask, look for
answers in padding too, and name the last layer otherwise than saved folders do.
"""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.activations import ACT2FN
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import records_a_graph
from torch_linformer.models.arguments import CACHE, known_arguments
from torch_linformer.models.backbone import Inputs, LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.cache import GenerationWithOurCache, LinformerCache
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.encoder_backbone import backbone_of
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.models.packed import refuse_packed_rows
from torch_linformer.models.pooling import Pooler
from torch_linformer.nn.linear import run_linear

ONE_DOCUMENT = "this head reads one document per row; give each document its own row"
IGNORED = -100  # a label that the loss ignores


def token_loss(
    logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None, *, rows: Tensor | Padding | None = None
) -> Tensor:
    """Cross-entropy of ``(…, classes)`` and ``(…)``, in float32: its mean over the labels that are not −100.

    With ``num_items`` the sum is divided by that instead: by the labels of a whole step of which this is a part. Where
    ``rows`` is a piece of them, sum and mean are those of whole rows.
    """
    scores, targets = logits.flatten(0, -2).float(), labels.flatten()
    if num_items is None and not isinstance(rows, Padding):
        return F.cross_entropy(scores, targets, ignore_index=IGNORED)
    total = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    if isinstance(rows, Padding):
        total = rows.total(total)
        num_items = rows.total((targets != IGNORED).sum()) if num_items is None else num_items
    return total / torch.as_tensor(num_items, device=total.device)


def classifier_dropout(config: LinformerConfig) -> float:
    """Dropout before a classifier: ``config.classifier_dropout``, or else that of the hidden states."""
    return config.hidden_dropout_prob if config.classifier_dropout is None else config.classifier_dropout


class LinformerForTokenClassification(LinformerPreTrainedModel):
    """One of ``num_labels`` labels for every token, ``(B, N, num_labels)``; labels of −100 are ignored in the loss."""

    takes_pieces = True
    scores_tokens = True  # each token has logits of its own, so a row may hold several documents

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.num_labels = len(config.label_names)
        self.linformer = backbone_of(config)
        self.dropout = nn.Dropout(classifier_dropout(config))
        self.classifier = nn.Linear(config.hidden_size, self.num_labels)
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
        **kwargs: Any,
    ) -> TokenClassifierOutput:
        """Logits, and the loss if ``labels`` are given; the other arguments are those of the backbone."""
        outputs = self.linformer(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        return TokenClassifierOutput(
            loss=None if labels is None else token_loss(logits, labels, rows=attention_mask),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


@dataclass
class LinformerSequenceClassifierOutput(SequenceClassifierOutput):
    """As in transformers, and ``lexical_logits`` ``(B, num_labels)``: the lexical head's part of the logits, if any."""

    lexical_logits: Tensor | None = None


class LinformerForSequenceClassification(LinformerPreTrainedModel):
    """Pooled hidden states to ``num_labels`` numbers per row, ``(B, num_labels)``.

    ``config.problem_type`` says what they are: ``single_label_classification`` (cross-entropy, weighted by
    ``config.class_weights``), ``multi_label_classification`` (binary cross-entropy) or ``regression`` (mean squared
    error). Where it is None, ``num_labels = 1`` means regression, integer labels mean one label per row, and
    floating-point labels several. Labels are ``(B,)``, or ``(B, num_labels)`` where a row has several of them.

    With ``config.lexical_features`` logits that are linear in the row's words (TF-IDF) are added: see
    ``torch_linformer.models.lexical_head.LexicalHead``.

    Raises:
        ValueError: ``class_weights`` does not fit the labels, or the problem has no classes to weight.
    """

    takes_pieces = True

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
            self.lexical = LexicalHead(
                config.vocab_size, config.lexical_features, self.num_labels, config.lexical_letters
            )
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
        """
        if self.lexical is None and whole_ids is not None:
            raise ValueError("whole_ids are read by a lexical head, and this model has none (lexical_features=None)")
        refuse_packed_rows(position_ids, attention_mask, ONE_DOCUMENT)
        outputs = BaseModelOutput()
        if torch.is_grad_enabled() or records_a_graph() or any(self.records(kwargs)) or not self.words_only:
            outputs = self.linformer(
                input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
            )
            logits = self.classifier(self.dropout(self.pooler(outputs.last_hidden_state, attention_mask)))
        else:
            logits = self.classifier.bias
        lexical = self.lexical_logits(input_ids, attention_mask, whole_ids)
        logits = logits if lexical is None else logits + lexical
        return LinformerSequenceClassifierOutput(
            loss=None if labels is None else self.loss_of(logits, labels),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            lexical_logits=lexical,
        )

    @property
    def words_only(self) -> bool:
        """Whether the logits are the lexical head's and a bias: inference does not run an encoder that adds nothing."""
        is_plain = type(self.classifier) is nn.Linear  # not quantized or wrapped
        return self.lexical is not None and is_plain and not self.classifier.weight.any()

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
        scores, problem = logits.float(), cast(str | None, self.config.problem_type)
        if problem is None:
            several = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
            problem = "regression" if self.num_labels == 1 else several
        if problem == "single_label_classification":
            weights = self.config.class_weights
            weight = None if weights is None else scores.new_tensor(weights)
            return F.cross_entropy(scores, labels.view(-1), weight=weight)
        targets, loss = labels.to(scores.dtype), cast(Any, F.binary_cross_entropy_with_logits)
        if problem == "regression":
            targets, loss = targets.view_as(scores), F.mse_loss
        known = ~targets.isnan()
        losses = loss(scores, targets.where(known, 0.0), reduction="none")
        return cast(Tensor, losses.where(known, 0.0).sum() / known.sum().clamp(min=1))


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
            start, end = (positions.view(-1).clamp(0, length) for positions in (start_positions, end_positions))
            loss = F.cross_entropy(choices[0], start, ignore_index=length)
            loss = (loss + F.cross_entropy(choices[1], end, ignore_index=length)) / 2
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
        rows = [None if x is None else x.flatten(0, 1) for x in inputs]
        refuse_packed_rows(rows[3], rows[1], ONE_DOCUMENT)
        outputs = self.linformer(*rows, return_dict=True, **kwargs)
        pooled = self.pooler(outputs.last_hidden_state, rows[1])
        choices = Inputs(input_ids, token_type_ids, position_ids, inputs_embeds).tokens.shape[:2]
        logits = self.classifier(self.dropout(pooled)).view(choices)
        return MultipleChoiceModelOutput(
            loss=None if labels is None else F.cross_entropy(logits.float(), labels.view(-1)),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerLMHead(nn.Module):
    """Dense layer, activation and norm (unless ``config.lm_head_transform`` is False), logits over the vocabulary."""

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


class LinformerForMaskedLM(VocabularyScores, LinformerPreTrainedModel):
    """Logits over the vocabulary at every position, ``(B, N, vocab_size)``; labels of −100 are ignored in the loss."""

    takes_pieces = True
    scores_tokens = True

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
    ) -> MaskedLMOutput:
        """Logits, and the loss if ``labels`` ``(B, N)`` are given; the other arguments are those of the backbone.

        With ``sparse_prediction`` only the logits where a label is not −100, ``(labels, vocab_size)``: the loss is the
        same, and most of the work of a training step is logits that it ignores.
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
        logits = self.lm_head(hidden)
        return MaskedLMOutput(
            loss=None if labels is None else token_loss(logits, labels, rows=attention_mask),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForCausalLM(VocabularyScores, GenerationWithOurCache, LinformerPreTrainedModel, GenerationMixin):
    """Scores of the vocabulary for the token after each one, ``(B, N, vocab_size)``.

    ``config.causal`` must be True. For text set ``config.window`` too; with ``position_embedding="rotary"`` no input is
    too long. The cache of ``generate`` does not grow.

    Raises:
        ValueError: for a configuration that is not causal.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if not config.causal:
            raise ValueError(
                "LinformerForCausalLM needs a causal model: LinformerConfig(causal=True, window=64, "
                'position_embedding="rotary", ...)'
            )
        self.linformer = LinformerModel(config)
        self.lm_head = LinformerLMHead(config)
        self.post_init()

    @known_arguments("shift_labels")  # by name it would be a label of which the Trainer asks for every batch
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits, the cache, and the loss where ``labels`` are given; see the backbone for the other arguments.

        Args:
            labels: ``(B, N)``, usually ``input_ids``: they are shifted here. −100 takes no part in the loss, the mean
                cross-entropy in float32; the first token of a packed document needs it.
            logits_to_keep: compute the logits of that many last positions, or of these; 0 for all.
            num_items_in_batch: divide the sum of the cross-entropies by this instead of by the labels there are.
            **kwargs: ``shift_labels`` ``(B, N)``, labels that are shifted already, instead of ``labels``; and those of
                the backbone.
        """
        shift_labels = kwargs.pop("shift_labels", None)
        outputs = self.linformer(
            input_ids,
            attention_mask,
            token_type_ids,
            position_ids,
            inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        return CausalLMOutputWithPast(
            loss=None if shift_labels is None else token_loss(logits, shift_labels, num_items_in_batch),
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )

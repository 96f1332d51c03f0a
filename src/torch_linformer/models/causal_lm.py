"""The causal language model: the next token of everything read so far."""

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from torch_linformer.models.arguments import CACHE, known_arguments
from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.cache import GenerationWithOurCache, LinformerCache
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.heads import LinformerLMHead, VocabularyScores
from torch_linformer.models.loss import IGNORED, token_loss
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel


class LinformerForCausalLM(VocabularyScores, GenerationWithOurCache, LinformerPreTrainedModel, GenerationMixin):
    """Scores of the vocabulary for the token after each one, ``(B, N, vocab_size)``.

    ``config.causal`` must be True; a ``config.window`` beside the slots serves text well, and with
    ``position_embedding="rotary"`` no input is too long. What ``generate`` keeps between two tokens does not grow.

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
        loss = None
        if shift_labels is None and labels is not None:
            shift_labels = F.pad(labels[:, 1:], (0, 1), value=IGNORED)
        if shift_labels is not None:
            loss = token_loss(logits, shift_labels, num_items_in_batch)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )

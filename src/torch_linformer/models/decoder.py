"""The decoder of an encoder-decoder: embeddings, left-justification of padding on both sides, decoder stack."""

from typing import Any, Literal, cast

from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.output_capturing import OutputRecorder

from torch_linformer.functional.padding import Padding
from torch_linformer.models.arguments import CACHE, known_arguments, recording
from torch_linformer.models.backbone import Inputs, LinformerBackbone, put_back, read_attention_mask
from torch_linformer.models.cache import LinformerCache
from torch_linformer.models.configuration import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.models.packed import refuse_packed_rows
from torch_linformer.models.stacks import build_decoder
from torch_linformer.nn.attention import Attention, KeysAndValues


class LinformerDecoderModel(LinformerBackbone):
    """Target ids and an encoder's output in, hidden states out.

    Padding may stand on any side of the target and of the source: real tokens come out as if there were none.
    """

    _can_record_outputs = {  # noqa: RUF012 - transformers reads both from the class
        "hidden_states": GradientCheckpointingLayer,
        "attentions": OutputRecorder(Attention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(Attention, index=1, layer_name="multihead_attn"),
    }

    def __init__(self, config: LinformerSeq2SeqConfig) -> None:
        super().__init__(cast(LinformerConfig, config.decoder))
        self.decoder = build_decoder(config)
        self.post_init()

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take targets up to ``max_len``: learned positions are stretched or kept; nothing else limits them.

        Raises:
            ValueError: as :meth:`LinformerModel.resize_max_len`.
        """
        self.check_resize(max_len, mode)
        self.resize_positions(max_len, mode)

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode a batch; arguments of the target as in :meth:`LinformerModel.forward`.

        Args:
            encoder_hidden_states: ``(B, M, C)`` of the encoder; not needed where ``past_key_values`` holds what the
                layers read of them.
            encoder_attention_mask: ``(B, M)``, nonzero at real tokens.

        Raises:
            ValueError: as there; and if there is nothing to read, ``encoder_attention_mask`` does not fit, or a row
                holds several targets.
        """
        refuse_packed_rows(position_ids, attention_mask, "a decoder takes one target a row, for one source")
        inputs = Inputs(input_ids, None, position_ids, inputs_embeds)
        inputs, padding, options, rows = self._prepare(inputs, attention_mask, past_key_values, use_cache, kwargs)
        outputs = self._run(inputs, padding, encoder_hidden_states, encoder_attention_mask, **options)
        square = self.config.attention == "full"
        return cast(BaseModelOutputWithPastAndCrossAttentions, put_back(outputs, rows, square))

    @recording
    def _run(
        self,
        inputs: Inputs,
        padding: Padding | None,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Tensor | None,
        past_key_values: LinformerCache | None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        need_weights, _ = self._records(kwargs)
        memory, memory_padding = self._memory(encoder_hidden_states, encoder_attention_mask, past_key_values)
        hidden = self.decoder(
            self._embed(inputs, padding, past_key_values),
            memory,
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=memory_padding,
            need_weights=need_weights,
            pasts=None if past_key_values is None else past_key_values.pasts,
        )
        if past_key_values is not None:
            past_key_values.add_columns(hidden.shape[1])
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=hidden, **cast(Any, {CACHE: past_key_values})
        )

    def _memory(
        self, hidden: Tensor | None, attention_mask: Tensor | None, cache: LinformerCache | None
    ) -> tuple[Tensor | list[KeysAndValues], Padding | None]:
        """The encoder's output with its padding last, or what the layers read of it, kept in the cache."""
        if cache is not None and cache.memories is not None:
            return cache.memories, None
        if hidden is None:
            raise ValueError("give encoder_hidden_states, or past_key_values of a call that was given them")
        padding = None
        if attention_mask is not None:
            if attention_mask.shape != hidden.shape[:2]:
                raise ValueError(
                    f"the attention_mask of the source must have shape (B, M) = {tuple(hidden.shape[:2])}, "
                    f"got {tuple(attention_mask.shape)}"
                )
            padding = read_attention_mask(self.config, attention_mask)
            hidden, padding = padding.justify(hidden), padding.justified
        if cache is None:
            return hidden, padding
        memories = cache.memories = self.decoder.compress(hidden, padding)
        return memories, None

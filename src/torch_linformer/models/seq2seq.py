"""The encoder-decoder: a source in, scores of a target's tokens out."""

from typing import Any, Literal, cast

from torch import LongTensor, Tensor, nn
from transformers import GenerationMixin
from transformers.activations import ACT2FN
from transformers.generation.utils import GenerateOutput
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions, Seq2SeqLMOutput
from transformers.utils.output_capturing import OutputRecorder

from torch_linformer.choices import ActivationMemory
from torch_linformer.functional.padding import Padding
from torch_linformer.models.arguments import CACHE, known_arguments, recording
from torch_linformer.models.backbone import (
    DecoderBlock,
    Inputs,
    LinformerBackbone,
    LinformerModel,
    LinformerPreTrainedModel,
    build_attention,
    final_norm,
    layer_options,
)
from torch_linformer.models.cache import GenerationWithOurCache, LinformerCache
from torch_linformer.models.configuration import (
    LinformerConfig,
    LinformerSeq2SeqConfig,
    attention_options,
    memory_options,
)
from torch_linformer.models.heads import IGNORED, token_loss
from torch_linformer.models.packed import refuse_packed_rows
from torch_linformer.nn.attention import Attention, KeysAndValues
from torch_linformer.nn.attention.slot_maps import maps_in, resize_maps
from torch_linformer.nn.decoder import Decoder
from torch_linformer.nn.layer import plan_layers
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.options import check_new_length


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
        encoder, decoder = cast(LinformerConfig, config.encoder), cast(LinformerConfig, config.decoder)
        super().__init__(decoder)
        num_layers, max_len, width = decoder.num_hidden_layers, decoder.max_position_embeddings, encoder.hidden_size
        target = plan_layers(decoder.k, num_layers, max_len, decoder.hidden_size, attention_options(decoder))
        memory_k, memory_len = cast("int | list[int]", config.memory_k), encoder.max_position_embeddings
        memory = plan_layers(memory_k, num_layers, memory_len, width, memory_options(config), name="memory_k")
        cross_attention = {**memory.options, "kdim": width, "vdim": width}
        blocks = [
            DecoderBlock(
                build_attention(decoder, max_len, k, target.options),
                build_attention(decoder, memory_len, layer_memory_k, cross_attention),
                **layer_options(decoder),
            )
            for k, layer_memory_k in zip(target.k, memory.k, strict=True)
        ]
        activation_memory = cast(ActivationMemory, decoder.activation_memory)
        norm, shared = final_norm(decoder), memory.shared_projection
        self.decoder = Decoder(blocks, norm, shared, activation_memory=activation_memory)
        self.post_init()

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take targets up to ``max_len``: learned positions are stretched or kept; nothing else limits them."""
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

        ``encoder_hidden_states`` ``(B, M, C)``, with ``encoder_attention_mask`` ``(B, M)``, are not needed where
        ``past_key_values`` holds what the layers read of them.
        """
        refuse_packed_rows(position_ids, attention_mask, "a decoder takes one target a row, for one source")
        given = Inputs(input_ids, None, position_ids, inputs_embeds)
        inputs, padding, options, rows = self.prepare(given, attention_mask, past_key_values, use_cache, kwargs)
        outputs = self._run(inputs, padding, encoder_hidden_states, encoder_attention_mask, **options)
        return cast(BaseModelOutputWithPastAndCrossAttentions, self.put_back(outputs, rows))

    @recording
    def _run(
        self,
        inputs: Inputs,
        padding: Padding | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
        past_key_values: LinformerCache | None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        read, memory_padding = self._memory(memory, memory_mask, past_key_values)
        hidden = self.decoder(
            self._embed(inputs, padding, past_key_values),
            read,
            tgt_key_padding_mask=padding,
            memory_key_padding_mask=memory_padding,
            need_weights=self.records(kwargs)[0],
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
            padding = self.padding_of(attention_mask)
            hidden, padding = padding.justify(hidden), padding.justified
        if cache is None:
            return hidden, padding
        memories = cache.memories = self.decoder.compress(hidden, padding)
        return memories, None


class LinformerForConditionalGeneration(GenerationWithOurCache, LinformerPreTrainedModel, GenerationMixin):
    """An encoder that reads the whole source and a decoder that writes the target, token by token.

    Each layer of the decoder compresses the encoder's output to ``config.memory_k`` slots at most, once for a whole
    generation, so the cache of ``generate`` does not grow.
    """

    config: LinformerSeq2SeqConfig  # type: ignore[assignment]  # the one model whose configuration holds two
    config_class = LinformerSeq2SeqConfig  # type: ignore[assignment]
    lm_head: nn.Linear
    _tied_weights_keys = {  # noqa: RUF012 - transformers reads it from the class
        "lm_head.weight": "decoder.embeddings.word_embeddings.weight"
    }

    def __init__(self, config: LinformerSeq2SeqConfig) -> None:
        super().__init__(config)
        self.encoder = LinformerModel(cast(LinformerConfig, config.encoder))
        self.decoder = LinformerDecoderModel(config)
        # Not a LinformerLMHead: device maps take its "lm_head.decoder" for a part of "decoder".
        width, own = self.decoder.config.hidden_size, self.decoder.config
        transform = nn.Linear(width, width), ACT2FN[own.hidden_act], nn.LayerNorm(width, eps=own.layer_norm_eps)
        self.lm_head_transform = nn.Sequential(*transform) if own.lm_head_transform else nn.Identity()
        self.lm_head = nn.Linear(width, own.vocab_size)
        if config.share_embeddings:
            words = "embeddings.word_embeddings.weight"
            self._tied_weights_keys = {**self._tied_weights_keys, f"encoder.{words}": f"decoder.{words}"}
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)
        if self._shares_embeddings:
            self.decoder.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Linear:
        return self.lm_head

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        self.lm_head = new_embeddings

    @property
    def _shares_embeddings(self) -> bool:
        return self.config.share_embeddings and self.config.tie_word_embeddings

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """More or fewer tokens in the vocabulary that encoder and decoder share; without a number, the embeddings."""
        if new_num_tokens is None and pad_to_multiple_of is None:
            return self.get_input_embeddings()
        if not self._shares_embeddings:
            raise ValueError(
                "encoder and decoder have embeddings of their own: model.encoder.resize_token_embeddings(...) resizes "
                "the source's; the target's vocabulary stays"
            )
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        cast(LinformerConfig, self.config.encoder).vocab_size = embeddings.num_embeddings
        return embeddings

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sources up to ``max_len`` tokens; ``model.decoder.resize_max_len`` does the same for targets.

        Raises:
            ValueError: for an unknown ``mode``, or ``max_len`` below a ``k``; the model is then as before.
        """
        check_new_length(max_len, mode, cast("int | list[int]", self.config.memory_k), "memory_k")
        self.encoder.check_resize(max_len, mode)
        if maps_in(self):
            resize_maps(self, max_len, mode)
        self.encoder.resize_positions(max_len, mode)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels moved one place to the right: the decoder's input while it learns them, ``(B, T)``.

        ``config.decoder_start_token_id`` comes first, and −100 becomes padding.
        """
        start, padding = cast(int, self.config.decoder_start_token_id), self.config.pad_token_id
        shifted = labels.roll(1, dims=-1)
        shifted[..., 0] = start
        return shifted.masked_fill(shifted == IGNORED, start if padding is None else padding)

    def generate(self, *args: Any, labels: Tensor | None = None, **kwargs: Any) -> GenerateOutput | LongTensor:
        """As transformers' ``generate``. ``labels`` are not read: Seq2SeqTrainer hands them on where it evaluates."""
        generated: GenerateOutput | LongTensor = GenerationMixin.generate(cast(Any, self), *args, **kwargs)
        return generated

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: LinformerCache | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_position_ids: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: Tensor | int | None = None,
        **kwargs: Any,
    ) -> Seq2SeqLMOutput:
        """Logits ``(B, T, vocab_size)``, the cache, and the loss where ``labels`` are given.

        Args:
            input_ids: ``(B, M)``, the source; as ``token_type_ids``, ``position_ids`` and ``inputs_embeds`` it is for
                the encoder, and is not read where its output is there already.
            attention_mask: ``(B, M)``, nonzero at real tokens of the source, on whichever side padding stands.
            decoder_input_ids: ``(B, T)``, the target so far, ``config.decoder_start_token_id`` first; by default
                made of ``labels``.
            decoder_attention_mask: ``(B, T)``, nonzero at real tokens. Padding after a target needs none: nothing
                before it sees it.
            encoder_outputs: what the encoder gave for this source.
            past_key_values: the target read so far and what is read of the source; this call adds its input.
            labels: ``(B, T)``, not shifted. −100 takes no part in the loss, the mean cross-entropy in float32.
            use_cache: return ``past_key_values``; by default the model does unless it is training.
            logits_to_keep: compute the logits of that many last positions, or of these; 0 for all.
            num_items_in_batch: divide the sum of the cross-entropies by this instead of by the labels there are.

        Raises:
            TypeError: for an argument of another name.
            ValueError: as the two parts raise it; and if there is no target.
        """
        if encoder_outputs is None and (past_key_values is None or past_key_values.memories is None):
            encoder_outputs = self.encoder(
                input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
            )
        if isinstance(encoder_outputs, tuple):
            names = ("last_hidden_state", "hidden_states", "attentions")
            encoder_outputs = BaseModelOutput(**cast(Any, dict(zip(names, encoder_outputs, strict=False))))
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        if decoder_input_ids is None and decoder_inputs_embeds is None:
            raise ValueError("give decoder_input_ids, decoder_inputs_embeds or labels: a decoder reads a target")
        outputs = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            None if encoder_outputs is None else encoder_outputs.last_hidden_state,
            attention_mask,
            decoder_position_ids,
            decoder_inputs_embeds,
            past_key_values,
            use_cache,
            return_dict=True,
            **kwargs,
        )
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = run_linear(self.lm_head, self.lm_head_transform(outputs.last_hidden_state[:, kept]))
        loss = None if labels is None else token_loss(logits, labels, num_items_in_batch)
        encoded = BaseModelOutput() if encoder_outputs is None else encoder_outputs
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
            **{CACHE: getattr(outputs, CACHE)},
        )

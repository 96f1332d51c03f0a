"""The Linformer backbone: embeddings, left-justification of padding, encoder; and what every model shares."""

import math
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.output_capturing import OutputRecorder, maybe_install_capturing_hooks

from torch_linformer.choices import ActivationMemory
from torch_linformer.encoders.classes import init_slots
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.functional.slots import check_length
from torch_linformer.functional.softmax import check_exact_tokens
from torch_linformer.models.arguments import CACHE, check_rows, known_arguments, recording
from torch_linformer.models.cache import LinformerCache
from torch_linformer.models.configuration import LinformerConfig, NotCopied, attention_options
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.models.packed import SEVERAL, PackedRows, packed_rows
from torch_linformer.nn.attention import Attention, FullAttention, LinformerAttention
from torch_linformer.nn.attention.slot_maps import maps_in, resize_maps
from torch_linformer.nn.chunks import cut, gather, has_hooks
from torch_linformer.nn.decoder import DecoderLayer
from torch_linformer.nn.dynamic_projection import FIRST_SCORE, CausalProjection
from torch_linformer.nn.encoder import Encoder, EncoderLayer
from torch_linformer.nn.layer import plan_layers
from torch_linformer.nn.linear import ACTIVATIONS
from torch_linformer.nn.options import check_new_length
from torch_linformer.nn.projection import SequenceProjection, resize_rows
from torch_linformer.nn.reversible import ReversibleEncoderLayer


class Inputs(NamedTuple):
    """What is embedded: ``(B, N)`` of ids, types and positions, or ``(B, N, C)`` in place of ids."""

    input_ids: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None

    @property
    def tokens(self) -> Tensor:
        """What there is of ids and embeddings."""
        tokens = self.input_ids if self.inputs_embeds is None else self.inputs_embeds
        if tokens is None or (self.input_ids is not None and self.inputs_embeds is not None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        return tokens


# Layers that transformers can checkpoint and whose output it can record.
class EncoderBlock(GradientCheckpointingLayer, EncoderLayer):
    """The layer of an encoder."""


class ReversibleBlock(GradientCheckpointingLayer, ReversibleEncoderLayer):
    """The layer of an encoder with ``activation_memory="reversible"``."""


class DecoderBlock(GradientCheckpointingLayer, DecoderLayer):
    """The layer of the decoder of an encoder-decoder."""


def build_attention(config: LinformerConfig, max_len: int, k: int, options: dict[str, Any]) -> Attention:
    """One attention of ``config``, to sequences of ``max_len``."""
    sizes, dropout = (config.hidden_size, config.num_attention_heads), config.attention_probs_dropout_prob
    if config.attention == "full":
        return FullAttention(*sizes, dropout=dropout, **options)
    return LinformerAttention(*sizes, max_len, k, dropout=dropout, **options)


def layer_options(config: LinformerConfig) -> dict[str, Any]:
    """What the layers of :mod:`torch_linformer.nn` call the fields beside those of the attention."""
    return {
        "dim_feedforward": config.intermediate_size,
        "dropout": config.hidden_dropout_prob,
        # Functions rather than modules, where there are both: they are computed with the product before them.
        "activation": ACTIVATIONS.get(config.hidden_act) or ACT2FN[config.hidden_act],
        "layer_norm_eps": config.layer_norm_eps,
        "norm_first": config.norm_first,
        "gated": config.gated,
        "chunk_size": config.chunk_size,
    }


def final_norm(config: LinformerConfig) -> nn.LayerNorm | None:
    """The norm after the last of pre-norm layers."""
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if config.norm_first and config.final_norm else None


class LinformerPreTrainedModel(NotCopied, PreTrainedModel):
    """What every Linformer model shares: loading, initialization, recording, length."""

    config: LinformerConfig
    config_class = LinformerConfig
    base_model_prefix = "linformer"
    # The losses are means over the batch they are given. Without this line the Trainer takes **kwargs for a promise to
    # divide by the size of a whole step, and multiplies by processes and accumulated batches.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    takes_pieces = False  # each process may hold a piece of the rows (torch_linformer.distributed)
    _no_split_modules = [block.__name__ for block in (EncoderBlock, ReversibleBlock, DecoderBlock)]  # noqa: RUF012
    # A stack hands its map to every layer: Accelerate would move it, weights and all, to where each layer is.
    _skip_keys_device_placement = ["shared_projection"]  # noqa: RUF012 - transformers reads these from the class
    _supports_sdpa = True
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": GradientCheckpointingLayer,
        "attentions": OutputRecorder(Attention, index=1),
    }

    def post_init(self) -> None:
        super().post_init()  # type: ignore[no-untyped-call]

    def compile(self, *args: Any, **options: Any) -> None:
        """:meth:`torch.nn.Module.compile`, for calls with ``output_hidden_states`` too.

        Transformers installs its hooks in the first such call and holds a lock, where a graph would break.
        """
        maybe_install_capturing_hooks(self)
        super().compile(*args, **options)

    def records(self, kwargs: dict[str, Any]) -> tuple[bool, bool]:
        """Whether attention weights and hidden states are recorded."""
        names = "output_attentions", "output_hidden_states"
        weights, layers = (bool(kwargs.get(name, getattr(self.config, name))) for name in names)
        return weights, layers

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        init_slots(module)
        if isinstance(module, SequenceProjection) and module.weight is not None:
            init.normal_(module.weight, mean=0.0, std=module.init_std)
        if isinstance(module, CausalProjection):
            init.normal_(module.address, mean=0.0, std=module.address.shape[1] ** -0.5)
            init.copy_(module.log_time, module.first_log_time().expand_as(module.log_time))
            init.constant_(module.score_bias, FIRST_SCORE)
        if isinstance(module, LexicalHead):
            module.reset_parameters()

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take inputs up to ``max_len`` tokens; see :meth:`torch_linformer.nn.SequenceProjection.resize_max_len`.

        Learned positions are stretched or kept in the same way; new ones are drawn as at first. A causal model has
        nothing else that a length limits.

        Raises:
            ValueError: for an unknown ``mode``, ``max_len`` below ``k``, or a model that reads any length; the model is
                then as before.
        """
        backbone: Any = self.base_model
        if self.config.backbone_config is not None:
            return cast(None, backbone.resize_max_len(max_len, mode))
        backbone.check_resize(max_len, mode)
        if maps_in(backbone):
            resize_maps(backbone, max_len, mode)
        backbone.resize_positions(max_len, mode)


class LinformerEmbeddings(nn.Module):
    """Sum of the embeddings, normalized unless the configuration says otherwise.

    Expects real tokens first: position i is the i-th real token, or the i-th after ``start`` ``(B,)`` earlier ones.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, width) if config.position_embedding == "learned" else None
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.sinusoidal = config.position_embedding == "sinusoidal"
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.chunk_size = config.chunk_size

    def forward(self, inputs: Inputs, start: Tensor | None = None) -> Tensor:
        length, device = inputs.tokens.shape[1], inputs.tokens.device
        if inputs.position_ids is None:
            position_ids = torch.arange(length, device=device).unsqueeze(0)
            position_ids = position_ids if start is None else position_ids + start.unsqueeze(-1)
            inputs = inputs._replace(position_ids=position_ids)
        if not runs_in_chunks(self.chunk_size):
            return self._embed(*inputs)

        def embed(chunk: slice) -> Tensor:
            return self._embed(*(None if x is None else x[:, chunk] for x in inputs))

        return gather(((chunk, [embed(chunk)]) for chunk in cut(length, self.chunk_size)), length, dim=1)[0]

    def _embed(
        self, ids: Tensor | None, types: Tensor | None, positions: Tensor | None, embeddings: Tensor | None
    ) -> Tensor:
        assert positions is not None
        summed: Tensor = self.word_embeddings(ids) if embeddings is None else embeddings
        if self.position_embeddings is not None:
            summed = summed + self.position_embeddings(positions)
        elif self.sinusoidal:
            summed = summed + sinusoids(positions, summed.shape[-1]).to(summed.dtype)
        if self.token_type_embeddings is not None:
            summed = summed + self.token_type_embeddings(torch.zeros_like(positions) if types is None else types)
        output: Tensor = self.dropout(summed if self.norm is None else self.norm(summed))
        return output


def sinusoids(position_ids: Tensor, width: int) -> Tensor:
    r"""``(…, width)``: sin and cos of :math:`p / 10000^{2i / width}` side by side, in float32."""
    half = (width + 1) // 2
    exponents = torch.arange(half, device=position_ids.device, dtype=torch.float32) * (-2 / width)
    angles = position_ids.unsqueeze(-1).float() * torch.exp(exponents * math.log(10000.0))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]


class LinformerBackbone(LinformerPreTrainedModel):
    """Embeddings below a stack that a subclass adds, and the sizes, order and past of what it is given."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.embeddings = LinformerEmbeddings(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = cast(nn.Embedding, value)

    def prepare(
        self,
        inputs: Inputs,
        attention_mask: Tensor | Padding | None,
        past_key_values: LinformerCache | None,
        use_cache: bool | None,
        kwargs: dict[str, Any],
    ) -> tuple[Inputs, Padding | None, dict[str, Any], Padding | PackedRows | None]:
        """Arguments of ``forward``, checked: what is embedded, each document in its own row and real tokens first; the
        padding of these rows; the other arguments; and how tokens were moved to the rows, None if they were not.
        """
        batch, length = inputs.tokens.shape[:2]
        check_rows(kwargs, inputs.position_ids)
        documents = packed_rows(inputs.position_ids, batch) if attention_mask is None and length > 1 else None
        if documents is not None:
            length = documents.longest
            if past_key_values is not None or (use_cache and self.config.causal):
                raise ValueError(f"{SEVERAL}, but past_key_values hold one document per row: give use_cache=False")
            use_cache = False
        if isinstance(attention_mask, Padding):  # a piece of the rows
            length, use_cache = attention_mask.length, False
        cache = self._cache(past_key_values, use_cache)
        padding = self._padding(batch, length, attention_mask, cache)
        kwargs.update(past_key_values=cache, return_dict=True)
        # Tokens are moved once for all layers; but what is recorded must lead to the output, so there each layer does.
        rows: Padding | PackedRows | None = documents
        if documents is None and padding is not None and padding.order is not None and not any(self.records(kwargs)):
            rows = padding
        if rows is None:
            return inputs, padding, kwargs, None
        moved = Inputs(*(None if x is None else rows.justify(x) for x in inputs))
        return moved, rows.justified, kwargs, rows

    def put_back(self, outputs: Any, rows: Padding | PackedRows | None) -> Any:
        """Outputs where their tokens stood before they were moved to ``rows``."""
        if rows is None:
            return outputs
        for name, value in outputs.items():
            if isinstance(value, Tensor):
                outputs[name] = rows.restore(value)
            elif isinstance(value, tuple):  # None at the layers that output_hidden_states does not select
                outputs[name] = tuple(None if x is None else rows.restore(x) for x in value)
        if outputs.attentions is not None and self.config.attention == "full" and isinstance(rows, PackedRows):
            outputs["attentions"] = tuple(rows.restore_keys(x) for x in outputs.attentions)
        return outputs

    def _cache(self, past_key_values: LinformerCache | None, use_cache: bool | None) -> LinformerCache | None:
        """The past to go on from, a new one if there is none but one is wanted, or None."""
        computes_again = self.training and any(getattr(x, "gradient_checkpointing", False) for x in self.modules())
        if past_key_values is None:
            with_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
            wanted = with_cache and self.config.causal and not computes_again
            return LinformerCache(self.config.num_hidden_layers) if wanted else None
        no_prefix = "a prefix of keys and values (prefix tuning) has no place; take prompt tuning or LoRA"
        if not self.config.causal:
            raise ValueError(
                f"past_key_values needs a causal model: here every token sees those after it too, and {no_prefix}"
            )
        if computes_again:
            raise ValueError("past_key_values with gradient checkpointing: layers computed again would read twice")
        if not isinstance(past_key_values, LinformerCache):
            kind = type(past_key_values).__name__
            raise ValueError(f"past_key_values must be a LinformerCache, got {kind}: {no_prefix}")
        return past_key_values

    def _padding(
        self, batch: int, length: int, attention_mask: Tensor | Padding | None, cache: LinformerCache | None
    ) -> Padding | None:
        """That of the N new columns; raises ``ValueError`` where sizes do not fit."""
        before = 0 if cache is None else cache.get_seq_length()
        if self.config.longest_input is not None:
            check_length(before + length, self.config.longest_input)
        if attention_mask is None or isinstance(attention_mask, Padding):
            return attention_mask
        if attention_mask.shape not in ((batch, length), (batch, before + length)):
            raise ValueError(
                f"attention_mask must have shape (B, N) = ({batch}, {length}), got {tuple(attention_mask.shape)}"
            )
        return self.padding_of(attention_mask[:, attention_mask.shape[1] - length :])

    def padding_of(self, attention_mask: Tensor) -> Padding:
        """The padding, and the order of the real tokens where the attention asks for one."""
        return Padding(attention_mask == 0, in_order=self.config.attention == "full")

    def check_resize(self, max_len: int, mode: str) -> None:
        """Raise ``ValueError`` where the model cannot be made to take inputs up to ``max_len``, before it changes."""
        check_new_length(max_len, mode, self.config.slots, "k")
        if not self.config.causal:
            check_exact_tokens(self.config.exact_first, self.config.exact_last, max_len)
        if self.config.longest_input is None:
            raise ValueError(
                f"nothing to resize: a causal model with position_embedding={self.config.position_embedding!r} reads "
                "inputs of any length"
            )

    def resize_positions(self, max_len: int, mode: str) -> None:
        """Stretch or keep learned positions, and let the configuration say ``max_len``."""
        positions = self.embeddings.position_embeddings
        if positions is not None:
            resized = resize_rows(positions.weight.detach(), max_len, mode, std=self.config.initializer_range)
            positions.weight = nn.Parameter(resized, requires_grad=positions.weight.requires_grad)
            positions.num_embeddings = max_len
        self.config.max_position_embeddings = max_len

    def _embed(self, inputs: Inputs, padding: Padding | None, cache: LinformerCache | None) -> Tensor:
        """The embeddings of rows whose real tokens are counted, wherever they stand."""
        start = None if cache is None else cache.tokens
        if padding is not None:
            if inputs.inputs_embeds is not None:
                inputs = inputs._replace(inputs_embeds=padding.clean(inputs.inputs_embeds))
            if inputs.position_ids is None:
                ranks = padding.ranks if start is None else padding.ranks + start.unsqueeze(-1)
                inputs = inputs._replace(position_ids=ranks)
        embedded: Tensor = self.embeddings(inputs, start)
        return embedded


class LinformerModel(LinformerBackbone):
    """The bare model: token ids in, hidden states out.

    Padding may stand on either side, or in the middle: only ``attention_mask`` tells where it is, and the real
    tokens come out as if the row had none.
    """

    takes_pieces = True

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.backbone_config is not None:
            raise ValueError(
                "backbone_config is for heads of rows, tokens and answers: open the folder as one of these, or take "
                "the encoder itself, torch_linformer.linearize"
            )
        max_len = config.max_position_embeddings
        plan = plan_layers(config.k, config.num_hidden_layers, max_len, config.hidden_size, attention_options(config))
        block = ReversibleBlock if config.activation_memory == "reversible" else EncoderBlock
        self.encoder = Encoder(
            [block(build_attention(config, max_len, k, plan.options), **layer_options(config)) for k in plan.k],
            final_norm(config),
            plan.shared_projection,
            activation_memory=cast(ActivationMemory, config.activation_memory),
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
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run a batch.

        Args:
            input_ids: ``(B, N)`` token ids.
            attention_mask: ``(B, N)``, nonzero at real tokens; None means all are. After a past, columns of the past
                may stand before these N. Or a ``torch_linformer.distributed.SequencePiece``, where this process holds
                only a piece of the rows: ``(B, n)`` of the other arguments, and of the hidden states.
            token_type_ids: ``(B, N)``, 0 by default.
            position_ids: ``(B, N)``; by default real tokens are counted from 0, or go on from the past, as rotary
                positions always do. Without an ``attention_mask``, positions that begin again (0 1 2 0 1) part a packed
                row into documents, and each comes out as in a row of its own.
            inputs_embeds: ``(B, N, C)`` instead of ``input_ids``.
            past_key_values: what a causal model has read so far; this call adds its input.
            use_cache: return ``past_key_values``; the default of a causal model, unless it is training or rows are
                packed.
            **kwargs: ``output_hidden_states``, ``output_attentions``, ``return_dict``. What is recorded leads to the
                output, so its gradients can be retained, except copies: all of packed rows, inner hidden states of
                ``activation_memory="reversible"``, and attentions that are causal or have a window.

        Raises:
            TypeError: for an argument of another name.
            ValueError: if not exactly one of ``input_ids`` and ``inputs_embeds`` is given, there are more tokens than
                ``config.longest_input``, ``attention_mask`` does not fit, a past is given to a model that is not
                causal, or packed rows are to be kept in one.
            RuntimeError: for packed rows in a compiled or exported graph, which cannot look for them.
        """
        given = Inputs(input_ids, token_type_ids, position_ids, inputs_embeds)
        inputs, padding, options, rows = self.prepare(given, attention_mask, past_key_values, use_cache, kwargs)
        return cast(BaseModelOutputWithPast, self.put_back(self._run(inputs, padding, **options), rows))

    @recording
    def _run(
        self,
        inputs: Inputs,
        padding: Padding | None,
        past_key_values: LinformerCache | None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        need_weights, need_layers = self.records(kwargs)
        hidden = self.encoder(
            self._embed(inputs, padding, past_key_values),
            src_key_padding_mask=padding,
            need_weights=need_weights,
            need_layers=need_layers,
            # In chunks the embeddings are a tensor of their own, whatever was given.
            overwrite=runs_in_chunks(self.config.chunk_size) and not need_layers and not has_hooks(self.embeddings),
            pasts=None if past_key_values is None else past_key_values.pasts,
        )
        if past_key_values is not None:
            past_key_values.add_columns(hidden.shape[1])
        return BaseModelOutputWithPast(last_hidden_state=hidden, **cast(Any, {CACHE: past_key_values}))

"""The transformer decoder over Linformer attention, layer and stack, with the signatures of ``torch.nn``."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor, nn

from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.nn.attention import Attention, KeysAndValues, LinformerAttention, Past
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import SequenceMap, resize_maps
from torch_linformer.nn.chunks import must_be_called
from torch_linformer.nn.layer import Attend, Stack, TransformerLayer, plan_layers
from torch_linformer.nn.linear import Activation
from torch_linformer.nn.options import (
    AttentionConfig,
    LayerConfig,
    LayerOptions,
    StackConfig,
    StackOptions,
    check_activation_memory,
    check_k,
    default_k,
)
from torch_linformer.nn.padding import LOWEST, KeyPaddingMask

OF_TARGET = ("window", "rotary_dim")  # options of the self-attention
OF_MEMORY = ("projection", "sharing", "length_scaling", "slot_mass", "exact_first", "exact_last")


def _attentions_of(config: LayerConfig, options: Mapping[str, Any]) -> tuple[AttentionConfig, AttentionConfig]:
    """The self-attention, which is causal, and the attention to the memory, which is not."""
    for name in ("causal", "slot_bias"):
        if name in options:
            raise TypeError(f"a decoder layer takes no {name}: its self-attention is causal, its memory is read whole")
    target = {name: value for name, value in config.attention.items() if name not in OF_MEMORY}
    memory = {name: value for name, value in config.attention.items() if name not in OF_TARGET}
    return AttentionConfig(**{**target, "causal": True}), AttentionConfig(**memory)


class DecoderLayer(TransformerLayer):
    """Causal self-attention, attention to a memory and feed-forward, each with dropout, a residual and a layer norm.

    Takes any attentions of this package, the first causal and the second not, then the arguments of
    :class:`TransformerLayer`; parameters are named as in ``torch.nn.TransformerDecoderLayer``.
    """

    multihead_attn: Attention

    def __init__(self, self_attn: Attention, multihead_attn: Attention, *layout: Any, **options: Any) -> None:
        assert self_attn.causal and not multihead_attn.causal
        super().__init__({"self_attn": self_attn, "multihead_attn": multihead_attn}, *layout, **options)

    def compress(
        self,
        memory: Tensor,
        memory_key_padding_mask: KeyPaddingMask = None,
        shared_projection: SequenceMap | None = None,
    ) -> KeysAndValues:
        """What this layer reads of a memory, to be given to :meth:`forward` in its place at every step of a generation.

        Raises:
            ValueError: for a memory that is longer than ``memory_len``, or a mask that does not fit.
        """
        length = self.multihead_attn.to_batch_first(memory).shape[1]
        context = self.multihead_attn.context
        projection = context.maps(shared_projection).key if isinstance(context, SlotContext) else None
        if projection is not None and length > projection.max_len:
            raise ValueError(
                f"the memory has {length} positions but memory_len is {projection.max_len}: cut the encoder's input to "
                f"{projection.max_len}, or call resize_memory_len({length}) on the decoder"
            )
        return self.multihead_attn.compress(memory, None, memory_key_padding_mask, shared_projection)

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | KeysAndValues,
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: KeyPaddingMask = None,
        memory_key_padding_mask: KeyPaddingMask = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        need_weights: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; position t sees the target up to t, and all of the memory.

        Args:
            tgt: the target; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            memory: ``(B, M, memory_dim)`` likewise, or what :meth:`compress` made of it.
            tgt_mask: None or the causal mask; the layer is causal in any case.
            memory_mask: must be None.
            tgt_key_padding_mask: ``(B, N)``, as in :meth:`LinformerEncoderLayer.forward`.
            memory_key_padding_mask: ``(B, M)`` likewise; None beside a compressed memory, which holds it already.
            tgt_is_causal: True promises that ``tgt_mask`` is the causal mask; else it is compared.
            memory_is_causal: must be False.
            shared_projection: the map of the memory to slots that a decoder with ``sharing="layerwise"`` hands over.
            need_weights: let both attentions return their weights, for hooks that record them; nothing runs in chunks.
            past: what the self-attention has read so far, to which this call adds ``tgt``.

        Raises:
            ValueError: for a mask that cannot be applied, shapes that do not fit, or M over ``memory_len``.
        """
        if tgt_mask is not None and not tgt_is_causal:
            length = tgt.shape[self.sequence_dim(tgt)]
            hidden = tgt_mask if tgt_mask.dtype == torch.bool else tgt_mask <= LOWEST
            causal = torch.ones(length, length, dtype=torch.bool, device=tgt_mask.device).triu(1)
            is_causal = hidden.shape == causal.shape and torch.equal(hidden, causal)
            if not is_causal or (tgt_mask.dtype != torch.bool and tgt_mask.masked_fill(hidden, 0).any()):
                raise ValueError(
                    f"tgt_mask of shape {tuple(tgt_mask.shape)} is not the causal mask of {length} positions, and no "
                    "other can be applied: leave it out (the decoder is causal in any case), and use "
                    "tgt_key_padding_mask for padding"
                )
        if memory_mask is not None or memory_is_causal:
            raise ValueError(
                "the memory is read whole: memory_mask must be None and memory_is_causal False; use "
                "memory_key_padding_mask for padding"
            )
        if isinstance(memory, KeysAndValues) and memory_key_padding_mask is not None:
            raise ValueError("memory_key_padding_mask belongs to compress(): the compressed memory holds it already")
        memory_inputs: dict[str, Any] = {"key": memory}
        if must_be_called(self.multihead_attn):
            memory_inputs |= {"key_padding_mask": memory_key_padding_mask, "shared_projection": shared_projection}
        elif isinstance(memory, Tensor):
            memory_inputs["key"] = self.compress(memory, memory_key_padding_mask, shared_projection)
        padding = self.read_padding(tgt, tgt_key_padding_mask)
        weights: dict[str, Any] = {"need_weights": need_weights, "average_attn_weights": False}
        attend_to_memory = partial(self.multihead_attn, **memory_inputs, **weights)
        if runs_in_chunks(self.chunk_size) and not need_weights:

            def run(attend: Attend, part: Tensor) -> Sequence[Tensor]:
                return [self.run(part, [attend, attend_to_memory])]

            return self.run_in_chunks([tgt], padding, run, past=past)[0]
        attend = partial(self.self_attn, key_padding_mask=padding, past=past, **weights)
        return self.run(self.clean(tgt, padding), [attend, attend_to_memory])


class LinformerDecoderLayer(DecoderLayer):
    r"""``torch.nn.TransformerDecoderLayer`` with Linformer attention to the target and to the memory.

    Two things differ: ``batch_first=True`` by default, so inputs are ``(B, N, C)``; and the layer is causal without a
    ``tgt_mask``, where torch's sees the whole target unless it is given one.

    .. math:: x_1 = x + \mathrm{causal}(x), \quad x_2 = x_1 + \mathrm{attend}(x_1, \mathrm{memory}), \quad
        x_3 = x_2 + W_2\, \varphi(W_1 x_2)

    with a layer norm after each sum (or before each branch, ``norm_first``). The attention to the memory goes over K
    slots of its M positions, which :meth:`compress` makes once for all steps of a generation. ``load_state_dict`` takes
    the weights of torch's layer (``strict=False``: only projections and slots are missing), and the layer goes into
    ``torch.nn.TransformerDecoder``.

    Args:
        d_model: model width C. It and those up to ``bias`` are as in :class:`LinformerEncoderLayer`.
        max_len: longest time scale that the slots of the target begin with; a target may be longer.
        k: slots of the target, min(256, max_len / 4) by default; 0 with a ``window``.
        memory_len: longest memory, in tokens; ``max_len`` by default.
        memory_k: slots of the memory, 1 to ``memory_len``; by default ``k``, or ``memory_len`` if that is less.
        memory_dim: width of the memory, C by default.
        options: :class:`~torch_linformer.nn.options.LayerConfig`: ``window`` and ``rotary_dim`` of the self-attention,
            ``projection``, ``sharing`` (not ``layerwise``, which belongs to :class:`LinformerDecoder`),
            ``length_scaling``, ``slot_mass``, ``exact_first`` and ``exact_last`` of the memory (the self-attention has
            no exact tokens), ``num_kv_heads``, ``head_dim`` and ``attention_dropout`` of both, ``gated``,
            ``chunk_size``.

    Raises:
        ValueError: for arguments out of range, and for ``sharing="layerwise"``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_len: int,
        k: int | None = None,
        memory_len: int | None = None,
        memory_k: int | None = None,
        memory_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        memory_len = max_len if memory_len is None else memory_len
        k = default_k(max_len) if k is None else k
        config = LayerConfig.of(self, options)
        target, memory = _attentions_of(config, options)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        linears: dict[str, Any] = {"bias": bias, "batch_first": batch_first, **factory}
        linears["dropout"] = config.dropout_of_weights(dropout)
        memory_k = min(k, memory_len) if memory_k is None else memory_k
        check_k(memory_k, memory_len, name="memory_k", limit="memory_len")
        read: dict[str, Any] = {"kdim": memory_dim, "vdim": memory_dim, **linears, **memory.attention}
        super().__init__(
            LinformerAttention(d_model, nhead, max_len, k, **linears, **target.attention),
            LinformerAttention(d_model, nhead, memory_len, memory_k, **read),
            *(dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias),
            gated=config.gated,
            chunk_size=config.chunk_size,
            **factory,
        )

    def resize_memory_len(self, memory_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take memories up to ``memory_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, memory_len, mode)


class Decoder(Stack):
    """A stack of :class:`DecoderLayer`; its ``shared_projection`` is that of the memory. Args as in :class:`Stack`."""

    def compress(self, memory: Tensor, memory_key_padding_mask: KeyPaddingMask = None) -> list[KeysAndValues]:
        """What each layer reads of a memory, for :meth:`forward` at every step of a generation.

        Its size does not depend on the target: with Linformer attention 2·K·C numbers a layer and row.
        """
        layers = (cast(DecoderLayer, layer) for layer in self.layers)
        return [layer.compress(memory, memory_key_padding_mask, self.shared_projection) for layer in layers]

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | Sequence[KeysAndValues],
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: KeyPaddingMask = None,
        memory_key_padding_mask: KeyPaddingMask = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        need_weights: bool = False,
        pasts: Sequence[Past] | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; arguments as in :meth:`LinformerDecoderLayer.forward`.

        ``memory`` may be what :meth:`compress` made of it, and ``pasts`` has one past a layer.
        """
        memories = [memory] * len(self.layers) if isinstance(memory, Tensor) else memory
        options: dict[str, Any] = {"shared_projection": self.shared_projection, "need_weights": need_weights}
        # Tensors by position: some ways to checkpoint carry no gradients to what comes by name.
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
        for (call, past), memory_of_layer in zip(self.calls(pasts), memories, strict=True):
            tgt = call(tgt, memory_of_layer, *masks, past=past, **options)
        return self.finish(tgt)


class LinformerDecoder(Decoder):
    """A stack of :class:`LinformerDecoderLayer`, with a final norm when ``norm_first``; causal, inputs ``(B, N, C)``.

    It takes the arguments of :class:`LinformerDecoderLayer`, and these.

    Args:
        num_layers: layers.
        k: slots of the target, one number, min(256, max_len / 4) by default, or one a layer.
        memory_k: slots of the memory, one number or one a layer.
        options: :class:`~torch_linformer.nn.options.StackConfig`: those of the layer, with ``sharing`` also
            ``layerwise`` (one E = F for the memory in the whole stack, owned here as ``shared_projection``), and
            ``final_norm``, ``activation_memory`` (``none`` or ``checkpoint``).

    Raises:
        ValueError: for arguments out of range, and for several ``memory_k`` with ``sharing="layerwise"``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_len: int,
        k: int | Sequence[int] | None = None,
        memory_len: int | None = None,
        memory_k: int | Sequence[int] | None = None,
        memory_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[StackOptions],
    ) -> None:
        memory_len = max_len if memory_len is None else memory_len
        config = StackConfig.of(self, options)
        check_activation_memory(config.activation_memory, norm_first, decoder=True)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        target_k = plan_layers(k, num_layers, max_len, d_model, AttentionConfig()).k
        if memory_k is None:
            memory_k = [min(layer_k, memory_len) for layer_k in target_k]
        width, (_, memory) = d_model if memory_dim is None else memory_dim, _attentions_of(config, options)
        plan = plan_layers(memory_k, num_layers, memory_len, width, memory, name="memory_k", **factory)
        layout = dim_feedforward, dropout, activation, layer_norm_eps, batch_first, norm_first, bias
        layer: dict[str, Any] = {**options, **{name: plan.options[name] for name in OF_MEMORY}, **factory}
        layer |= {"max_len": max_len, "memory_len": memory_len, "memory_dim": memory_dim}
        for name in StackConfig.__annotations__:  # the options of a stack alone
            layer.pop(name, None)
        layers = [
            LinformerDecoderLayer(d_model, nhead, *layout, k=layer_k, memory_k=slots, **layer)
            for layer_k, slots in zip(target_k, plan.k, strict=True)
        ]
        has_norm = norm_first and config.final_norm
        norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, **factory) if has_norm else None
        super().__init__(layers, norm, plan.shared_projection, activation_memory=config.activation_memory)

    def resize_memory_len(self, memory_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take memories up to ``memory_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, memory_len, mode)

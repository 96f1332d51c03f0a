"""The layer of the decoder, with the signature of ``torch.nn.TransformerDecoderLayer``."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding
from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.chunks import Chunks, runs_in_chunks, write_chunks
from torch_linformer.nn.full_attention import FullAttention
from torch_linformer.nn.keys_and_values import KeysAndValues
from torch_linformer.nn.layer import TransformerLayer
from torch_linformer.nn.padding import LOWEST, KeyPaddingMask
from torch_linformer.nn.past import Past
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing, resize_maps

Attend = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class DecoderLayer(TransformerLayer):
    """Causal self-attention, attention to a memory and feed-forward, each with dropout, a residual and a layer norm.

    Takes any attention modules of this package, the first causal and the second not; parameters are named as in
    ``torch.nn.TransformerDecoderLayer``.
    """

    def __init__(
        self,
        self_attn: FullAttention,
        multihead_attn: FullAttention,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        gated: bool = False,
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        super().__init__(self_attn, dim_feedforward, dropout, activation, gated, chunk_size, **factory)
        assert self_attn.causal and not multihead_attn.causal
        self.multihead_attn = multihead_attn
        self.norm1, self.norm2, self.norm3 = (
            nn.LayerNorm(self_attn.embed_dim, eps=layer_norm_eps, **factory) for _ in range(3)
        )
        self.dropout1, self.dropout2, self.dropout3 = (nn.Dropout(dropout) for _ in range(3))
        self.norm_first = norm_first

    def compress(
        self,
        memory: Tensor,
        memory_key_padding_mask: KeyPaddingMask = None,
        shared_projection: SequenceProjection | None = None,
    ) -> KeysAndValues:
        """What this layer reads of a memory, to be given to :meth:`forward` in its place at every step of a generation.

        Raises:
            ValueError: for a memory that is longer than ``memory_len``, or a mask that does not fit.
        """
        length = self.multihead_attn.to_batch_first(memory).shape[1]
        projection = getattr(self.multihead_attn, "proj_k", None) or shared_projection
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
        shared_projection: SequenceProjection | None = None,
        need_weights: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; position t sees the target up to t, and all of the memory.

        Args:
            tgt: the target; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            memory: ``(B, M, memory_dim)`` likewise, or what :meth:`compress` made of it.
            tgt_mask: None or the causal mask; the layer is causal in any case.
            memory_mask: must be None.
            tgt_key_padding_mask: ``(B, N)``, bool (True at padding) or float (0, and −1000 or less at padding), on any
                side and between real tokens.
            memory_key_padding_mask: ``(B, M)`` likewise; None beside a compressed memory, which holds it already.
            tgt_is_causal: True promises that ``tgt_mask`` is the causal mask; else it is compared.
            memory_is_causal: must be False.
            shared_projection: the map of the memory to slots that a decoder with ``sharing="layerwise"`` hands over.
            need_weights: let both attentions return their weights, for hooks that record them; nothing runs in chunks.
            past: what the self-attention has read so far, to which this call adds ``tgt``.

        Padding comes out as some finite value; gradients to it are exactly zero.

        Raises:
            ValueError: for a mask that cannot be applied, shapes that do not fit, or M over ``memory_len``.
        """
        _check_tgt_mask(tgt_mask, tgt_is_causal, tgt.shape[self.sequence_dim(tgt)])
        if memory_mask is not None or memory_is_causal:
            raise ValueError(
                "the memory is read whole: memory_mask must be None and memory_is_causal False; use "
                "memory_key_padding_mask for padding"
            )
        if not isinstance(memory, KeysAndValues):
            memory = self.compress(memory, memory_key_padding_mask, shared_projection)
        elif memory_key_padding_mask is not None:
            raise ValueError("memory_key_padding_mask belongs to compress(): the compressed memory holds it already")
        padding = self.read_padding(tgt, tgt_key_padding_mask)
        if runs_in_chunks(self.chunk_size) and not need_weights:
            return self._forward_in_chunks(tgt, memory, padding, past)
        options = {"need_weights": need_weights, "average_attn_weights": False}

        def attend(x: Tensor) -> tuple[Tensor, Tensor | None]:
            read: tuple[Tensor, Tensor | None]
            read = self.self_attn(x, x, x, key_padding_mask=padding, past=past, **options)
            return read

        def attend_to_memory(x: Tensor) -> tuple[Tensor, Tensor | None]:
            read: tuple[Tensor, Tensor | None] = self.multihead_attn(x, memory, **options)
            return read

        return self._couple(self.clean(tgt, padding), attend, attend_to_memory)

    def _couple(self, x: Tensor, attend: Attend, attend_to_memory: Attend) -> Tensor:
        """The three branches with their residual connections and norms; shapes are kept."""
        if self.norm_first:
            x = x + self.dropout1(attend(self.norm1(x))[0])
            x = x + self.dropout2(attend_to_memory(self.norm2(x))[0])
            return x + self._feed_forward_branch(x)
        x = self.norm1(x + self.dropout1(attend(x)[0]))
        x = self.norm2(x + self.dropout2(attend_to_memory(x)[0]))
        output: Tensor = self.norm3(x + self._feed_forward_branch(x))
        return output

    def _forward_in_chunks(
        self, tgt: Tensor, memory: KeysAndValues, padding: Padding | None, past: Past | None
    ) -> Tensor:
        """One pass over the target, whose read part is the past."""
        assert self.chunk_size is not None
        batched = self.self_attn.to_batch_first(tgt)
        target = Chunks(batched if padding is None else padding.justify(batched), padding, self.chunk_size)
        behind = Past() if past is None else past

        def couple(chunk: slice) -> Tensor:
            coupled = self._couple(
                self.self_attn.from_batch_first(target.read(chunk), unbatched=False),
                lambda x: self.self_attn(x, x, x, key_padding_mask=target.padding_of(chunk), past=behind),
                lambda x: self.multihead_attn(x, memory),
            )
            return self.self_attn.to_batch_first(coupled)

        parts = ((chunk, (couple(chunk),)) for chunk in target.cut_at(1))
        (output,) = write_chunks(parts, target.length, [None], dim=1)
        output = output if padding is None else padding.restore(output)
        return self.self_attn.from_batch_first(output, tgt.dim() == 2)

    def _feed_forward_of_chunk(self, x: Tensor) -> Tensor:
        added: Tensor = self.dropout3(self._feed_forward(self.norm3(x) if self.norm_first else x))
        return added


def _check_tgt_mask(mask: Tensor | None, is_causal: bool | None, length: int) -> None:
    """Raise ``ValueError`` for a mask of the target that is not the causal one."""
    if mask is None or is_causal:
        return
    hidden = mask if mask.dtype == torch.bool else mask <= LOWEST
    expected = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
    causal = mask.shape == expected.shape and torch.equal(hidden, expected)
    if not causal or (mask.dtype != torch.bool and mask.masked_fill(hidden, 0).any()):
        raise ValueError(
            f"tgt_mask of shape {tuple(mask.shape)} is not the causal mask of {length} positions, and no other can be "
            "applied: leave it out (the decoder is causal in any case), and use tgt_key_padding_mask for padding"
        )


class LinformerDecoderLayer(DecoderLayer):
    r"""``torch.nn.TransformerDecoderLayer`` with Linformer attention to the target and to the memory.

    Two things differ: ``batch_first=True`` by default, so inputs are ``(B, N, C)``; and the layer is causal without a
    ``tgt_mask``, where torch's sees the whole target unless it is given one.

    .. math:: x_1 = x + \mathrm{causal}(x), \quad x_2 = x_1 + \mathrm{attend}(x_1, \mathrm{memory}), \quad
        x_3 = x_2 + W_2\, \varphi(W_1 x_2)

    with a layer norm behind each sum (or before each branch, ``norm_first``). The first is causal
    :class:`LinformerAttention`, the second :class:`LinformerAttention` over K slots of the M positions of the memory,
    which :meth:`compress` makes once for all steps of a generation. ``load_state_dict`` takes the weights of torch's
    layer (``strict=False``: only projections and slots are missing), and the layer goes into
    ``torch.nn.TransformerDecoder``.

    Args:
        d_model: model width C.
        nhead: heads.
        dim_feedforward: width of the feed-forward.
        dropout: behind both attentions, inside and after the feed-forward, and on the attention weights.
        activation: ``relu``, ``gelu``, ``silu`` or a callable.
        layer_norm_eps: of the three norms.
        batch_first: ``(B, N, C)`` inputs; False for ``(N, B, C)``.
        norm_first: norms before the branches (pre-norm) instead of after.
        bias: on linear maps and norms.
        max_len: longest time scale that the slots of the target begin with; a target may be longer.
        k: slots of the target; 0 with a ``window``.
        memory_len: longest memory, in tokens; ``max_len`` by default.
        memory_k: slots of the memory, 1 to ``memory_len``; by default ``k``, or ``memory_len`` if that is less.
        memory_dim: width of the memory, C by default.
        window: the last w tokens of the target beside its slots.
        rotary_dim: channels of each head of the self-attention that are turned by their position.
        projection: of the memory: ``linear``, ``random``, ``conv``, ``mean`` or ``max``; None if
            ``shared_projection`` comes with each call.
        sharing: of the memory's projection: ``none``, ``headwise`` or ``kv``; ``layerwise`` belongs to
            :class:`LinformerDecoder`.
        length_scaling: False leaves the length factor of the memory's projection out.
        num_kv_heads: heads of keys and values, in both attentions.
        head_dim: width of one head.
        attention_dropout: on the attention weights, if it is to differ from ``dropout``.
        gated: feed-forward ``W₂ (φ(W₁ x) ⊙ W_g x)``.
        chunk_size: positions of the target worked on at once: in inference by the whole layer, with gradients by the
            feed-forward. None: all.

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
        k: int = 256,
        memory_len: int | None = None,
        memory_k: int | None = None,
        memory_dim: int | None = None,
        window: int | None = None,
        rotary_dim: int = 0,
        projection: Projection | None = "linear",
        sharing: Sharing = "headwise",
        length_scaling: bool = True,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        attention_dropout: float | None = None,
        gated: bool = False,
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        memory_len = max_len if memory_len is None else memory_len
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        options: dict[str, Any] = {
            "dropout": dropout if attention_dropout is None else attention_dropout,
            "head_dim": head_dim,
            "num_kv_heads": num_kv_heads,
            "batch_first": batch_first,
            **factory,
        }
        self_attn = LinformerAttention(
            d_model, nhead, max_len, k, causal=True, window=window, rotary_dim=rotary_dim, **options
        )
        multihead_attn = LinformerAttention(
            d_model,
            nhead,
            memory_len,
            memory_slots(k, memory_k, memory_len),
            kdim=memory_dim,
            vdim=memory_dim,
            projection=projection,
            sharing=sharing,
            length_scaling=length_scaling,
            **options,
        )
        layout: dict[str, Any] = {"norm_first": norm_first, "gated": gated, "chunk_size": chunk_size}
        super().__init__(
            self_attn, multihead_attn, dim_feedforward, dropout, activation, layer_norm_eps, **layout, **factory
        )

    def resize_memory_len(self, memory_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take memories up to ``memory_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, memory_len, mode)


def memory_slots(k: int, memory_k: int | None, memory_len: int) -> int:
    """Slots of a memory where the target has ``k``; raises ``ValueError`` for a number that does not fit."""
    if memory_len < 1:
        raise ValueError(f"memory_len must be at least 1, got {memory_len}")
    slots = min(k, memory_len) if memory_k is None else memory_k
    if not 1 <= slots <= memory_len:
        raise ValueError(f"memory_k must lie between 1 and memory_len = {memory_len}, got {slots}")
    return slots

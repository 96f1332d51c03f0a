"""The layer of the encoder, with the signature of ``torch.nn.TransformerEncoderLayer``."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding, reorder
from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.chunks import Chunks, runs_in_chunks, write_chunks
from torch_linformer.nn.full_attention import FullAttention
from torch_linformer.nn.layer import TransformerLayer
from torch_linformer.nn.padding import KeyPaddingMask
from torch_linformer.nn.past import Past
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing, resize_maps
from torch_linformer.nn.reversible import Branch, Reversal, stream_of


class EncoderLayer(TransformerLayer):
    """Self-attention and feed-forward, each with dropout, a residual connection and a layer norm.

    Takes any attention module of this package; parameters are named as in ``torch.nn.TransformerEncoderLayer``.
    """

    def __init__(
        self,
        self_attn: FullAttention,
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
        self.norm1 = nn.LayerNorm(self_attn.embed_dim, eps=layer_norm_eps, **factory)
        self.norm2 = nn.LayerNorm(self_attn.embed_dim, eps=layer_norm_eps, **factory)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.norm_first = norm_first

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        shared_projection: SequenceProjection | None = None,
        need_weights: bool = False,
        second_stream: Tensor | None = None,
        overwrite: bool = False,
        past: Past | None = None,
        reversal: Reversal | None = None,
    ) -> Tensor | tuple[Tensor, ...]:
        """``(B, N, C)`` to ``(B, N, C)``.

        Args:
            src: the sequence; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            src_mask: must be None; a causal layer takes the causal one with ``is_causal=True``.
            src_key_padding_mask: ``(B, N)``, bool (True at padding) or float (0, and −1000 or less at padding), on any
                side and between real tokens.
            is_causal: must be False, but in a causal layer.
            shared_projection: the map to slots that an encoder with ``sharing="layerwise"`` hands over.
            need_weights: let ``self_attn`` return its weights, for hooks that record them; nothing runs in chunks.
            second_stream: of a reversible stack, whose first stream is ``src``: the result is then the mean of the
                two streams and the streams themselves.
            overwrite: ``src`` is not needed any more: inference in chunks may write the result into it.
            past: of a causal layer: what its attention has read so far, to which this call adds ``src``.
            reversal: of a reversible stack in training: keeps nothing of this layer for the backward pass.

        Padding comes out as some finite value; gradients to it are exactly zero.
        """
        streams = (src,) if second_stream is None else (src, second_stream)
        plain = self.self_attn.causal if is_causal else src_mask is None
        padding = self.read_padding(src, src_key_padding_mask)
        if runs_in_chunks(self.chunk_size) and not need_weights and plain:
            return self._forward_in_chunks(streams, padding, shared_projection, overwrite, past)
        if second_stream is None:
            streams = (self.clean(src, padding),)
        attend = self._attention(src_mask, padding, is_causal, shared_projection, need_weights, past)
        return _alone(self._couple(streams, attend, reversal))

    def _couple(
        self, streams: tuple[Tensor, ...], attend: Branch, reversal: Reversal | None = None
    ) -> tuple[Tensor, ...]:
        """Attention and feed-forward with their residual connections and norms; shapes are kept."""
        if len(streams) == 2:
            return self._couple_streams(stream_of(streams[0]), stream_of(streams[1]), attend, reversal)
        (src,) = streams
        if self.norm_first:
            src = src + attend(self.norm1(src))
            return (src + self._feed_forward_branch(src),)
        src = self.norm1(src + attend(src))
        return (self.norm2(src + self._feed_forward_branch(src)),)

    def _couple_streams(
        self, first: Tensor, second: Tensor, attend: Branch, reversal: Reversal | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of the two streams, and the streams."""
        dtype = self.norm1.weight.dtype
        if reversal is None:
            first = first + attend(self.norm1(second.to(dtype)))
            second = second + self._feed_forward_branch(first.to(dtype))
        else:
            first, second = reversal.run(
                (first, second),
                lambda x: attend(self.norm1(x.to(dtype))),
                lambda x: self._feed_forward_of_chunk(x.to(dtype)),
                self.chunk_size,
                self.sequence_dim(first),
            )
        return ((first + second) / 2).to(dtype), first, second

    def _forward_in_chunks(
        self,
        streams: tuple[Tensor, ...],
        padding: Padding | None,
        shared_projection: SequenceProjection | None,
        overwrite: bool,
        past: Past | None,
    ) -> Tensor | tuple[Tensor, ...]:
        """One pass makes slots of the sequence, a second one runs the layer; both read it chunk by chunk.

        A causal layer needs one pass: what it has read is its past.
        """
        assert self.chunk_size is not None
        batched = [self.self_attn.to_batch_first(x) for x in streams]
        if padding is not None and padding.order is not None:
            batched, overwrite = [reorder(x, padding.order, dim=1) for x in batched], True
        sequences = [Chunks(x, padding, self.chunk_size) for x in batched]
        attention, keys_and_values = self.self_attn, None
        if attention.causal:
            past = Past() if past is None else past
        else:
            norm = self.norm1 if self.norm_first else None
            keys_and_values = attention.keys_and_values_of_chunks(sequences[-1], norm, shared_projection)

        def couple(chunk: slice) -> tuple[Tensor, ...]:
            def attend(x: Tensor) -> Tensor:
                if keys_and_values is None:
                    output, _ = attention(x, x, x, key_padding_mask=sequences[-1].padding_of(chunk), past=past)
                else:
                    output, _ = attention(x, keys_and_values, past=past, start=chunk.start)
                attended: Tensor = self.dropout1(output)
                return attended

            pieces = tuple(attention.from_batch_first(x.read(chunk), unbatched=False) for x in sequences)
            return tuple(attention.to_batch_first(x) for x in self._couple(pieces, attend))

        parts = ((chunk, couple(chunk)) for chunk in sequences[0].cut_at(1))
        kept: list[Tensor | None] = [*batched] if overwrite else [None] * len(batched)
        outputs = write_chunks(parts, batched[0].shape[1], [None, *kept] if len(kept) == 2 else kept, dim=1)
        outputs = outputs if padding is None else [padding.restore(x) for x in outputs]
        return _alone(tuple(self.self_attn.from_batch_first(x, streams[0].dim() == 2) for x in outputs))

    def _attention(
        self,
        src_mask: Tensor | None,
        src_key_padding_mask: KeyPaddingMask,
        is_causal: bool,
        shared_projection: SequenceProjection | None,
        need_weights: bool,
        past: Past | None,
    ) -> Branch:
        """Self-attention with these arguments, as a function of the sequence."""

        def attend(src: Tensor) -> Tensor:
            output, _ = self.self_attn(
                src,
                src,
                src,
                key_padding_mask=src_key_padding_mask,
                need_weights=need_weights,
                attn_mask=src_mask,
                average_attn_weights=False,
                is_causal=is_causal,
                shared_projection=shared_projection,
                past=past,
            )
            attended: Tensor = self.dropout1(output)
            return attended

        return attend

    def _feed_forward_of_chunk(self, x: Tensor) -> Tensor:
        added: Tensor = self.dropout2(self._feed_forward(self.norm2(x) if self.norm_first else x))
        return added


def _alone(outputs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    """One result by itself; several as they are."""
    return outputs if len(outputs) > 1 else outputs[0]


class LinformerEncoderLayer(EncoderLayer):
    """``torch.nn.TransformerEncoderLayer`` with Linformer attention; goes into ``torch.nn.TransformerEncoder``.

    One default differs: ``batch_first=True``, so inputs are ``(B, N, C)``. Code that gives ``(N, B, C)`` needs
    ``batch_first=False``, or rows of the batch are taken for positions and mixed.
    ``load_state_dict`` takes the weights of torch's layer (``strict=False``: only the projections are missing).

    Args:
        d_model: model width C.
        nhead: heads.
        dim_feedforward: width of the feed-forward.
        dropout: after the attention, inside and after the feed-forward, and on the attention weights.
        activation: ``relu``, ``gelu``, ``silu`` or a callable.
        layer_norm_eps: of the two norms.
        batch_first: ``(B, N, C)`` inputs; False for ``(N, B, C)``.
        norm_first: norms before attention and feed-forward (pre-norm) instead of after.
        bias: on linear maps and norms.
        max_len: longest sequence, in tokens.
        k: slots K, 1 to ``max_len``.
        projection: as in :class:`LinformerAttention`, None included.
        sharing: ``none``, ``headwise`` or ``kv``; ``layerwise`` belongs to :class:`LinformerEncoder`.
        num_kv_heads: heads of keys and values.
        head_dim: width of one head.
        length_scaling: False leaves the length factor out.
        causal: as in :class:`LinformerAttention`; so are ``window`` and ``rotary_dim``.
        window: a local window beside the slots.
        rotary_dim: channels of each head that are turned by their position.
        slot_bias: as in :class:`LinformerAttention`.
        attention_dropout: on the attention weights, if it is to differ from ``dropout``.
        gated: feed-forward ``W₂ (φ(W₁ x) ⊙ W_g x)``.
        chunk_size: positions worked on at once. Without gradients one pass over the sequence makes the slots and a
            second runs the layer, so nothing but the hidden states grows with N. With gradients it is the
            feed-forward that runs in chunks, and again in the backward pass. None: the whole sequence.

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
        projection: Projection | None = "linear",
        sharing: Sharing = "headwise",
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        length_scaling: bool = True,
        causal: bool = False,
        window: int | None = None,
        rotary_dim: int = 0,
        slot_bias: bool = False,
        attention_dropout: float | None = None,
        gated: bool = False,
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        attention = LinformerAttention(
            d_model,
            nhead,
            max_len,
            k,
            dropout=dropout if attention_dropout is None else attention_dropout,
            bias=bias,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            projection=projection,
            sharing=sharing,
            length_scaling=length_scaling,
            causal=causal,
            window=window,
            rotary_dim=rotary_dim,
            slot_bias=slot_bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        super().__init__(
            attention,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            norm_first,
            bias,
            gated=gated,
            chunk_size=chunk_size,
            device=device,
            dtype=dtype,
        )

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, max_len, mode)

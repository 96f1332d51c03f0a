"""The layer of the encoder, with the signature of ``torch.nn.TransformerEncoderLayer``."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

import torch
from torch import Tensor

from torch_linformer.functional.kernels.graph import runs_in_chunks
from torch_linformer.functional.padding import Padding
from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import Attention, LinformerAttention, Past
from torch_linformer.nn.chunks import Chunks, Gathered, map_chunks, must_be_called
from torch_linformer.nn.layer import Attend, TransformerLayer
from torch_linformer.nn.maps import SequenceMap
from torch_linformer.nn.options import LayerOptions, split_options
from torch_linformer.nn.padding import KeyPaddingMask
from torch_linformer.nn.reversible import Reversal, stream_of

Streams = tuple[Tensor, Tensor, Tensor]


class SelfAttentionLayer(TransformerLayer):
    """Self-attention and feed-forward: the two branches of an encoder layer, however they are coupled.

    Takes any attention of this package, then the arguments of :class:`TransformerLayer`; parameters are named as in
    ``torch.nn.TransformerEncoderLayer``.
    """

    def __init__(self, self_attn: Attention, *layout: Any, **options: Any) -> None:
        super().__init__({"self_attn": self_attn}, *layout, **options)

    def can_chunk(self, padding: Padding | None, src_mask: Tensor | None, is_causal: bool, need_weights: bool) -> bool:
        """Whether a call with these arguments runs in chunks; a mask that is to be refused goes to the attention.

        Of a piece of the rows, which is short already, only the feed-forward does; so where the attention must be
        called to have its parameters.
        """
        refused = not self.self_attn.causal if is_causal else src_mask is not None
        whole = padding is None or not padding.is_piece
        in_chunks = self.self_attn.causal or not must_be_called(self.self_attn)
        return runs_in_chunks(self.chunk_size) and whole and in_chunks and not need_weights and not refused

    def attend_with(
        self,
        padding: Padding | None,
        src_mask: Tensor | None,
        is_causal: bool,
        shared_projection: SequenceMap | None,
        need_weights: bool,
        past: Past | None,
    ) -> Attend:
        """The self-attention with these arguments."""
        return partial(
            self.self_attn,
            key_padding_mask=padding,
            need_weights=need_weights,
            attn_mask=src_mask,
            average_attn_weights=False,
            is_causal=is_causal,
            shared_projection=shared_projection,
            past=past,
        )

    def attends_of_chunks(
        self, chunks: Chunks, shared_projection: SequenceMap | None, past: Past | None
    ) -> Callable[[slice], Sequence[Attend]]:
        """The self-attention for each chunk of a sequence.

        One pass over it makes slots, which the chunks attend to. A causal layer needs no such pass: what it has read is
        its past.
        """
        if self.self_attn.causal:
            after = Past() if past is None else past
            return lambda chunk: [partial(self.self_attn, key_padding_mask=chunks.padding_of(chunk), past=after)]
        norm = self.norm(1) if self.norm_first else None
        context = self.self_attn.compress_chunks(chunks, norm, shared_projection)
        return lambda chunk: [partial(self.self_attn, key=context, past=past, start=chunk.start)]


class EncoderLayer(SelfAttentionLayer):
    """Self-attention and feed-forward, each with dropout, a residual connection and a layer norm."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        need_weights: bool = False,
        overwrite: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``.

        Args:
            src: the sequence; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            src_mask: must be None; a causal layer takes the causal one with ``is_causal=True``.
            src_key_padding_mask: ``(B, N)``, bool (True at padding) or float (0, and −1000 or less at padding), on any
                side and between real tokens. A stack, which reads it once, hands over what it read, and a sequence
                that it has cleaned.
            is_causal: must be False, except in a causal layer.
            shared_projection: the map to slots that an encoder with ``sharing="layerwise"`` hands over.
            need_weights: let ``self_attn`` return its weights, for hooks that record them; nothing runs in chunks.
            overwrite: ``src`` is not needed any more: inference in chunks may write the result into it.
            past: of a causal layer: what its attention has read so far, to which this call adds ``src``.

        Padding comes out as some finite value; gradients to it are exactly zero.
        """
        padding = self.read_padding(src, src_key_padding_mask)
        if self.can_chunk(padding, src_mask, is_causal, need_weights):
            read = partial(self.attends_of_chunks, shared_projection=shared_projection, past=past)
            return self.run_in_chunks(src, padding, read, overwrite)
        attend = self.attend_with(padding, src_mask, is_causal, shared_projection, need_weights, past)
        # A causal model predicts the first token of a row where there is padding before it: nothing may show there.
        handed_over = padding is src_key_padding_mask and not self.self_attn.causal
        return self.run(src if handed_over else self.clean(src, padding), [attend])


class ReversibleEncoderLayer(SelfAttentionLayer):
    """The same two branches on two streams, from whose results the inputs can be computed back.

    .. math:: y_1 = x_1 + f(x_2), \\quad y_2 = x_2 + g(y_1)

    for the attention f and the feed-forward g, norms and dropout included; ``norm_first`` must be True.

    Source: arXiv 1707.04585.
    """

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        need_weights: bool = False,
        overwrite: bool = False,
        past: Past | None = None,
        reversal: Reversal | None = None,
    ) -> Streams:
        """The mean of both streams after the layer, and the streams, each ``(B, N, C)``.

        Args:
            first: a stream; so is ``second``.
            reversal: in training: keeps nothing of this layer for the backward pass.

        The others are those of :meth:`EncoderLayer.forward`.
        """
        padding = self.read_padding(first, src_key_padding_mask)
        if self.can_chunk(padding, src_mask, is_causal, need_weights):
            first_chunks, second_chunks = self.cut(first, padding), self.cut(second, padding)
            attends_of = self.attends_of_chunks(second_chunks, shared_projection, past)
            return self._run_chunks(first_chunks, second_chunks, padding, attends_of, overwrite, first.dim() == 2)
        attend = self.attend_with(padding, src_mask, is_causal, shared_projection, need_weights, past)
        return self.couple(stream_of(first), stream_of(second), attend, reversal)

    def couple(self, first: Tensor, second: Tensor, attend: Attend, reversal: Reversal | None = None) -> Streams:
        """Both branches, with their dropout and norms."""
        dtype = self.norm(1).weight.dtype

        def f(x: Tensor) -> Tensor:
            added, _ = attend(self.norm(1)(x.to(dtype)))
            return self.drop(1, added)

        def g(x: Tensor) -> Tensor:
            return self.feed_forward(x.to(dtype))

        dim = self.sequence_dim(first)
        if reversal is None:
            first = first + f(second)
            second = second + map_chunks(g, self, first, self.chunk_size, dim)
        else:
            first, second = reversal.run((first, second), f, g, self.chunk_size, dim)
        return ((first + second) / 2).to(dtype), first, second

    def _run_chunks(
        self,
        first: Chunks,
        second: Chunks,
        padding: Padding | None,
        attends_of: Callable[[slice], Sequence[Attend]],
        overwrite: bool,
        unbatched: bool,
    ) -> Streams:
        """:meth:`couple` chunk by chunk."""
        attention = self.self_attn
        buffers = (None, *(x.sequence if overwrite or x.is_copy else None for x in (first, second)))
        outputs = [Gathered(first.length, 1, buffer) for buffer in buffers]
        for chunk in first:
            pieces = [attention.from_batch_first(x.read(chunk), unbatched=False) for x in (first, second)]
            coupled = self.couple(stream_of(pieces[0]), stream_of(pieces[1]), attends_of(chunk)[0])
            for output, piece in zip(outputs, coupled, strict=True):
                output.write(chunk, attention.to_batch_first(piece))
        mean, *streams = (self.put_back(output.sequence(), padding, unbatched) for output in outputs)
        return mean, streams[0], streams[1]


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
        k: slots K, 1 to ``max_len``, min(256, max_len / 4) by default; 0 with a ``window``, for no slots.
        options: :class:`~torch_linformer.nn.options.LayerOptions`: those of :class:`LinformerAttention`, and
            ``attention_dropout``, ``gated``, ``chunk_size``.

    Raises:
        ValueError: for arguments out of range, for an option that the layer would not use, and for
            ``sharing="layerwise"``, which belongs to :class:`LinformerEncoder`.
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        parts = split_options(options, dropout, self)
        attention = LinformerAttention(
            d_model,
            nhead,
            max_len,
            k,
            bias=bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
            **parts.attention,
        )
        layout = dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias
        super().__init__(attention, *layout, device=device, dtype=dtype, **parts.layer)

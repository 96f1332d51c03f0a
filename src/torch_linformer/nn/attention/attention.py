"""Multi-head attention: a call of it, whatever the queries attend to."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.device_sizes import sizes_for
from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.nn.attention.checks import (
    check_aligned,
    check_call,
    check_compressed,
    check_inputs,
    check_past,
    check_piece,
)
from torch_linformer.nn.attention.context import Call, Context, at_positions
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.past import Past
from torch_linformer.nn.chunks import Chunks, Gathered, cut, runs_in_chunks
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.maps import SequenceMap, resize_maps
from torch_linformer.nn.options import DEFAULTS, AttentionOptions
from torch_linformer.nn.padding import KeyPaddingMask, read_padding


class Attention(Heads):
    """Attention of ``num_heads`` heads to a :class:`Context`, called as :class:`torch.nn.MultiheadAttention`.

    Args:
        embed_dim: model width C.
        num_heads: heads H.
        context: what the queries attend to.
        options: those of the heads; so are the other arguments: see :class:`Heads`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        context: Context,
        options: AttentionOptions = DEFAULTS,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **layout: Any,
    ) -> None:
        super().__init__(embed_dim, num_heads, options, device=device, dtype=dtype, **layout)
        self.context = context
        context.add_parameters(self, {"device": device, "dtype": dtype})

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.context.reset_parameters(self)

    @property
    def causal(self) -> bool:
        return self.context.causal

    @property
    def window(self) -> int | None:
        return self.context.window

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeysAndValues | None = None,
        value: Tensor | None = None,
        key_padding_mask: KeyPaddingMask = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        past: Past | None = None,
        start: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; shapes, masks and result as in :class:`torch.nn.MultiheadAttention`.

        Args:
            query: ``(B, N, C)``, or ``(N, B, C)`` with ``batch_first=False``, or ``(N, C)`` unbatched.
            key: ``(B, M, kdim)`` likewise, ``query`` by default; or what :meth:`compress` made of keys, values and
                their padding.
            value: ``(B, M, vdim)`` likewise; ``key`` by default.
            key_padding_mask: ``(B, M)``, bool (True at padding) or float (0, and −1000 or less at padding), on any side
                and between real tokens. What stands at padding, NaN too, changes nothing; for ``query`` that holds
                where its padding is the keys'.
            need_weights: also return the attention weights, computed without SDPA.
            attn_mask: must be None; no (N, M) mask can be applied. A causal module takes the causal one with
                ``is_causal=True``, and does not look at it.
            average_attn_weights: average the weights over the heads.
            is_causal: must be False, except on a causal module.
            shared_projection: the map to slots, handed over by an encoder with ``sharing="layerwise"``.
            past: of a causal module: what it has read so far, to which this call adds ``query``.
            start: the first query's position, where ``key`` is what :meth:`compress` made and there is a window.

        Returns:
            The output, shaped as ``query``, and None or the weights: ``(B, N, K)``, or ``(B, H, N, K)`` not
            averaged (K = M in ordinary attention). Columns of exact tokens and of a window follow those of the
            slots, in this order: K + T + w, with ``causal``.

        Raises:
            ValueError: for a mask that cannot be applied, shapes that do not fit, or M over ``max_len``.
        """
        key, of_keys = query if key is None else key, None
        check_call(self.context, type(self).__name__, key, attn_mask, is_causal, past, start)
        queries, padding = self.to_batch_first(query), None
        check_past(past, queries)
        if isinstance(key, KeysAndValues):
            check_compressed(self, queries, key, value, key_padding_mask)
            context = key
        else:
            source = queries if key is query else self.to_batch_first(key)
            other = source if value is None or value is key else self.to_batch_first(value)
            check_inputs(self, queries, source, other)
            padding = read_padding(key_padding_mask, source, ordered=self.context.is_ordered)
            check_piece(self.context, type(self).__name__, padding, past)
            check_aligned(self.context, queries, source, padding is not None)
            keys, values, of_keys = self._put_in_order(source, other, padding)
            if padding is not None:
                queries = self._clean_queries(queries, source, keys, padding)
            context = self.context.read(self, keys, values, of_keys, shared_projection)
        call, weights, output = Call(past, start, need_weights, of_keys), None, Gathered(queries.shape[1], dim=1)
        for rows in cut(queries.shape[1], self._rows_at_once(queries, need_weights)):
            some = queries if output.is_whole(rows) else queries[:, rows]
            queries_BHND = self.split_heads(run_linear(self.q_proj, some), self.num_heads)
            attended_BHND, weights = self.context.attend(self, queries_BHND, context, call)
            output.write(rows, run_linear(self.out_proj, attended_BHND.transpose(1, 2).flatten(2)))
            del queries_BHND, attended_BHND  # so that the next rows are computed in the same memory
        if weights is not None:
            weights = self._arrange_weights(weights, padding, average_attn_weights, query.dim() == 2)
        attended = output.sequence()
        if padding is not None and self.context.moves_queries:
            attended = padding.restore(attended)
        return self.from_batch_first(attended, query.dim() == 2), weights

    def compress(
        self,
        key: Tensor,
        value: Tensor | None = None,
        key_padding_mask: KeyPaddingMask = None,
        shared_projection: SequenceMap | None = None,
    ) -> KeysAndValues:
        """Slots of a memory (its positions in ordinary attention), for any number of calls with other queries.

        ``attention(query, attention.compress(key, value, mask))`` is ``attention(query, key, value, mask)``.
        Arguments are those of :meth:`forward`.

        Raises:
            ValueError: for a causal module, shapes that do not fit, M over ``max_len``, or a mask where there is a
                window: the queries would have to move with the keys.
        """
        if self.causal:
            raise ValueError("a causal attention has no slots of a whole memory: build one with causal=False")
        if self.context.is_aligned and isinstance(key_padding_mask, Tensor):
            raise ValueError(
                "compress() of an attention with a window takes no key_padding_mask: a window counts real tokens, and "
                "the queries, which are not known yet, would have to be counted too; call the attention itself"
            )
        source = self.to_batch_first(key)
        other = source if value is None or value is key else self.to_batch_first(value)
        check_inputs(self, None, source, other)
        padding = read_padding(key_padding_mask, source, ordered=self.context.is_ordered)
        return self.context.read(self, *self._put_in_order(source, other, padding), shared_projection)

    def compress_chunks(
        self, chunks: Chunks, norm: nn.LayerNorm | None, shared_projection: SequenceMap | None
    ) -> KeysAndValues:
        """:meth:`compress` of a sequence, normed if there is a norm, that is read chunk by chunk."""
        check_inputs(self, chunks.sequence, chunks.sequence, chunks.sequence)
        return self.context.read_chunks(self, chunks, norm, shared_projection)

    def heads_of(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(B, H, ·, D)`` that ordinary attention computes with, turned to their positions.

        Inputs are ``(B, ·, C)``. Keys and values of fewer heads are repeated for the heads of the queries.
        """
        queries = self.split_heads(run_linear(self.q_proj, query), self.num_heads)
        context = Context.read(self.context, self, key, value, None, None)
        return at_positions(self.context.rotary_dim, queries, context, None)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`SequenceProjection.resize_max_len`.

        Raises:
            ValueError: as there, nothing being changed then; and where there is no E, in causal attention for one.
        """
        resize_maps(self, max_len, mode)

    def extra_repr(self) -> str:
        return f"{self.context.name}, num_heads={self.num_heads}, head_dim={self.head_dim}"

    def _rows_at_once(self, queries: Tensor, need_weights: bool) -> int | None:
        """Queries to work on at a time: all (None), except in inference on a CPU where each can be taken by itself."""
        rows = sizes_for(queries.device).inference_rows
        return rows if runs_in_chunks(rows) and not need_weights and not self.context.is_aligned else None

    def _put_in_order(
        self, key: Tensor, value: Tensor, padding: Padding | None
    ) -> tuple[Tensor, Tensor, Padding | None]:
        """Keys and values ``(B, M, C)`` with zeros at padding, the real tokens first if need be; and their padding."""
        if padding is None:
            return key, value, None
        moves = self.context.moves_keys
        put = padding.justify if moves else padding.clean
        keys = put(key)
        return keys, keys if value is key else put(value), padding.justified if moves else padding

    def _clean_queries(self, query: Tensor, key: Tensor, keys: Tensor, padding: Padding) -> Tensor:
        """Queries ``(B, N, C)`` with zeros at their own padding, moved as the keys were if they stand beside them."""
        moves = self.context.moves_queries
        if query is key:
            return keys if padding.in_order or moves == self.context.moves_keys else padding.clean(query)
        if self.context.is_aligned:
            return padding.justify(query) if moves else padding.clean(query)
        if query.shape != key.shape:
            return query
        # Self-attention of copies, or of views: what a query has in common with a key at padding is padding itself.
        same = ((query == key) | (query.isnan() & key.isnan())).all(dim=-1)
        return zero_padding(query, same & padding.mask)

    def _arrange_weights(self, weights: Tensor, padding: Padding | None, average: bool, unbatched: bool) -> Tensor:
        """Weights ``(B, H, N, ·)`` of queries as they were given."""
        if padding is not None and self.context.moves_queries:
            weights = padding.restore(weights)
        weights = weights.mean(dim=1) if average else weights
        return weights.squeeze(0) if unbatched else weights

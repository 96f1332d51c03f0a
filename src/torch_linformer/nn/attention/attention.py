"""Multi-head attention: linear maps, heads and layout of a call, whatever the queries attend to."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.device_sizes import queries_at_once
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots import Slots
from torch_linformer.nn.attention.checks import (
    check_aligned,
    check_call,
    check_compressed,
    check_inputs,
    check_past,
    check_piece,
)
from torch_linformer.nn.attention.context import Call, Context
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past, at_positions
from torch_linformer.nn.attention.slot_maps import SequenceMap, resize_maps
from torch_linformer.nn.attention.source import ChunkedSource, HeadMaps, Pair, Source
from torch_linformer.nn.chunks import Chunks, Gathered, cut
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.padding import KeyPaddingMask, read_padding


class Attention(nn.Module):
    """Attention of several heads to a :class:`Context`, called as :class:`torch.nn.MultiheadAttention`.

    Args:
        embed_dim: model width C.
        context: what the queries attend to; its sizes are those of the heads.
        dropout: on the attention weights, in training.
        bias: on the four linear maps.
        batch_first: inputs are ``(B, N, C)``; False for ``(N, B, C)``.
    """

    # torch.nn.TransformerEncoderLayer asks its attention for this before it computes ordinary attention by a kernel of
    # its own, in inference: None tells it to call the attention that it was given.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        context: Context,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        sizes = context.sizes
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, sizes.num_heads, sizes.num_kv_heads
        self.head_dim, self.dropout, self.batch_first = sizes.head_dim, dropout, batch_first
        width, kv_width = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        self.q_proj = nn.Linear(embed_dim, width, bias, **factory)
        self.k_proj = nn.Linear(sizes.key_width, kv_width, bias, **factory)
        self.v_proj = nn.Linear(sizes.value_width, kv_width, bias, **factory)
        self.out_proj = nn.Linear(width, embed_dim, bias, **factory)
        self.context = context
        self._reset_linears()

    def _reset_linears(self) -> None:
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def reset_parameters(self) -> None:
        self._reset_linears()
        self.context.reset_parameters()

    @property
    def causal(self) -> bool:
        return self.context.causal

    @property
    def window(self) -> int | None:
        return self.context.window

    @property
    def dropout_p(self) -> float:
        """Probability of dropping an attention weight now."""
        return self.dropout if self.training else 0.0

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
        key = query if key is None else key
        check_call(self.context, type(self).__name__, key, attn_mask, is_causal, past, start)
        queries = self.to_batch_first(query)
        check_past(past, queries)
        padding = None
        if isinstance(key, KeysAndValues):
            check_compressed(self, queries, key, value, key_padding_mask)
            read = key
        else:
            keys, values = self._keys_and_values(key, value, queries if key is query else None)
            check_inputs(self, queries, keys, values)
            padding = read_padding(key_padding_mask, keys, ordered=self.context.is_ordered)
            check_piece(self.context, type(self).__name__, padding, past)
            check_aligned(self.context, queries, keys, padding is not None)
            source = self._source(keys, values, padding)
            if padding is not None:
                queries = self.context.put_queries_in_order(queries, keys, source.like, padding)
            read = self.context.read(source, shared_projection)
        call = Call(start, past, self.dropout_p, need_weights)
        output, weights = Gathered(queries.shape[1], dim=1), None
        for rows in cut(queries.shape[1], self._rows_at_once(queries, need_weights)):
            heads = self._heads_of_queries(queries if output.is_whole(rows) else queries[:, rows])
            attended, weights = self.context.attend(heads, read, call)
            output.write(rows, run_linear(self.out_proj, attended.transpose(1, 2).flatten(2)))
            del heads, attended  # so that the next rows are computed in the same memory
        moved_back = padding if padding is not None and self.context.moves_queries else None
        attended = output.sequence()
        if moved_back is not None:
            attended = moved_back.restore(attended)
        if weights is not None:
            weights = self._arrange_weights(weights, moved_back, average_attn_weights, query.dim() == 2)
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
        keys, values = self._keys_and_values(key, value, None)
        check_inputs(self, None, keys, values)
        padding = read_padding(key_padding_mask, keys, ordered=self.context.is_ordered)
        return self.context.read(self._source(keys, values, padding), shared_projection).to_keep()

    def compress_chunks(
        self, chunks: Chunks, norm: nn.LayerNorm | None, shared_projection: SequenceMap | None
    ) -> KeysAndValues:
        """:meth:`compress` of a sequence, normed if there is a norm, that is read chunk by chunk."""
        check_inputs(self, chunks.sequence, chunks.sequence, chunks.sequence)
        source = ChunkedSource(chunks.sequence, chunks.padding, self.head_maps, chunks.size, norm)
        return self.context.read(source, shared_projection)

    @property
    def head_maps(self) -> HeadMaps:
        return HeadMaps(self.k_proj, self.v_proj, self.num_kv_heads, self.head_dim)

    def heads_of(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(B, H, ·, D)`` that ordinary attention computes with, turned to their positions.

        Inputs are ``(B, ·, C)``. Keys and values of fewer heads are repeated for the heads of the queries.
        """
        positions = Slots(*self.head_maps.heads(Pair(key, value)))
        return at_positions(self.context.rotary_dim, self._heads_of_queries(query), positions, None)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`SequenceProjection.resize_max_len`.

        Raises:
            ValueError: as there, nothing being changed then; and where there is no E, in causal attention for one.
        """
        resize_maps(self, max_len, mode)

    def to_batch_first(self, x: Tensor) -> Tensor:
        """``(B, N, C)``, whichever way ``x`` came."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def from_batch_first(self, x: Tensor, unbatched: bool) -> Tensor:
        """``(B, N, C)`` in the layout of this module's inputs."""
        if unbatched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}"

    def _keys_and_values(self, key: Tensor, value: Tensor | None, queries: Tensor | None) -> Pair:
        """Inputs ``(B, M, C)``; ``queries`` are those of the keys too."""
        keys = self.to_batch_first(key) if queries is None else queries
        return Pair(keys, keys if value is None or value is key else self.to_batch_first(value))

    def _source(self, keys: Tensor, values: Tensor, padding: Padding | None) -> Source:
        keys, values, padding = self.context.put_in_order(keys, values, padding)
        return Source(Pair(keys, values), padding, self.head_maps)

    def _heads_of_queries(self, queries: Tensor) -> Tensor:
        """``(B, H, N, D)`` of ``(B, N, C)``."""
        channels = run_linear(self.q_proj, queries)
        return channels.view(*channels.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _rows_at_once(self, queries: Tensor, need_weights: bool) -> int | None:
        """Queries to work on at a time: all (None), except in inference on a CPU where each can be taken by itself."""
        if need_weights or self.context.is_aligned:
            return None
        return queries_at_once(queries.shape[1], queries.device)

    def _arrange_weights(self, weights: Tensor, moved: Padding | None, average: bool, unbatched: bool) -> Tensor:
        """Weights ``(B, H, N, ·)`` of queries as they were given."""
        if moved is not None:
            weights = moved.restore(weights)
        weights = weights.mean(dim=1) if average else weights
        return weights.squeeze(0) if unbatched else weights

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Accept the parameters of ``torch.nn.MultiheadAttention``, packed or (kdim, vdim) separate."""
        names = ("q_proj", "k_proj", "v_proj")
        for kind in ("weight", "bias"):
            packed = state_dict.pop(f"{prefix}in_proj_{kind}", None)
            parts = (None, None, None) if packed is None else packed.chunk(3)
            for name, part in zip(names, parts, strict=True):
                part = state_dict.pop(f"{prefix}{name}_{kind}", part)
                if part is not None:
                    state_dict[f"{prefix}{name}.{kind}"] = part
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

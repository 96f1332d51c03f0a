"""Multi-head attention: linear maps, heads and layout of a call, whatever the queries attend to."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.cpu import queries_at_once
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots import Slots
from torch_linformer.nn.attention.context import Call, Context
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past, at_positions
from torch_linformer.nn.attention.slot_maps import SequenceMap, resize_maps
from torch_linformer.nn.attention.source import HeadMaps, Pair, Source
from torch_linformer.nn.chunks import Gathered, cut
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
        self._check_call(key, attn_mask, is_causal, past, start)
        context, queries, padding = self.context, self.to_batch_first(query), None
        if past is not None and past.state is not None and len(past.state.tokens) != queries.shape[0]:
            raise ValueError(
                f"past holds {len(past.state.tokens)} rows, but the batch has {queries.shape[0]}: give each batch its "
                "own Past, or past.select_rows the rows that go on"
            )
        if isinstance(key, KeysAndValues):
            if value is not None or key_padding_mask is not None:
                raise ValueError("value and key_padding_mask belong to compress(): what it made holds both")
            self._check_compressed(queries, key)
            read = key
        else:
            inputs = self._inputs(key, value, queries if key is query else None)
            self._check_inputs(inputs, queries)
            padding = read_padding(key_padding_mask, inputs.key, ordered=context.is_ordered)
            self._check_places(queries, inputs.key, padding, past)
            source = self._source(inputs, padding)
            if padding is not None:
                queries = context.put_queries_in_order(queries, inputs.key, source.like, padding)
            read = context.read(source, shared_projection)
        call = Call(start, past, self.dropout_p, need_weights)
        output, weights, at_once = Gathered(queries.shape[1], dim=1), None, None
        if not need_weights and not context.is_aligned:  # each query can be taken by itself: in inference on a CPU
            at_once = queries_at_once(queries.shape[1], queries.device)
        for rows in cut(queries.shape[1], at_once):
            heads = self._heads_of_queries(queries if output.is_whole(rows) else queries[:, rows])
            attended, weights = context.attend(heads, read, call)
            output.write(rows, run_linear(self.out_proj, attended.transpose(1, 2).flatten(2)))
            del heads, attended  # so that the next rows are computed in the same memory
        attended = output.sequence()
        if padding is not None and context.moves_queries:
            attended = padding.restore(attended)
            weights = None if weights is None else padding.restore(weights)
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights.squeeze(0) if query.dim() == 2 else weights
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
        inputs = self._inputs(key, value, None)
        self._check_inputs(inputs)
        padding = read_padding(key_padding_mask, inputs.key, ordered=self.context.is_ordered)
        return self.context.read(self._source(inputs, padding), shared_projection).to_keep()

    def compress_chunks(
        self,
        sequence: Tensor,
        padding: Padding | None,
        chunk_size: int | None,
        norm: nn.LayerNorm | None,
        shared_projection: SequenceMap | None,
    ) -> KeysAndValues:
        """:meth:`compress` of a sequence ``(B, N, C)``, real tokens first, that is read and normed chunk by chunk."""
        inputs = Pair(sequence, sequence)
        self._check_inputs(inputs, sequence)
        source = Source(inputs, padding, self.head_maps, chunk_size, norm)
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

    def _inputs(self, key: Tensor, value: Tensor | None, queries: Tensor | None) -> Pair:
        """Inputs ``(B, M, C)``; ``queries`` are those of the keys too."""
        keys = self.to_batch_first(key) if queries is None else queries
        return Pair(keys, keys if value is None or value is key else self.to_batch_first(value))

    def _source(self, inputs: Pair, padding: Padding | None) -> Source:
        keys, values, padding = self.context.put_in_order(*inputs, padding)
        return Source(Pair(keys, values), padding, self.head_maps)

    def _heads_of_queries(self, queries: Tensor) -> Tensor:
        """``(B, H, N, D)`` of ``(B, N, C)``."""
        channels = run_linear(self.q_proj, queries)
        return channels.view(*channels.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _check_call(
        self,
        key: Tensor | KeysAndValues,
        attn_mask: Tensor | None,
        is_causal: bool,
        past: Past | None,
        start: int,
    ) -> None:
        """Raise ``ValueError`` for a mask, a past or a start that means nothing here."""
        context, name = self.context, type(self).__name__
        if is_causal and not context.causal:
            raise ValueError(f"is_causal=True, but {name} is not causal: every position sees the whole sequence")
        if attn_mask is not None and not is_causal:
            remedy = "pass is_causal=True for the causal mask" if context.causal else "use key_padding_mask for padding"
            raise ValueError(
                f"{name} cannot apply an attn_mask of shape {tuple(attn_mask.shape)}, causal or other: "
                f"{context.no_mask}; {remedy}"
            )
        if past is not None and not context.causal:
            raise ValueError("past belongs to causal attention: here every position sees those after it too")
        if start and not isinstance(key, KeysAndValues):
            raise ValueError(f"start={start} needs what compress() made as key: else the queries stand beside the keys")

    def _check_inputs(self, inputs: Pair, query: Tensor | None = None) -> None:
        """Raise ``ValueError`` for batch-first inputs whose shapes do not fit."""
        if query is not None:
            _check_width("query", query, self.q_proj)
        _check_width("key", inputs.key, self.k_proj)
        _check_width("value", inputs.value, self.v_proj)
        shapes = [tuple(x.shape) for x in (inputs.key if query is None else query, *inputs)]
        if shapes[1][:2] != shapes[2][:2] or shapes[0][0] != shapes[1][0]:
            raise ValueError(
                "query, key and value must agree in batch, and key and value in length, "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )

    def _check_places(self, query: Tensor, key: Tensor, padding: Padding | None, past: Past | None) -> None:
        """Raise ``ValueError`` for a piece of the rows in place of all, or queries that cannot stand beside keys."""
        context, causal = self.context, self.causal
        if padding is not None and padding.is_piece:
            if not context.takes_pieces:
                name = f"{type(self).__name__} with {context.name}"
                raise ValueError(f"{name} needs whole rows: only slots and windows are made of pieces")
            if past is not None:
                raise ValueError("past goes with whole rows: a piece of the rows is given the state of those before it")
        if context.is_aligned and query.shape[1] != key.shape[1] and (causal or padding is not None):
            kind = "causal attention is self-attention" if causal else "a window counts the real tokens of both"
            raise ValueError(f"{kind}: query and key must have one length, got {query.shape[1]} and {key.shape[1]}")

    def _check_compressed(self, query: Tensor, read: KeysAndValues) -> None:
        """Raise ``ValueError`` for queries that cannot attend to what ``compress`` made."""
        _check_width("query", query, self.q_proj)
        batch, heads, _, width = read.slots.keys.shape
        if batch != query.shape[0]:
            raise ValueError(f"query has a batch of {query.shape[0]}, but what was compressed one of {batch}")
        if (heads, width) != (self.num_kv_heads, self.head_dim):
            raise ValueError(
                f"what was compressed has {heads} heads of width {width}, this attention {self.num_kv_heads} of "
                f"{self.head_dim}: it was made by another module"
            )

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


def _check_width(name: str, x: Tensor, linear: nn.Linear) -> None:
    if x.dim() != 3 or x.shape[-1] != linear.in_features:
        raise ValueError(
            f"{name} must have 2 or 3 dimensions, the last of {linear.in_features} channels, got shape {tuple(x.shape)}"
        )

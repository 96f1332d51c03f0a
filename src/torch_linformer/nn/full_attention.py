"""Ordinary multi-head attention: the base that Linformer attention changes in one place, and its twin."""

from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.functional.attention import attend, attend_to_past, repeat_heads
from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.functional.rotary import rotate
from torch_linformer.nn.chunks import Chunks, map_chunks, runs_in_chunks
from torch_linformer.nn.keys_and_values import KeysAndValues
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.padding import KeyPaddingMask, read_padding
from torch_linformer.nn.past import FullState, Past, positions_behind
from torch_linformer.nn.projection import SequenceProjection

ROWS = 1024  # queries at a time in inference on a CPU: a larger result is fresh memory each time, page by page


class FullAttention(nn.Module):
    """Ordinary multi-head attention, O(N·M), with the parameters and the contracts of :class:`LinformerAttention`.

    It is the twin that comparisons need; the arguments mean what they mean there.
    """

    # torch.nn.TransformerEncoderLayer asks its attention for this before it computes ordinary attention by a kernel of
    # its own, in inference: None tells it to call the attention that it was given.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        causal: bool = False,
        rotary_dim: int = 0,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if num_heads < 1 or num_kv_heads < 1:
            raise ValueError(f"num_heads and num_kv_heads must be at least 1, got {num_heads} and {num_kv_heads}")
        if head_dim is None and embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}; give head_dim")
        if num_heads % num_kv_heads:
            raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout, self.batch_first = dropout, batch_first
        self.causal, self.rotary_dim = causal, rotary_dim
        check_rotary_dim(rotary_dim, self.head_dim, causal)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        kv_width = num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, num_heads * self.head_dim, **factory)
        self.k_proj = nn.Linear(embed_dim if kdim is None else kdim, kv_width, **factory)
        self.v_proj = nn.Linear(embed_dim if vdim is None else vdim, kv_width, **factory)
        self.out_proj = nn.Linear(num_heads * self.head_dim, embed_dim, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | KeysAndValues,
        value: Tensor | None = None,
        key_padding_mask: KeyPaddingMask = None,
        need_weights: bool = False,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        shared_projection: SequenceProjection | None = None,
        past: Past | None = None,
        start: int = 0,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend; shapes, masks and result as in :class:`torch.nn.MultiheadAttention`.

        Args:
            query: ``(B, N, C)``, or ``(N, B, C)`` with ``batch_first=False``, or ``(N, C)`` unbatched.
            key: ``(B, M, kdim)`` likewise; or what :meth:`compress` made of keys, values and their padding.
            value: ``(B, M, vdim)`` likewise; ``key`` by default.
            key_padding_mask: ``(B, M)``, bool (True at padding) or float (0, and −1000 or less at padding), on any side
                and between real tokens. What stands at padding, NaN too, changes nothing; of ``query`` that holds
                where its padding is the keys'.
            need_weights: also return the attention weights, computed without SDPA.
            attn_mask: must be None; no (N, M) mask can be applied. A causal module takes the causal one with
                ``is_causal=True``, and does not look at it.
            average_attn_weights: average the weights over the heads.
            is_causal: must be False, but on a causal module.
            shared_projection: the map to slots, handed over by an encoder with ``sharing="layerwise"``.
            past: of a causal module: what it has read so far, to which this call adds ``query``.
            start: the first query's position, where ``key`` is what :meth:`compress` made and there is a window.

        Returns:
            The output, shaped as ``query``, and None or the weights: ``(B, N, K)``, or ``(B, H, N, K)`` not
            averaged (K = M in ordinary attention; K + w where there is a window, its positions last).

        Raises:
            ValueError: for a mask that cannot be applied, shapes that do not fit, or M over ``max_len``.
        """
        self._refuse_masks(attn_mask, is_causal)
        if past is not None and not self.causal:
            raise ValueError("past belongs to causal attention: here every position sees those behind it too")
        if start and not isinstance(key, KeysAndValues):
            raise ValueError(f"start={start} needs what compress() made as key: else the queries stand beside the keys")
        unbatched = query.dim() == 2
        queries = self.to_batch_first(query)
        if isinstance(key, KeysAndValues):
            self._check_compressed(queries, key, value, key_padding_mask)
            output, weights = self.attend_to(key, queries, need_weights, start)
        else:
            source = queries if key is query else self.to_batch_first(key)
            other = source if value is None or value is key else self.to_batch_first(value)
            keys, values, padding = self._read(queries, source, other, key_padding_mask)
            queries = self._clean_queries(queries, source, keys, padding)
            if self.causal:
                output, weights = self.attend_causally(queries, keys, values, padding, past, need_weights)
            else:
                keys_and_values = self._keys_and_values(keys, values, padding, shared_projection)
                output, weights = self.attend_to(keys_and_values, queries, need_weights)
            if padding is not None and self.looks_around:
                output = padding.restore(output)
                weights = None if weights is None else padding.restore(weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if unbatched and weights is not None:
            weights = weights.squeeze(0)
        return self.from_batch_first(output, unbatched), weights

    def compress(
        self,
        key: Tensor,
        value: Tensor | None = None,
        key_padding_mask: KeyPaddingMask = None,
        shared_projection: SequenceProjection | None = None,
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
        if self.looks_around and isinstance(key_padding_mask, Tensor):
            raise ValueError(
                "compress() of an attention with a window takes no key_padding_mask: a window counts real tokens, and "
                "the queries, which are not known yet, would have to be counted too; call the attention itself"
            )
        source = self.to_batch_first(key)
        other = source if value is None or value is key else self.to_batch_first(value)
        keys, values, padding = self._read(None, source, other, key_padding_mask)
        return self._keys_and_values(keys, values, padding, shared_projection)

    def attend_to(
        self, keys_and_values: KeysAndValues, query: Tensor, need_weights: bool = False, start: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        """Output ``(B, N, C)`` and weights ``(B, H, N, ·)`` of queries ``(B, N, C)`` over ``keys_and_values``.

        ``start`` is the first query's position, for which a local window asks.
        """
        if not need_weights and query.device.type == "cpu" and runs_in_chunks(ROWS):
            return map_chunks(lambda rows: self._attend(keys_and_values, rows)[0], query, ROWS, dim=1), None
        return self._attend(keys_and_values, query, need_weights)

    def _attend(
        self, keys_and_values: KeysAndValues, query: Tensor, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`attend_to` for all queries at once."""
        keys, values, slot_padding = keys_and_values[:3]
        queries_BHND = self._split_heads(run_linear(self.q_proj, query), self.num_heads)
        output_BHND, weights = attend(
            queries_BHND,
            keys,
            values,
            padding_mask=slot_padding,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        return run_linear(self.out_proj, output_BHND.transpose(1, 2).flatten(2)), weights

    def attend_causally(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        past: Past | None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and weights of every position ``(B, N, C)`` over those up to its own, and over the past.

        The sequences are justified by ``padding``, where there is padding.
        """
        if past is not None and past.state is not None and len(past.state.tokens) != len(query):
            raise ValueError(
                f"past holds {len(past.state.tokens)} rows, but the batch has {len(query)}: give each batch its own "
                "Past, or past.select_rows the rows that go on"
            )
        mask = None if padding is None else padding.trailing
        heads = self.heads_of(query, key, value, mask, past)
        output_BHND, weights = self._attend_to_past(*heads, mask, past, need_weights)
        return run_linear(self.out_proj, output_BHND.transpose(1, 2).flatten(2)), weights

    def heads_of(
        self, query: Tensor, key: Tensor, value: Tensor, padding: Tensor | None = None, past: Past | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values ``(B, H, ·, D)`` that ordinary attention computes with, turned to their positions.

        Inputs are ``(B, ·, C)``. Keys and values of fewer heads are repeated for the heads of the queries.
        """
        queries = self._split_heads(run_linear(self.q_proj, query), self.num_heads)
        keys = self._split_heads(run_linear(self.k_proj, key), self.num_kv_heads)
        if self.rotary_dim > 0:
            positions = positions_behind(past, padding, key.shape[1], key.device)
            queries, keys = (rotate(x, positions, self.rotary_dim) for x in (queries, keys))
        values = self._split_heads(run_linear(self.v_proj, value), self.num_kv_heads)
        return queries, repeat_heads(keys, self.num_heads), repeat_heads(values, self.num_heads)

    def _attend_to_past(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        padding: Tensor | None,
        past: Past | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """:meth:`attend_causally` of heads ``(B, H, N, D)``."""
        if past is not None:
            read = FullState(keys, values, padding)
            if isinstance(past.state, FullState):
                read = past.state.followed_by(keys, values, padding)
            past.state, keys, values, padding = read, read.keys, read.values, read.padding
        dropout_p = self.dropout if self.training else 0.0
        return attend_to_past(
            queries, keys, values, padding_mask=padding, dropout_p=dropout_p, need_weights=need_weights
        )

    def keys_and_values_of_chunks(
        self, chunks: Chunks, norm: nn.LayerNorm | None, shared_projection: SequenceProjection | None
    ) -> KeysAndValues:
        """Keys and values of a sequence, normed if there is a norm, that is read chunk by chunk."""
        self._check_inputs(chunks.sequence, chunks.sequence, chunks.sequence)
        keys, values = [], []
        for chunk in chunks.cut_at(1):
            x = chunks.read(chunk) if norm is None else norm(chunks.read(chunk))
            keys.append(self._split_heads(run_linear(self.k_proj, x), self.num_kv_heads))
            values.append(self._split_heads(run_linear(self.v_proj, x), self.num_kv_heads))
        mask = None if chunks.padding is None else chunks.padding.trailing
        return KeysAndValues(torch.cat(keys, dim=2), torch.cat(values, dim=2), mask)

    def _keys_and_values(
        self,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        shared_projection: SequenceProjection | None,
    ) -> KeysAndValues:
        """Keys and values ``(B, H, ·, D)`` from the justified inputs, and which of them get no attention."""
        keys = self._split_heads(run_linear(self.k_proj, key), self.num_kv_heads)
        values = self._split_heads(run_linear(self.v_proj, value), self.num_kv_heads)
        return KeysAndValues(keys, values, None if padding is None else padding.trailing)

    def _split_heads(self, x: Tensor, heads: int) -> Tensor:
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(1, 2)

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

    @property
    def order_matters(self) -> bool:
        """Whether it matters which real token a key is, so that padding in front of it or between must be moved."""
        return False

    @property
    def looks_around(self) -> bool:
        """Whether query i stands at the position of key i, and sees that of it which is causal, or near."""
        return self.causal

    def _read(
        self, query: Tensor | None, key: Tensor, value: Tensor, key_padding_mask: KeyPaddingMask
    ) -> tuple[Tensor, Tensor, Padding | None]:
        """Keys and values ``(B, M, C)`` with the real tokens first and zeros at padding, and the padding."""
        self._check_inputs(query, key, value)
        padding = read_padding(key_padding_mask, key, ordered=self.order_matters)
        if padding is None:
            return key, value, None
        keys = padding.justify(key)
        return keys, keys if value is key else padding.justify(value), padding

    def _clean_queries(self, query: Tensor, key: Tensor, keys: Tensor, padding: Padding | None) -> Tensor:
        """Queries ``(B, N, C)`` with zeros at their own padding, moved as the keys were if they stand beside them."""
        if self.looks_around and query.shape[1] != key.shape[1] and (self.causal or padding is not None):
            kind = "causal attention is self-attention" if self.causal else "a window counts the real tokens of both"
            raise ValueError(f"{kind}: query and key must have one length, got {query.shape[1]} and {key.shape[1]}")
        if padding is None:
            return query
        if query is key and (self.looks_around or padding.order is None):
            return keys
        if self.looks_around:
            return padding.justify(query)
        if query is key:
            return padding.clean(query)
        if query.shape != key.shape:
            return query
        # Self-attention of copies, or of views: what a query has in common with a key at padding is padding itself.
        same = ((query == key) | (query.isnan() & key.isnan())).all(dim=-1)
        return zero_padding(query, same & padding.mask)

    def _check_compressed(
        self, query: Tensor, keys_and_values: KeysAndValues, value: Tensor | None, key_padding_mask: KeyPaddingMask
    ) -> None:
        if value is not None or key_padding_mask is not None:
            raise ValueError("value and key_padding_mask belong to compress(): what it made holds both")
        self._check_width("query", query, self.q_proj)
        made = keys_and_values.keys.shape
        if made[0] != query.shape[0]:
            raise ValueError(f"query has a batch of {query.shape[0]}, but what was compressed one of {made[0]}")
        if (made[1], made[3]) != (self.num_kv_heads, self.head_dim):
            raise ValueError(
                f"what was compressed has {made[1]} heads of width {made[3]}, this attention {self.num_kv_heads} of "
                f"{self.head_dim}: it was made by another module"
            )

    def _check_inputs(self, query: Tensor | None, key: Tensor, value: Tensor) -> None:
        if query is not None:
            self._check_width("query", query, self.q_proj)
        self._check_width("key", key, self.k_proj)
        self._check_width("value", value, self.v_proj)
        shapes = [tuple(x.shape) for x in (key if query is None else query, key, value)]
        if shapes[1][:2] != shapes[2][:2] or shapes[0][0] != shapes[1][0]:
            raise ValueError(
                "query, key and value must agree in batch, and key and value in length, "
                f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
            )

    def _check_width(self, name: str, x: Tensor, linear: nn.Linear) -> None:
        if x.dim() != 3 or x.shape[-1] != linear.in_features:
            raise ValueError(
                f"{name} must have 2 or 3 dimensions, the last of {linear.in_features} channels, "
                f"got shape {tuple(x.shape)}"
            )

    def _refuse_masks(self, attn_mask: Tensor | None, is_causal: bool) -> None:
        name = type(self).__name__
        if self.causal and (is_causal or attn_mask is None):
            return
        if is_causal:
            raise ValueError(f"is_causal=True, but {name} is not causal: every position sees the whole sequence")
        if attn_mask is not None:
            remedy = "pass is_causal=True for the causal mask" if self.causal else "use key_padding_mask for padding"
            raise ValueError(
                f"{name} cannot apply an attn_mask of shape {tuple(attn_mask.shape)}, causal or other: a slot mixes "
                f"all positions, so no score belongs to one (query, key) pair; {remedy}"
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


def check_rotary_dim(rotary_dim: int, head_dim: int, causal: bool) -> None:
    """Raise ``ValueError`` for channels that cannot be turned in pairs, or an attention that would mix the turns."""
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim must be even and lie between 0 and head_dim = {head_dim}, got {rotary_dim}")
    if rotary_dim and not causal:
        raise ValueError(f"rotary_dim={rotary_dim} needs causal=True: slots of a whole sequence stand at no position")

"""Multi-head attention: linear maps, heads and layout of a call, whatever the queries attend to; and its two kinds."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Unpack

import torch
from torch import Tensor, nn

from torch_linformer.functional.cpu import queries_at_once
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots import Slots
from torch_linformer.nn.attention.causal_context import CausalFullContext, CausalSlotContext
from torch_linformer.nn.attention.context import Call, Context, FullContext, head_sizes
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past, at_positions
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import HeadMaps, Pair, SequenceMap, Source, resize_maps
from torch_linformer.nn.chunks import map_chunks
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.options import AttentionConfig, AttentionOptions, default_k
from torch_linformer.nn.padding import KeyPaddingMask, read_padding

CONTEXTS: dict[str, dict[bool, type[Context]]] = {
    "linformer": {False: SlotContext, True: CausalSlotContext},
    "full": {False: FullContext, True: CausalFullContext},
}
"""The context that each kind of attention has, not causal and causal."""


class Attention(nn.Module):
    """Attention of several heads to a :class:`Context`, called as :class:`torch.nn.MultiheadAttention`.

    The arguments are those of :class:`LinformerAttention`.
    """

    contexts: ClassVar[Mapping[bool, type[Context]]]  # what the queries attend to, not causal and causal

    # torch.nn.TransformerEncoderLayer asks its attention for this before it computes ordinary attention by a kernel of
    # its own, in inference: None tells it to call the attention that it was given.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_len: int,
        k: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        super().__init__()
        config = AttentionConfig.of(self, options)
        k = default_k(max_len) if k is None else k
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = head_sizes(embed_dim, num_heads, config, kdim, vdim)
        context = self.contexts[config.causal](sizes, config, max_len, k, **factory)
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, sizes.num_kv_heads
        self.head_dim, self.dropout, self.batch_first = sizes.head_dim, dropout, batch_first
        width, kv_width = num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = nn.Linear(embed_dim, width, bias, **factory)
        self.k_proj = nn.Linear(sizes.key_width, kv_width, bias, **factory)
        self.v_proj = nn.Linear(sizes.value_width, kv_width, bias, **factory)
        self.out_proj = nn.Linear(width, embed_dim, bias, **factory)
        self.context = context  # after the linear maps: the order of parameters is that of saved optimizer states
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
        key, context, padding = query if key is None else key, self.context, None
        queries = self.to_batch_first(query)
        self._check_call(queries, key, attn_mask, is_causal, past, start)
        if isinstance(key, KeysAndValues):
            if value is not None or key_padding_mask is not None:
                raise ValueError("value and key_padding_mask belong to compress(): what it made holds both")
            self._check_compressed(queries, key)
            read = key
        else:
            keys = queries if key is query else self.to_batch_first(key)
            values = keys if value is None or value is key else self.to_batch_first(value)
            self.check_shapes(query=queries, key=keys, value=values)
            padding = read_padding(key_padding_mask, keys, ordered=context.is_ordered)
            self._check_places(queries, keys, padding, past)
            source = self._source(keys, values, padding)
            if padding is not None:
                queries = context.put_queries_in_order(queries, keys, source.like, padding)
            read = context.read(source, shared_projection)
        call = Call(start, past, self.dropout if self.training else 0.0, need_weights)
        at_once = None
        if not need_weights and not context.is_aligned:  # each query can be taken by itself: in inference on a CPU
            at_once = queries_at_once(queries.shape[1], queries.device)
        if at_once is None:
            heads, weights = context.attend(self._heads_of_queries(queries), read, call)
            attended = self._of_heads(heads)
        else:

            def attend(rows: Tensor) -> Tensor:
                return self._of_heads(context.attend(self._heads_of_queries(rows), read, call)[0])

            attended, weights = map_chunks(attend, self, queries, at_once, dim=1), None
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
        keys = self.to_batch_first(key)
        values = keys if value is None or value is key else self.to_batch_first(value)
        self.check_shapes(key=keys, value=values)
        padding = read_padding(key_padding_mask, keys, ordered=self.context.is_ordered)
        return self.context.read(self._source(keys, values, padding), shared_projection).to_keep()

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

    def _source(self, keys: Tensor, values: Tensor, padding: Padding | None) -> Source:
        keys, values, padding = self.context.put_in_order(keys, values, padding)
        return Source(Pair(keys, values), padding, self.head_maps)

    def _of_heads(self, attended: Tensor) -> Tensor:
        """The output ``(B, N, C)`` of what heads have found, ``(B, H, N, D)``."""
        return run_linear(self.out_proj, attended.transpose(1, 2).flatten(2))

    def _heads_of_queries(self, queries: Tensor) -> Tensor:
        """``(B, H, N, D)`` of ``(B, N, C)``."""
        channels = run_linear(self.q_proj, queries)
        return channels.view(*channels.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2)

    def _check_call(
        self,
        query: Tensor,
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
        if past is not None and past.state is not None and len(past.state.tokens) != query.shape[0]:
            raise ValueError(
                f"past holds {len(past.state.tokens)} rows, but the batch has {query.shape[0]}: give each batch its "
                "own Past, or past.select_rows the rows that go on"
            )
        if start and not isinstance(key, KeysAndValues):
            raise ValueError(f"start={start} needs what compress() made as key: else the queries stand beside the keys")

    def check_shapes(self, **inputs: Tensor) -> None:
        """Raise ``ValueError`` for batch-first ``query``, ``key`` and ``value``, in this order, that do not fit."""
        for name, x in inputs.items():
            width = getattr(self, f"{name[0]}_proj").in_features
            if x.dim() != 3 or x.shape[-1] != width:
                raise ValueError(
                    f"{name} must have 2 or 3 dimensions, the last of {width} channels, got shape {tuple(x.shape)}"
                )
        shapes = [tuple(x.shape) for x in inputs.values()]
        if any(shape[0] != shapes[-1][0] for shape in shapes) or (shapes[1:] and shapes[-2][1] != shapes[-1][1]):
            raise ValueError(
                "query, key and value must agree in batch, and key and value in length, "
                f"got {', '.join(map(str, shapes))}"
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
        self.check_shapes(query=query)
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


class LinformerAttention(Attention):
    r"""Multi-head attention over K slots instead of M positions: O(N·K) time and memory.

    Called as :class:`torch.nn.MultiheadAttention`, with three other defaults: ``batch_first=True``, so inputs are
    ``(B, N, C)``; ``need_weights=False``; and ``key`` is ``query``, ``value`` is ``key`` where they are left out.

    .. math::
        \bar K = s E^\top (m \odot (X W_k + b_k)), \quad \bar V = s F^\top (m \odot (X W_v + b_v)), \quad
        \mathrm{out} = \mathrm{softmax}(Q \bar K^\top / \sqrt D)\, \bar V

    Padding is exact, wherever it stands: a padded batch gives each row's real tokens what the row by itself would give,
    and whatever stands at padding, NaN included, changes nothing. Row i of E belongs to the i-th real token.

    Where the heads share a linear map, :math:`E^\top (X W + b) = (E^\top X) W + (E^\top 1) b` lets the sequence be
    compressed before the channels are mixed; the order with fewer multiplications is taken.

    Args:
        embed_dim: model width C.
        num_heads: heads H.
        max_len: longest key sequence M, in tokens.
        k: slots K, 1 to ``max_len``, min(256, max_len / 4) by default; 0 with a ``window``, for no slots.
        dropout: on the attention weights, in training.
        bias: on the four linear maps.
        kdim: width of ``key``, C by default.
        vdim: width of ``value``, C by default.
        batch_first: inputs are ``(B, N, C)``; False for ``(N, B, C)``.
        options: :class:`~torch_linformer.nn.options.AttentionConfig`: ``num_kv_heads``, ``head_dim``, ``projection``,
            ``sharing`` (not ``layerwise``, which spans layers), ``length_scaling``, ``causal``, ``window``,
            ``rotary_dim``, ``slot_bias``, ``slot_mass``, ``exact_first``, ``exact_last``.

    Raises:
        ValueError: for arguments out of range, for an option that this attention would not use, and for
            ``sharing="layerwise"``.

    Source: arXiv 2006.04768, section 4.

    Example:
        >>> import torch
        >>> from torch_linformer.nn import LinformerAttention
        >>> attention = LinformerAttention(embed_dim=64, num_heads=4, max_len=4096, k=128)
        >>> texts = torch.randn(2, 1000, 64)
        >>> padding = torch.arange(1000) >= torch.tensor([[1000], [600]])  # the second text has 600 tokens
        >>> output, _ = attention(texts, key_padding_mask=padding)
        >>> alone, _ = attention(texts[1:, :600])
        >>> torch.allclose(output[1:, :600], alone, atol=1e-5)
        True
    """

    contexts = CONTEXTS["linformer"]


class FullAttention(Attention):
    """Ordinary multi-head attention, O(N·M), with the parameters and the contracts of :class:`LinformerAttention`.

    It is the twin that comparisons need. The arguments mean what they mean there, without ``max_len`` and ``k``; of the
    options it has ``num_kv_heads``, ``head_dim``, ``causal`` and, when causal, ``rotary_dim``.
    """

    contexts = CONTEXTS["full"]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        linears: dict[str, Any] = {"bias": bias, "kdim": kdim, "vdim": vdim, "device": device, "dtype": dtype}
        super().__init__(embed_dim, num_heads, 1, 1, dropout=dropout, batch_first=batch_first, **linears, **options)

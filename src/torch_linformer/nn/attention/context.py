"""What the queries of an attention attend to: the part that one attention differs from another in."""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.attention import attend, attend_to_past, repeat_heads
from torch_linformer.functional.padding import Padding, mask_of
from torch_linformer.functional.rotary import rotate
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.past import FullState, Past, positions_after
from torch_linformer.nn.chunks import Chunks
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.maps import SequenceMap
from torch_linformer.nn.options import DEFAULTS, AttentionOptions

Attended = tuple[Tensor, Tensor | None]  # output, and weights where they are wanted

OF_HEADS = frozenset({"num_kv_heads", "head_dim", "causal"})  # options that every attention has


class Call(NamedTuple):
    """How a context is attended to in one call; see :meth:`Attention.forward`.

    Attributes:
        padding: of the keys, where they were read in this call: it keeps what other layers ask again.
    """

    past: Past | None
    start: int
    need_weights: bool
    padding: Padding | None = None


class Context:
    """A kind of context: every position, slots, running means.

    It holds no tensors: parameters that it adds belong to the attention, under the names of its ``state_dict``, and
    every method is given that attention.

    Attributes:
        name: as in an error message.
        options: the :class:`AttentionOptions` that it has, beside those of heads.
        causal: position t attends to nothing after t, calls can go on from a :class:`Past`, and there is nothing to
            compress.
        takes_pieces: rows may come in pieces, each in a process of its own (``torch_linformer.distributed``).
        window: tokens of the local window, None without one.
        rotary_dim: channels turned by position.
        max_len: longest sequence at first, for contexts with slots; so is k, their number.
    """

    name: ClassVar[str]
    options: ClassVar[frozenset[str]]
    causal: ClassVar[bool] = False
    takes_pieces: ClassVar[bool] = False
    no_mask: ClassVar[str]  # why no mask of (query, key) pairs can be applied

    def __init__(self, options: AttentionOptions = DEFAULTS, max_len: int = 1, k: int = 1) -> None:
        """Raise ``ValueError`` for options that it does not have; ``max_len`` and ``k`` are for slots."""
        self.check_options(options)
        self.window, self.rotary_dim = options["window"], options["rotary_dim"]
        self.max_len, self.k = max_len, k

    @classmethod
    def check_options(cls, options: AttentionOptions) -> None:
        """Raise ``ValueError`` for an option that asks for something this context does not have."""
        for name in cls.unused_options(options):
            value, default = options[name], DEFAULTS[name]  # type: ignore[literal-required]
            raise ValueError(f"{name}={value!r} has no effect on {cls.describe(options)}: leave it at {default!r}")

    @classmethod
    def unused_options(cls, options: AttentionOptions) -> list[str]:
        """The names of options that differ from their defaults, and that this context does not have."""
        used = OF_HEADS | cls.options
        return [name for name in DEFAULTS if name not in used and options[name] != DEFAULTS[name]]  # type: ignore[literal-required]

    @classmethod
    def describe(cls, options: AttentionOptions) -> str:
        """The context in an error message."""
        return cls.name

    @property
    def is_ordered(self) -> bool:
        """Whether it matters which real token a key is, so that padding before it or between must be moved."""
        return False

    @property
    def moves_keys(self) -> bool:
        """Whether keys must have their real tokens first, where their order matters."""
        return self.is_ordered

    @property
    def is_aligned(self) -> bool:
        """Whether query i stands at the position of key i, and sees only what is before it, or near."""
        return self.causal

    @property
    def moves_queries(self) -> bool:
        """Whether queries go where the keys beside them have gone, and what they get comes back the same way."""
        return self.is_aligned and self.moves_keys

    def add_parameters(self, attention: Heads, factory: dict[str, Any]) -> None:
        """Register maps and parameters on ``attention``, with their first values; ``factory`` is device and dtype."""

    def reset_parameters(self, attention: Heads) -> None:
        """Give what :meth:`add_parameters` registered its first values again."""

    def read(
        self,
        attention: Heads,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        shared_projection: SequenceMap | None,
    ) -> KeysAndValues:
        """What there is to attend to in keys and values ``(B, M, C)``, which are zero at padding."""
        if shared_projection is not None:
            raise ValueError(f"shared_projection belongs to an attention with projection=None, not to {self.name}")
        keys_BHMD = attention.split_heads(run_linear(attention.k_proj, key), attention.num_kv_heads)
        values_BHMD = attention.split_heads(run_linear(attention.v_proj, value), attention.num_kv_heads)
        return KeysAndValues(keys_BHMD, values_BHMD, mask_of(padding))

    def read_chunks(
        self,
        attention: Heads,
        chunks: Chunks,
        norm: nn.LayerNorm | None,
        shared_projection: SequenceMap | None,
    ) -> KeysAndValues:
        """:meth:`read` of a sequence, normed if there is a norm, that is read chunk by chunk."""
        parts = [
            Context.read(self, attention, x, x, None, shared_projection)
            for x in (chunks.read(chunk, norm) for chunk in chunks.cut_at(1))
        ]
        keys, values = (torch.cat(tensors, dim=2) for tensors in zip(*(part[:2] for part in parts), strict=True))
        return KeysAndValues(keys, values, mask_of(chunks.padding))

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        """Output ``(B, H, N, D)``, and weights ``(B, H, N, ·)`` where they are wanted."""
        raise NotImplementedError


class AllPositions(Context):
    """Every position of the keys: ordinary attention."""

    name = "full attention"
    options = frozenset()
    no_mask = "it takes the masks that Linformer attention takes"

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        return attend(
            queries_BHND,
            context.keys,
            context.values,
            padding_mask=context.padding,
            dropout_p=attention.dropout_p,
            need_weights=call.need_weights,
        )


class EarlierPositions(Context):
    """Every position up to the query's own: ordinary causal attention."""

    name = "causal full attention"
    options = frozenset({"rotary_dim"})
    causal = True
    no_mask = "it takes the masks that Linformer attention takes"

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        past, padding = call.past, context.padding
        queries, keys, values = at_positions(self.rotary_dim, queries_BHND, context, past)
        if past is not None:
            read = FullState(keys, values, padding)
            if isinstance(past.state, FullState):
                read = past.state.followed_by(keys, values, padding)
            past.state, keys, values, padding = read, read.keys, read.values, read.padding
        return attend_to_past(
            queries, keys, values, padding_mask=padding, dropout_p=attention.dropout_p, need_weights=call.need_weights
        )


def at_positions(
    rotary_dim: int, queries_BHND: Tensor, context: KeysAndValues, past: Past | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of as many heads ``(B, H, N, D)``, turned by the positions that follow the past."""
    keys, heads = context.keys, queries_BHND.shape[1]
    if rotary_dim > 0:
        positions = positions_after(past, context.padding, keys.shape[2], keys.device)
        queries_BHND, keys = (rotate(x, positions, rotary_dim) for x in (queries_BHND, keys))
    return queries_BHND, repeat_heads(keys, heads), repeat_heads(context.values, heads)

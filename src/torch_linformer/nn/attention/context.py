"""What queries attend to, in which one attention differs from another; and that of ordinary attention, everything."""

from dataclasses import fields
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn

from torch_linformer.functional.attention import attend
from torch_linformer.functional.padding import Padding, mask_of, zero_padding
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import Attended, SoftmaxCall, attend_by_distance
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past
from torch_linformer.nn.attention.slot_maps import Pair, SequenceMap, Source
from torch_linformer.nn.options import AttentionConfig

OPTIONS_OF_HEADS = frozenset({"num_kv_heads", "head_dim", "causal"})  # options that every attention has


class HeadSizes(NamedTuple):
    """The sizes of what a context is given."""

    num_heads: int  # of queries, H
    num_kv_heads: int  # of keys and values, which divide H
    head_dim: int  # width D of a head
    key_width: int  # channels of the inputs of keys; num_kv_heads · D where it is given heads
    value_width: int

    @classmethod
    def of_heads(cls, num_heads: int, head_dim: int, num_kv_heads: int | None = None) -> Self:
        """Sizes where no inputs are known, only heads."""
        num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        return cls(num_heads, num_kv_heads, head_dim, num_kv_heads * head_dim, num_kv_heads * head_dim)


class Call(NamedTuple):
    """How queries attend in one call."""

    start: int = 0  # position of the first query, where there is a window
    past: Past | None = None  # what a causal context has read so far; the call brings it up to date
    dropout_p: float = 0.0  # probability of dropping an attention weight
    need_weights: bool = False  # also return the softmax before dropout
    # (H or 1, 2 R + 1), added to the score of the token -R … R real tokens away from the query, that of the ends to
    # those farther away. Slots and exact tokens, which have no distance, get none: their own share, the same for all of
    # them, is to be subtracted from it, which no softmax notices.
    distance_bias: Tensor | None = None

    @property
    def softmax(self) -> SoftmaxCall:
        return SoftmaxCall(self.dropout_p, self.need_weights)


class Context(nn.Module):
    """A kind of context: every position, slots, running means. It owns the parameters that it attends with.

    :meth:`read` makes of keys and values what there is to attend to, and :meth:`attend` lets queries attend to it. A
    module that has queries, keys and values of heads already calls the context itself.

    It is built from the sizes of heads and inputs and the options of the attention; ``max_len``, the longest sequence
    at first, and ``k`` are for contexts with slots, and so are ``device`` and ``dtype`` of parameters, ``factory``.
    """

    name: ClassVar[str]  # in an error message
    options: ClassVar[frozenset[str]]  # those of AttentionConfig that it has, beside those of heads
    causal: ClassVar[bool] = False  # position t attends to nothing after t, calls can go on from a Past
    takes_pieces: ClassVar[bool] = False  # rows may come in pieces, each in a process of its own
    takes_distances: ClassVar[bool] = False  # a call may have a distance_bias
    no_mask: ClassVar[str]  # why no mask of (query, key) pairs can be applied
    is_ordered = False  # it matters which real token a key is, so that padding before it or between must be moved
    moves_keys = False  # and keys must have their real tokens first
    is_aligned = False  # query i stands at the position of key i, and sees only what is before it, or near

    def __init__(
        self,
        sizes: HeadSizes,
        options: AttentionConfig = AttentionConfig(),
        max_len: int = 1,
        k: int = 1,
        **factory: Any,
    ) -> None:
        super().__init__()
        self.check_options(options)
        self.sizes, self.max_len, self.k = sizes, max_len, k
        self.window, self.rotary_dim = options.window, options.rotary_dim
        self.build(options, **factory)

    def build(self, options: AttentionConfig, **factory: Any) -> None:
        """Check what only this context has, and make its parameters."""

    @classmethod
    def check_options(cls, options: AttentionConfig) -> None:
        """Raise ``ValueError`` for a value out of range, or one that asks for something this context does not have."""
        options.check()
        for name in cls.unused_options(options):
            value, default = getattr(options, name), getattr(AttentionConfig, name)
            raise ValueError(f"{name}={value!r} has no effect on {cls.describe(options)}: leave it at {default!r}")

    @classmethod
    def unused_options(cls, options: AttentionConfig) -> list[str]:
        """The names of options that differ from their defaults, and that this context does not have."""
        used = OPTIONS_OF_HEADS | cls.options
        unread = [field for field in fields(AttentionConfig) if field.name not in used]
        return [field.name for field in unread if getattr(options, field.name) != field.default]

    @classmethod
    def describe(cls, options: AttentionConfig) -> str:
        """The context in an error message."""
        return cls.name

    @property
    def moves_queries(self) -> bool:
        """Whether queries go where the keys beside them have gone, and what they get comes back the same way."""
        return self.is_aligned and self.moves_keys

    def reset_parameters(self) -> None:
        """Give parameters their first values again."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | Padding | None = None,
        *,
        call: Call = Call(),
        shared_projection: SequenceMap | None = None,
    ) -> Attended:
        """Self-attention of one sequence, whose queries, keys and values some other module has made.

        Args:
            query: ``(B, H, N, D)``.
            key: ``(B, Hkv, N, D)``; so is ``value``.
            key_padding_mask: bool ``(B, N)``, True at padding, on any side and between real tokens. What stands there
                changes nothing. A ``Padding`` keeps what several layers ask about the mask.
            call: dropout, weights, a bias of distances, and the past of a causal context.
            shared_projection: the map to slots of a context without its own.

        Returns output ``(B, H, N, D)``, and weights ``(B, H, N, ·)`` or None; raises ``ValueError`` for shapes that do
        not fit, or a bias of distances where none can be added.
        """
        if call.distance_bias is not None and not self.takes_distances:
            raise ValueError(f"{self.name} adds no distance_bias to its scores: leave it out of the call")
        if query.shape[2] != key.shape[2] or key.shape != value.shape or query.dim() != 4:
            shapes = ", ".join(str(tuple(x.shape)) for x in (query, key, value))
            raise ValueError(f"query, key and value must be (B, H, N, D) of one sequence, got {shapes}")
        padding = key_padding_mask
        if isinstance(padding, Tensor):
            padding = Padding(padding, in_order=not self.is_ordered)
        keys, values, key_padding = self.put_in_order(key, value, padding)
        if padding is not None:
            query = padding.justify(query) if self.moves_queries else padding.clean(query)
        read = self.read(Source(Pair(keys, values), key_padding), shared_projection)
        output, weights = self.attend(query, read, call)
        if padding is None or not self.moves_queries:
            return output, weights
        return padding.restore(output), None if weights is None else padding.restore(weights)

    def put_in_order(
        self, key: Tensor, value: Tensor, padding: Padding | None
    ) -> tuple[Tensor, Tensor, Padding | None]:
        """Keys and values with zeros at padding, the real tokens first if need be; and their padding.

        They are inputs ``(B, M, C)`` or heads ``(B, H, M, D)``; the same tensor for both stays one.
        """
        if padding is None:
            return key, value, None
        put = padding.justify if self.moves_keys else padding.clean
        keys = put(key)
        return keys, keys if value is key else put(value), padding.justified if self.moves_keys else padding

    def put_queries_in_order(self, query: Tensor, key: Tensor, keys: Tensor, padding: Padding) -> Tensor:
        """Queries ``(B, N, C)`` with zeros at their own padding, moved as the keys were if they stand beside them.

        ``key`` became ``keys`` by :meth:`put_in_order`.
        """
        if query is key:
            return keys if padding.in_order or self.moves_queries == self.moves_keys else padding.clean(query)
        if self.is_aligned:
            return padding.justify(query) if self.moves_queries else padding.clean(query)
        if query.shape != key.shape:
            return query
        # Self-attention of copies, or of views: what a query has in common with a key at padding is padding itself.
        is_equal = ((query == key) | (query.isnan() & key.isnan())).all(dim=-1)
        return zero_padding(query, is_equal & padding.mask)

    def read(self, source: Source, shared_projection: SequenceMap | None = None) -> KeysAndValues:
        """What there is to attend to in a sequence: every position, in a context without slots of the whole."""
        if shared_projection is not None:
            raise ValueError(f"shared_projection belongs to an attention with projection=None, not to {self.name}")
        keys, values = source.all_heads()
        return KeysAndValues(Slots(keys, values, source.padding))

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = Call()) -> Attended:
        """Output ``(B, H, N, D)``, and weights ``(B, H, N, ·)`` where they are asked for."""
        raise NotImplementedError

    def extra_repr(self) -> str:
        return self.name


def head_sizes(
    embed_dim: int, num_heads: int, options: AttentionConfig, kdim: int | None = None, vdim: int | None = None
) -> HeadSizes:
    """The sizes of an attention of ``torch.nn``; raises ``ValueError`` for heads that do not fit."""
    num_kv_heads = num_heads if options.num_kv_heads is None else options.num_kv_heads
    if num_heads < 1 or num_kv_heads < 1:
        raise ValueError(f"num_heads and num_kv_heads must be at least 1, got {num_heads} and {num_kv_heads}")
    if options.head_dim is None and embed_dim % num_heads:
        raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}; give head_dim")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    head_dim = embed_dim // num_heads if options.head_dim is None else options.head_dim
    rotary_dim = options.rotary_dim
    if rotary_dim % 2 or not 0 <= rotary_dim <= head_dim:
        raise ValueError(f"rotary_dim must be even and lie between 0 and head_dim = {head_dim}, got {rotary_dim}")
    key_width, value_width = (embed_dim if width is None else width for width in (kdim, vdim))
    return HeadSizes(num_heads, num_kv_heads, head_dim, key_width, value_width)


class FullContext(Context):
    """Every position of the keys: ordinary attention."""

    name = "full attention"
    options = frozenset[str]()
    no_mask = "it takes the masks that Linformer attention takes"

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = Call()) -> Attended:
        slots = read.slots
        # At padding linear maps have put their biases.
        slots = slots._replace(values=zero_padding(slots.values, mask_of(slots.padding)))
        if self.takes_distances and call.distance_bias is not None:
            return attend_by_distance(queries, slots, call.distance_bias, call.softmax)
        return attend(queries, slots, call=call.softmax)


class FullContextOfDistances(FullContext):
    """Every position of the keys, and a bias of their distance in real tokens: self-attention only."""

    name = "full attention with a bias of distances"
    takes_distances = is_ordered = moves_keys = is_aligned = True

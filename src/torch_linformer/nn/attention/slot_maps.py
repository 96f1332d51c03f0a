"""E and F: how they are built and resized, and the keys and values of slots that they make, in the cheaper order."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.dynamic import Pooled
from torch_linformer.functional.padding import Padding, length_of, zero_padding
from torch_linformer.functional.products import SlotProducts, compresses_first
from torch_linformer.functional.slots import check_length, compress, compress_with_mass, scale_to_length
from torch_linformer.nn.attention.source import HeadMaps, Pair, Source
from torch_linformer.nn.dynamic_projection import DynamicProjection, real_tokens
from torch_linformer.nn.linear import does_more_than_forward, run_linear, run_linears_on_sums
from torch_linformer.nn.options import DEFAULTS, DENSE
from torch_linformer.nn.projection import SequenceProjection

SequenceMap = SequenceProjection | DynamicProjection


def build_map(
    max_len: int,
    k: int,
    width: int,
    *,
    projection: Any,
    num_heads: int | None = None,
    length_scaling: bool = DEFAULTS["length_scaling"],
    **factory: Any,
) -> SequenceMap:
    """The map of this ``projection``; ``width`` is that of what a dynamic one scores, ``factory`` device and dtype."""
    if projection == "dynamic":
        return DynamicProjection(max_len, k, width, num_heads=num_heads, **factory)
    options: dict[str, Any] = {"projection": projection, "num_heads": num_heads, "length_scaling": length_scaling}
    return SequenceProjection(max_len, k, **options, **factory)


def maps_in(owner: nn.Module) -> list[SequenceMap]:
    """Every map in ``owner``."""
    return [module for module in owner.modules() if isinstance(module, SequenceMap)]


def resize_maps(owner: nn.Module, max_len: int, mode: Literal["interpolate", "keep"]) -> None:
    """``resize_max_len`` of every map in ``owner``, or of none where one of them refuses."""
    maps = maps_in(owner)
    if not maps:
        raise ValueError(
            f"nothing to resize: this {type(owner).__name__} owns no map of a whole sequence. A causal one reads any "
            "length, and one with projection=None is given its map"
        )
    for module in maps:
        module.check_resize(max_len, mode)
    for module in maps:
        module.resize_max_len(max_len, mode)


def slots_of_chunks(projection: SequenceMap, like: Tensor, padding: Padding | None) -> "ProjectedChunks | PooledChunks":
    """What makes slots of sequences that come chunk by chunk; all have the length of ``like``."""
    if isinstance(projection, DynamicProjection):
        return PooledChunks(projection, like, padding)
    return ProjectedChunks(projection, like, padding)


class ProjectedChunks:
    """The slots that a :class:`SequenceProjection` makes of sequences chunk by chunk; all have the length of ``like``.

    Slots of a dense map are sums over all chunks; those of windows lie in one chunk each.
    """

    def __init__(self, projection: SequenceProjection, like: Tensor, padding: Padding | None) -> None:
        self.projection, self.length, self.padding = projection, length_of(like, padding), padding
        check_length(self.length, projection.max_len)
        self._parts: list[list[Tensor]] = []
        self._dtype = torch.get_default_dtype()

    def add(self, chunk: slice, scored: Tensor, sequences: Sequence[Tensor], padding: Padding | None) -> None:
        """Take the positions of ``chunk``, with this padding, of each sequence ``(B, m, C)`` or ``(B, H, m, D)``."""
        slots = [self.projection(piece, padding, all_slots=False, chunk=chunk) for piece in sequences]
        if self.projection.projection not in DENSE:
            self._parts.append(slots)
            return
        self._dtype = slots[0].dtype
        # Roundings of a sum grow with its terms: this one is kept in no less than float32.
        slots = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in slots]
        if self._parts:
            slots = [total.add_(x) for total, x in zip(self._parts[0], slots, strict=True)]
        self._parts = [slots]

    def total(self) -> list[Tensor]:
        """The slots ``(B, ·, C)`` or ``(B, H, ·, D)`` that each whole sequence reaches."""
        if self.projection.projection not in DENSE:
            return [torch.cat(parts, dim=-2) for parts in zip(*self._parts, strict=True)]
        slots = self._parts[0]
        if self.projection.length_scaling:
            slots = [scale_to_length(x, self.projection.max_len, self.length, self.padding) for x in slots]
        return [x.to(self._dtype) for x in slots]


class PooledChunks:
    """The slots that a :class:`DynamicProjection` makes of sequences chunk by chunk: a softmax over all of them."""

    def __init__(self, projection: DynamicProjection, like: Tensor, padding: Padding | None) -> None:
        check_length(length_of(like, padding), projection.max_len)
        self.projection, self.tokens = projection, real_tokens(like, padding)
        self._pooled: Pooled | None = None
        self._like: list[Tensor] = []

    def add(self, chunk: slice, scored: Tensor, sequences: Sequence[Tensor], padding: Padding | None) -> None:
        """As :meth:`ProjectedChunks.add`."""
        pooled = self.projection(scored, sequences, padding, chunk=chunk, tokens=self.tokens)
        self._pooled = pooled if self._pooled is None else self._pooled.joined(pooled)
        self._like = [x[..., :0, :] for x in sequences]

    def total(self) -> list[Tensor]:
        """The slots of each whole sequence."""
        assert self._pooled is not None
        return self.projection.slots_like(self._pooled, self._like)


class SlotMaps(NamedTuple):
    """E and F; the same map where E = F."""

    key: SequenceMap
    value: SequenceMap

    @property
    def is_one(self) -> bool:
        return self.key is self.value

    def compresses_first(self, source: Source, has_heads: bool) -> bool:
        """Whether compressing the inputs before their linear maps takes fewer multiplications."""
        if source.maps is None or not (self.key.commutes_with_channels and self.value.commutes_with_channels):
            return False
        products = SlotProducts(
            slots=self.key.reached,
            widths=source.maps.widths,
            slots_of_position=self.key.slots_of_position,
            one_compressed=self.is_one and source.is_one_input,
            has_positions=has_heads,
        )
        return compresses_first(source.length, self.key.max_len, products)

    def scored(self, inputs: Pair, sequences: Pair) -> Pair:
        """What a map that depends on the input looks at: each head's own keys and values, or the inputs."""
        return inputs if self.key.num_heads is None else sequences

    def calls(self, inputs: Pair, sequences: Pair) -> list[tuple[SequenceMap, Tensor, list[Tensor]]]:
        """Each map, with what it looks at if it depends on the input, and the sequences that it makes slots of."""
        scored = self.scored(inputs, sequences)
        if not self.is_one:
            return [(self.key, scored.key, [sequences.key]), (self.value, scored.value, [sequences.value])]
        is_one_sequence = sequences.value is sequences.key
        return [(self.key, scored.key, [sequences.key] if is_one_sequence else list(sequences))]

    def compress(self, inputs: Pair, sequences: Pair, padding: Padding | None) -> Pair:
        """Slots of ``sequences``, which are the inputs or the heads made of them."""
        slots = [map.slots_of(scored, pooled, padding) for map, scored, pooled in self.calls(inputs, sequences)]
        return Pair(slots[0][0], slots[-1][-1])

    def compress_inputs(self, inputs: Pair, maps: HeadMaps, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)`` of slots of the inputs, compressed before their channels are mixed."""
        dense = [x for x in self if isinstance(x, SequenceProjection) and x.projection in DENSE]
        if len(dense) < 2 or any(does_more_than_forward(x) for x in dense) or inputs.value is not inputs.key:
            slots = self.compress(inputs, inputs, padding)
            return self.heads_of_slots(slots, self.masses(inputs.key, padding, maps), maps, padding)
        for projection in dense:  # E and F as one matrix: the sequence is read once
            check_length(length_of(inputs.key, padding), projection.max_len)
        matrix = dense[0].matrix if self.is_one else torch.cat([x.matrix for x in dense], dim=1)
        mixed = inputs.key, matrix, padding, dense[0].length_scaling
        slots_and_mass = compress_with_mass(*mixed) if maps.has_bias else (compress(*mixed),)
        parts = [
            Pair(x, x) if self.is_one else Pair(*torch.split(x, [self.key.k, self.value.k], dim=1))
            for x in slots_and_mass
        ]
        return self.heads_of_slots(parts[0], parts[1] if maps.has_bias else None, maps, padding)

    def masses(self, sequence: Tensor, padding: Padding | None, maps: HeadMaps) -> Pair | None:
        """What the weights of each slot add up to, ``(B or 1, K)``.

        None for maps chosen by the input, where it is 1 or, without tokens, 0, and where no bias is multiplied by it.
        """
        fixed = [x for x in self if isinstance(x, SequenceProjection)]
        if len(fixed) < 2 or not maps.has_bias:
            return None
        mass_k = fixed[0].mass(sequence, padding)
        return Pair(mass_k, mass_k if self.is_one else fixed[1].mass(sequence, padding))

    def heads_of_slots(self, slots: Pair, masses: Pair | None, maps: HeadMaps, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)``, ``(Eᵀ X) W + (Eᵀ m) bᵀ``, from the slots ``(B, K, C)`` of the inputs."""
        linears = maps.key, maps.value
        if masses is not None:
            mapped = run_linears_on_sums(linears, slots, masses)
        else:
            mapped = [run_linear(linear, x) for linear, x in zip(linears, slots, strict=True)]
            if padding is not None:  # a row without tokens has no slots, and its zeros are given a bias
                mapped = [zero_padding(x, padding.empty_rows) for x in mapped]
        return maps.split(Pair(*mapped))


class SlotReader:
    """Makes the keys and values of slots of a sequence that comes chunk by chunk; in one chunk, as a rule.

    Args:
        has_heads: the heads of all positions are made in any case, for a window.
    """

    def __init__(self, maps: SlotMaps, source: Source, has_heads: bool) -> None:
        self.maps, self.source = maps, source
        self.compresses_first = maps.compresses_first(source, has_heads)
        self._slots: Pair | None = None
        self._chunks: list[ProjectedChunks | PooledChunks] = []

    def add(self, chunk: slice, inputs: Pair, heads: Pair | None) -> None:
        """Take a chunk; its heads where :attr:`compresses_first` is False."""
        source, maps = self.source, self.maps
        if source.is_whole(chunk) and self.compresses_first and source.maps is not None:
            self._slots = maps.compress_inputs(inputs, source.maps, source.padding)
            return
        sequences = inputs if self.compresses_first or heads is None else heads
        if source.is_whole(chunk):
            self._slots = maps.compress(inputs, sequences, source.padding)
            return
        calls = maps.calls(inputs, sequences)
        if not self._chunks:
            self._chunks = [slots_of_chunks(projection, source.like, source.padding) for projection, _, _ in calls]
        for chunks, (_, scored, pooled) in zip(self._chunks, calls, strict=True):
            chunks.add(chunk, scored, pooled, source.padding_of(chunk))

    def slots(self) -> Pair:
        """Keys and values ``(B, H, ·, D)`` of the slots that the whole sequence reaches."""
        if self._slots is not None:
            return self._slots
        totals = [chunks.total() for chunks in self._chunks]
        slots, source = Pair(totals[0][0], totals[-1][-1]), self.source
        if not self.compresses_first or source.maps is None:
            return slots
        masses = self.maps.masses(source.like, source.padding, source.maps)
        return self.maps.heads_of_slots(slots, masses, source.maps, source.padding)

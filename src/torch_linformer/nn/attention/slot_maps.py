r"""E and F: how they are built and resized, and the keys and values of slots that they make.

A linear map of channels and one of positions may be applied in either order, where the heads share the second:

.. math:: E^\top (m \odot (X W + b)) = (E^\top (m \odot X))\, W + (E^\top m)\, b^\top

The left side takes M·C² + M·K·C multiplications, the right side, which compresses first, M·K·C + K·C²; with E = F and
one X its compressed inputs serve keys and values. :math:`E^\top m`, by which the bias is multiplied, is the **mass** of
a slot: what its weights of real tokens add up to. It is 1 where a map's weights are a softmax.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding, length_of, mask_of, zero_padding
from torch_linformer.functional.products import SlotProducts, compresses_first
from torch_linformer.functional.slots import check_length, compress, compress_with_mass
from torch_linformer.functional.softmax import ExactPlaces
from torch_linformer.nn.chunks import chunk_padding, cut
from torch_linformer.nn.dynamic_projection import DynamicProjection, real_tokens
from torch_linformer.nn.linear import does_more_than_forward, run_linear, run_linears_on_sums
from torch_linformer.nn.options import DENSE
from torch_linformer.nn.projection import SequenceProjection

SequenceMap = SequenceProjection | DynamicProjection


def build_map(
    max_len: int,
    k: int,
    width: int,
    *,
    projection: Any,
    num_heads: int | None = None,
    length_scaling: bool = True,
    **factory: Any,
) -> SequenceMap:
    """The map of this ``projection``; ``width`` is that of what a dynamic one scores, ``factory`` device and dtype."""
    if projection == "dynamic":
        return DynamicProjection(max_len, k, width, num_heads=num_heads, **factory)
    options: dict[str, Any] = {"projection": projection, "num_heads": num_heads, "length_scaling": length_scaling}
    return SequenceProjection(max_len, k, **options, **factory)


def maps_in(owner: nn.Module) -> list[SequenceMap]:
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


class Pair(NamedTuple):
    """A sequence for the keys and one for the values: inputs ``(B, M, C)``, or heads ``(B, H, M, D)``."""

    key: Tensor
    value: Tensor


class HeadMaps(NamedTuple):
    """The linear maps from inputs to the heads of keys and values."""

    key: nn.Linear
    value: nn.Linear
    num_heads: int
    head_dim: int

    @property
    def has_bias(self) -> bool:
        return self.key.bias is not None or self.value.bias is not None

    def heads(self, inputs: Pair) -> Pair:
        """``(B, H, M, D)`` of inputs ``(B, M, C)``."""
        return self.split(Pair(run_linear(self.key, inputs.key), run_linear(self.value, inputs.value)))

    def split(self, channels: Pair) -> Pair:
        """``(B, M, H · D)`` to ``(B, H, M, D)``."""
        return Pair(*(x.view(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for x in channels))


class Source(NamedTuple):
    """What keys and values are made of: a sequence for each, in the order of real tokens that the context needs.

    In chunks keys and values have one input, and zeros are put at padding only as it is read.
    """

    whole: Pair  # inputs (B, M, C), or heads (B, H, M, D), which are their own inputs; with zeros at padding
    padding: Padding | None  # of these positions
    maps: HeadMaps | None = None  # from inputs to heads; None for heads
    chunk_size: int | None = None  # positions read at once, None for all
    norm: nn.LayerNorm | None = None  # of what is read in chunks

    @property
    def like(self) -> Tensor:
        """A sequence ``(B, M, ·)`` of the batch, the length, the dtype and the device of what is read."""
        return self.whole.key if self.whole.key.dim() == 3 else self.whole.key[:, 0]

    @property
    def is_one_input(self) -> bool:
        return self.whole.key is self.whole.value

    @property
    def length(self) -> int:
        """Positions of the whole rows, of which these may be a piece."""
        return length_of(self.like, self.padding)

    def chunks(self, multiple: int = 1) -> Iterator[slice | None]:
        """The chunks in which it is read, each beginning at a multiple of ``multiple``; None for all at once."""
        if self.chunk_size is None:
            yield None
        else:
            yield from cut(self.like.shape[1], max(self.chunk_size // multiple, 1) * multiple)

    def padding_of(self, chunk: slice | None) -> Padding | None:
        return self.padding if chunk is None else chunk_padding(self.padding, chunk)

    def inputs(self, chunk: slice | None) -> Pair:
        return self.whole if chunk is None else self._normed(self.whole.key[:, chunk], self.padding_of(chunk))

    def heads(self, inputs: Pair) -> Pair:
        """Heads ``(B, H, m, D)`` of the :meth:`inputs` of a chunk."""
        return inputs if self.maps is None else self.maps.heads(inputs)

    def all_heads(self) -> Pair:
        return join([self.heads(self.inputs(chunk)) for chunk in self.chunks()])

    def tokens(self, places: ExactPlaces) -> Pair:
        """Heads ``(B, H, T, D)`` of some tokens."""
        if self.maps is None:
            heads = self.whole.key.shape[1]
            rows = (places.take(x.transpose(1, 2).flatten(2)) for x in self.whole)
            return Pair(*(torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in rows))
        keys = places.take(self.whole.key)
        if self.chunk_size is not None:
            return self.heads(self._normed(keys, places.missing))
        return self.heads(Pair(keys, keys if self.is_one_input else places.take(self.whole.value)))

    def _normed(self, positions: Tensor, padding: Any) -> Pair:
        # In this order: a norm has a bias.
        positions = positions if self.norm is None else self.norm(positions)
        return Pair(*[zero_padding(positions, mask_of(padding))] * 2)


def join(heads: list[Pair]) -> Pair:
    """The heads of chunks, one after the other."""
    return heads[0] if len(heads) == 1 else Pair(*(torch.cat(x, dim=2) for x in zip(*heads, strict=True)))


class SlotMaps(NamedTuple):
    """E and F; the same map where E = F."""

    key: SequenceMap
    value: SequenceMap

    @property
    def is_one(self) -> bool:
        return self.key is self.value

    def compresses_first(self, source: Source, has_heads: bool) -> bool:
        """Whether compressing the inputs before their linear maps takes fewer multiplications.

        ``has_heads``: the heads of all positions are made in any case, for a window.
        """
        if source.maps is None or not (self.key.commutes_with_channels and self.value.commutes_with_channels):
            return False
        products = SlotProducts(
            slots=self.key.reached,
            widths=[(linear.in_features, linear.out_features) for linear in source.maps[:2]],
            slots_of_position=self.key.slots_of_position,
            one_compressed=self.is_one and source.is_one_input,
            has_positions=has_heads,
        )
        return compresses_first(source.length, self.key.max_len, products)

    def scored(self, inputs: Pair, sequences: Pair) -> Pair:
        """What a map that depends on the input looks at: each head's own keys and values, or the inputs."""
        return inputs if self.key.num_heads is None else sequences

    def read(self, source: Source, keeps_heads: bool) -> tuple[Pair, Pair | None]:
        """Keys and values ``(B, H, ·, D)`` of the slots that a sequence reaches; of all positions, where they are kept.

        Raises:
            ValueError: for a sequence over ``max_len``.
        """
        for projection in self:
            check_length(source.length, projection.max_len)
        first = self.compresses_first(source, keeps_heads)
        fixed = [x for x in self if isinstance(x, SequenceProjection)]
        dense = [x for x in fixed if x.projection in DENSE]
        at_once = source.chunk_size is None
        is_one_matrix = len(dense) == 2 and not any(map(does_more_than_forward, dense))
        if first and at_once and source.is_one_input and is_one_matrix:
            heads = source.all_heads() if keeps_heads else None
            return self._read_as_one(source, [x.matrix for x in dense], dense[0].length_scaling), heads
        tokens = None if at_once else real_tokens(source.like, source.padding)
        parts: list[Any] = []
        heads_of_chunks: list[Pair] = []
        for chunk in source.chunks(self.key.chunk_multiple):
            inputs = source.inputs(chunk)
            sequences = source.heads(inputs) if keeps_heads or not first else inputs
            if keeps_heads:
                heads_of_chunks.append(sequences)
            calls = self._calls(inputs, inputs if first else sequences)
            mask = source.padding_of(chunk)
            last: list[Any] = [x.slots_of(scored, pooled, mask, chunk, tokens) for x, scored, pooled in calls]
            if chunk is not None:  # the slots of each are joined with those of the ones before
                before = parts or [None] * len(calls)
                parts = [x.join(joined, added) for (x, _, _), joined, added in zip(calls, before, last, strict=True)]
        if not at_once:
            last = [
                x.total(part, end, pooled, source.length, source.padding)
                for (x, _, pooled), part, end in zip(calls, parts, last, strict=True)
            ]
        slots = Pair(last[0][0], last[-1][-1])
        if first and source.maps is not None:
            masses = None
            if len(fixed) == 2 and source.maps.has_bias:
                mass_k = fixed[0].mass(source.like, source.padding)
                masses = Pair(mass_k, mass_k if self.is_one else fixed[1].mass(source.like, source.padding))
            slots = self._heads_of_slots(slots, masses, source.maps, source.padding)
        return slots, join(heads_of_chunks) if keeps_heads else None

    def _calls(self, inputs: Pair, sequences: Pair) -> list[tuple[SequenceMap, Tensor, list[Tensor]]]:
        """Each map, with what it looks at if it depends on the input, and the sequences that it makes slots of."""
        scored = self.scored(inputs, sequences)
        if not self.is_one:
            return [(self.key, scored.key, [sequences.key]), (self.value, scored.value, [sequences.value])]
        is_one_sequence = sequences.value is sequences.key
        return [(self.key, scored.key, [sequences.key] if is_one_sequence else list(sequences))]

    def _read_as_one(self, source: Source, matrices: list[Tensor], length_scaling: bool) -> Pair:
        """Slots of one input by E and F as one matrix: the sequence is read once."""
        maps, (inputs, _), padding = source.maps, source.inputs(None), source.padding
        assert maps is not None
        mixed = inputs, matrices[0] if self.is_one else torch.cat(matrices, dim=1), padding, length_scaling
        slots_and_mass = compress_with_mass(*mixed) if maps.has_bias else (compress(*mixed),)
        parts = [
            Pair(x, x) if self.is_one else Pair(*torch.split(x, [self.key.k, self.value.k], dim=1))
            for x in slots_and_mass
        ]
        return self._heads_of_slots(parts[0], parts[1] if maps.has_bias else None, maps, padding)

    def _heads_of_slots(self, slots: Pair, masses: Pair | None, maps: HeadMaps, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)`` from the slots ``(B, K, C)`` of the inputs.

        Their masses, ``(B or 1, K)``, are None where they are 1 or, without tokens, 0.
        """
        linears = maps.key, maps.value
        if masses is not None:
            return maps.split(Pair(*run_linears_on_sums(linears, slots, masses)))
        mapped = [run_linear(linear, x) for linear, x in zip(linears, slots, strict=True)]
        if padding is not None:  # a row without tokens has no slots, and its zeros are given a bias
            mapped = [zero_padding(x, padding.empty_rows) for x in mapped]
        return maps.split(Pair(*mapped))

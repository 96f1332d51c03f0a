r"""E and F: how they are built and resized, and the keys and values of slots that they make.

A linear map of channels and one of positions may be applied in either order, where the heads share the second:

.. math:: E^\top (m \odot (X W + b)) = (E^\top (m \odot X))\, W + (E^\top m)\, b^\top

The left side takes M·C² + M·K·C multiplications, the right side, which compresses first, M·K·C + K·C²; with E = F and
one X its compressed inputs serve keys and values. :math:`E^\top m`, by which the bias is multiplied, is the **mass** of
a slot: what its weights of real tokens add up to. It is 1 where a map's weights are a softmax.
"""

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.functional.products import SlotProducts, compresses_first
from torch_linformer.functional.slots import check_length, compress, compress_with_mass
from torch_linformer.nn.attention.source import HeadMaps, Pair, Source, join
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
        compresses_first = self.compresses_first(source, keeps_heads)
        if source.chunk_size is not None:
            return self._read_chunks(source, compresses_first, keeps_heads)
        heads = source.all_heads() if keeps_heads or not compresses_first else None
        if source.maps is not None and compresses_first:
            slots = self._compress_inputs(source.inputs(), source.maps, source.padding)
        else:
            slots = self._compress(source.inputs(), heads or source.inputs(), source.padding)
        return slots, heads if keeps_heads else None

    def _read_chunks(self, source: Source, compresses_first: bool, keeps_heads: bool) -> tuple[Pair, Pair | None]:
        """:meth:`read` chunk by chunk: the slots of each are joined with those of the ones before."""
        parts, heads, tokens = list[Any](), list[Pair](), real_tokens(source.like, source.padding)
        for chunk in source.chunks(self.key.chunk_multiple):
            inputs = source.inputs(chunk)
            sequences = inputs if compresses_first and not keeps_heads else source.heads(inputs)
            if keeps_heads:
                heads.append(sequences)
            calls = self._calls(inputs, inputs if compresses_first else sequences)
            mask = source.padding_of(chunk)
            last: list[Any] = [x.slots_of_chunk(scored, pooled, mask, chunk, tokens) for x, scored, pooled in calls]
            before = parts or [None] * len(calls)
            parts = [x.join(joined, added) for (x, _, _), joined, added in zip(calls, before, last, strict=True)]
        totals = [
            x.total(part, end, pooled, source.length, source.padding)
            for (x, _, pooled), part, end in zip(calls, parts, last, strict=True)
        ]
        slots = Pair(totals[0][0], totals[-1][-1])
        if source.maps is not None and compresses_first:
            masses = self._masses(source.like, source.padding, source.maps)
            slots = self._heads_of_slots(slots, masses, source.maps, source.padding)
        return slots, join(heads) if keeps_heads else None

    def _calls(self, inputs: Pair, sequences: Pair) -> list[tuple[SequenceMap, Tensor, list[Tensor]]]:
        """Each map, with what it looks at if it depends on the input, and the sequences that it makes slots of."""
        scored = self.scored(inputs, sequences)
        if not self.is_one:
            return [(self.key, scored.key, [sequences.key]), (self.value, scored.value, [sequences.value])]
        is_one_sequence = sequences.value is sequences.key
        return [(self.key, scored.key, [sequences.key] if is_one_sequence else list(sequences))]

    def _compress(self, inputs: Pair, sequences: Pair, padding: Padding | None) -> Pair:
        """Slots of ``sequences``, which are the inputs or the heads made of them."""
        slots = [x.slots_of(scored, pooled, padding) for x, scored, pooled in self._calls(inputs, sequences)]
        return Pair(slots[0][0], slots[-1][-1])

    def _compress_inputs(self, inputs: Pair, maps: HeadMaps, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)`` of slots of the inputs, compressed before their channels are mixed."""
        dense = [x for x in self if isinstance(x, SequenceProjection) and x.projection in DENSE]
        if len(dense) < 2 or any(does_more_than_forward(x) for x in dense) or inputs.value is not inputs.key:
            slots = self._compress(inputs, inputs, padding)
            return self._heads_of_slots(slots, self._masses(inputs.key, padding, maps), maps, padding)
        # E and F as one matrix: the sequence is read once.
        matrix = dense[0].matrix if self.is_one else torch.cat([x.matrix for x in dense], dim=1)
        mixed = inputs.key, matrix, padding, dense[0].length_scaling
        slots_and_mass = compress_with_mass(*mixed) if maps.has_bias else (compress(*mixed),)
        parts = [
            Pair(x, x) if self.is_one else Pair(*torch.split(x, [self.key.k, self.value.k], dim=1))
            for x in slots_and_mass
        ]
        return self._heads_of_slots(parts[0], parts[1] if maps.has_bias else None, maps, padding)

    def _masses(self, sequence: Tensor, padding: Padding | None, maps: HeadMaps) -> Pair | None:
        """The mass of each slot, ``(B or 1, K)``; None where it is 1 or, without tokens, 0, or there is no bias."""
        fixed = [x for x in self if isinstance(x, SequenceProjection)]
        if len(fixed) < 2 or not maps.has_bias:
            return None
        mass_k = fixed[0].mass(sequence, padding)
        return Pair(mass_k, mass_k if self.is_one else fixed[1].mass(sequence, padding))

    def _heads_of_slots(self, slots: Pair, masses: Pair | None, maps: HeadMaps, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)`` from the slots ``(B, K, C)`` of the inputs, and their masses."""
        linears = maps.key, maps.value
        if masses is not None:
            mapped = run_linears_on_sums(linears, slots, masses)
        else:
            mapped = [run_linear(linear, x) for linear, x in zip(linears, slots, strict=True)]
            if padding is not None:  # a row without tokens has no slots, and its zeros are given a bias
                mapped = [zero_padding(x, padding.empty_rows) for x in mapped]
        return maps.split(Pair(*mapped))

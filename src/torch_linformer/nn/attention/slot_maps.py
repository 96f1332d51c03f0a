"""E and F of an attention at work: the keys and values of slots, in the order of products that costs less."""

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.products import count_multiplications
from torch_linformer.nn.chunks import Chunks, DynamicSlotsOfChunks, SlotsOfChunks
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.maps import SequenceMap


class Pair(NamedTuple):
    """A sequence for the keys and one for the values: inputs ``(B, M, C)``, or heads ``(B, H, M, D)``."""

    key: Tensor
    value: Tensor


class SlotMaps(NamedTuple):
    """E and F; the same map where E = F."""

    of_keys: SequenceMap
    of_values: SequenceMap

    @classmethod
    def of(cls, attention: Heads, shared: SequenceMap | None) -> "SlotMaps":
        """The attention's own, or what it is handed."""
        proj_k, proj_v = (cast(SequenceMap | None, x) for x in (attention.proj_k, attention.proj_v))
        if proj_k is not None and shared is not None:
            raise ValueError("this attention owns its maps: shared_projection belongs to one with projection=None")
        proj_k = shared if proj_k is None else proj_k
        if proj_k is None:
            raise ValueError("this attention owns no projection (projection=None): pass shared_projection")
        return cls(proj_k, proj_k if proj_v is None else proj_v)

    @property
    def is_one(self) -> bool:
        return self.of_keys is self.of_values

    @property
    def score_inputs(self) -> bool:
        """Whether they look at the inputs: a map that depends on the input, the same for all heads."""
        return isinstance(self.of_keys, DynamicProjection) and self.of_keys.num_heads is None

    def compress_first(self, attention: Heads, length: int, same_source: bool, has_positions: bool) -> bool:
        """Whether compressing the inputs before ``k_proj`` and ``v_proj`` takes fewer multiplications."""
        if not (self.of_keys.commutes_with_channels and self.of_values.commutes_with_channels):
            return False
        # A compiled graph serves many lengths: deciding on the actual one would tie the graph to it.
        length = self.of_keys.max_len if torch.compiler.is_compiling() else length
        counted = count_multiplications(
            length,
            self.of_keys.reached(length),
            [(linear.in_features, linear.out_features) for linear in (attention.k_proj, attention.v_proj)],
            slots_of_position=self.of_keys.slots_of_position,
            one_compressed=self.is_one and same_source,
            has_positions=has_positions,
        )
        return counted.compress_first < counted.project_last

    def compress(self, inputs: Pair, sequences: Pair, padding: Padding | None) -> Pair:
        """Slots of ``sequences``, which are the inputs or the heads made of them."""
        scored = self.scored(inputs, sequences)
        if self.is_one:
            slots = self.of_keys.slots_of(scored.key, _once(sequences), padding)
            return Pair(slots[0], slots[-1])
        slots_k = self.of_keys.slots_of(scored.key, [sequences.key], padding)
        return Pair(slots_k[0], self.of_values.slots_of(scored.value, [sequences.value], padding)[0])

    def scored(self, inputs: Pair, sequences: Pair) -> Pair:
        """What a map that depends on the input looks at: each head's own keys and values, or the inputs."""
        return inputs if self.of_keys.num_heads is None else sequences


class SlotsInTheMaking:
    """The slots of keys and values, of a sequence that comes chunk by chunk."""

    def __init__(self, maps: SlotMaps, chunks: Chunks) -> None:
        self.maps = maps
        self._of_keys, self._of_values = (
            (DynamicSlotsOfChunks if isinstance(each, DynamicProjection) else SlotsOfChunks)(each, chunks)  # type: ignore[arg-type]
            for each in maps
        )

    def add(self, chunk: slice, inputs: Pair, sequences: Pair) -> None:
        """Take the positions of ``chunk``; arguments as those of :meth:`SlotMaps.compress`."""
        scored = self.maps.scored(inputs, sequences)
        if self.maps.is_one:
            self._of_keys.add(chunk, scored.key, _once(sequences))
            return
        self._of_keys.add(chunk, scored.key, [sequences.key])
        self._of_values.add(chunk, scored.value, [sequences.value])

    def total(self) -> Pair:
        """The slots that the whole sequence reaches."""
        slots = self._of_keys.total()
        return Pair(slots[0], slots[-1] if self.maps.is_one else self._of_values.total()[0])


def heads_of_slots(attention: Heads, slots: Pair, maps: SlotMaps, sequence: Tensor, padding: Padding | None) -> Pair:
    """Keys and values ``(B, H, K, D)`` from the slots ``(B, K, C)`` of the inputs themselves."""
    linears, heads = (attention.k_proj, attention.v_proj), attention.num_kv_heads
    ones = sequence.new_ones(1 if padding is None else sequence.shape[0], sequence.shape[1], 1)
    mapped = (_map_channels(*each, ones, padding) for each in zip(linears, slots, maps, strict=True))
    return Pair(*(attention.split_heads(x, heads) for x in mapped))


def _map_channels(
    linear: nn.Linear, slots: Tensor, projection: SequenceMap, ones: Tensor, padding: Padding | None
) -> Tensor:
    """``(Eᵀ X) W + (Eᵀ m) bᵀ``, where b is what the map makes of a zero, called once for both.

    So adapters around the map take part, and nobody else reads its parameters.
    """
    if linear.bias is None:
        return run_linear(linear, slots)
    if isinstance(projection, DynamicProjection):  # whose columns sum to 1, except in a row of nothing but padding
        mapped = run_linear(linear, slots)
        return mapped if padding is None else zero_padding(mapped, padding.trailing.all(dim=-1, keepdim=True))
    mapped, bias = torch.split(run_linear(linear, F.pad(slots, (0, 0, 0, 1))), [slots.shape[1], 1], dim=1)
    mass: Tensor = projection(ones, padding, all_slots=False)
    return mapped + (mass - 1) * bias


def _once(pair: Pair) -> list[Tensor]:
    """One sequence where both are the same."""
    return [pair.key] if pair.value is pair.key else [pair.key, pair.value]

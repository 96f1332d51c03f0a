"""E and F of an attention at work: the keys and values of slots, in the order of products that costs less."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from torch_linformer.functional.padding import Padding, length_of, zero_padding
from torch_linformer.functional.projection import check_length, compress, compress_with_mass
from torch_linformer.functional.torch_state import records_a_graph
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.products import count_multiplications
from torch_linformer.nn.chunks import Chunks, DynamicSlotsOfChunks, SlotsOfChunks
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.nn.linear import does_more_than_forward, run_linear, run_linears_on_sums
from torch_linformer.nn.maps import SequenceMap
from torch_linformer.nn.options import DENSE
from torch_linformer.nn.projection import SequenceProjection


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
        length = self.of_keys.max_len if records_a_graph() else length
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

    def compress_inputs(self, attention: Heads, inputs: Pair, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)`` of slots of the inputs, compressed before their channels are mixed."""
        dense = [x for x in self if isinstance(x, SequenceProjection) and x.projection in DENSE]
        if len(dense) < 2 or any(does_more_than_forward(x) for x in dense) or inputs.value is not inputs.key:
            slots = self.compress(inputs, inputs, padding)
            masses = self.masses(attention, inputs.key, padding)
        else:  # E and F as one matrix: the sequence is read once
            for each in dense:
                check_length(length_of(inputs.key, padding), each.max_len)
            matrix = dense[0].matrix if self.is_one else torch.cat([x.matrix for x in dense], dim=1)
            if _has_bias(attention):
                both = compress_with_mass(inputs.key, matrix, padding, dense[0].length_scaling)
                slots, masses = (self._parts(x) for x in both)
            else:
                slots, masses = self._parts(compress(inputs.key, matrix, padding, dense[0].length_scaling)), None
        return self.heads_of_slots(attention, slots, masses, padding)

    def _parts(self, of_both: Tensor) -> Pair:
        """What belongs to keys and to values, of slots ``(B, K, C)`` or masses ``(B, K)`` of E and F side by side."""
        if self.is_one:
            return Pair(of_both, of_both)
        return Pair(*torch.split(of_both, [self.of_keys.k, self.of_values.k], dim=1))

    def masses(self, attention: Heads, sequence: Tensor, padding: Padding | None) -> Pair | None:
        """What the weights of each slot add up to, ``(B or 1, K)``.

        None for maps chosen by the input, where it is 1 or, without tokens, 0, and where no bias is multiplied by it.
        """
        fixed = [x for x in self if isinstance(x, SequenceProjection)]
        if len(fixed) < 2 or not _has_bias(attention):
            return None
        of_keys = fixed[0].mass(sequence, padding)
        return Pair(of_keys, of_keys if self.is_one else fixed[1].mass(sequence, padding))

    def heads_of_slots(self, attention: Heads, slots: Pair, masses: Pair | None, padding: Padding | None) -> Pair:
        """Keys and values ``(B, H, K, D)``, ``(Eᵀ X) W + (Eᵀ m) bᵀ``, from the slots ``(B, K, C)`` of the inputs."""
        linears = attention.k_proj, attention.v_proj
        if masses is not None:
            mapped = run_linears_on_sums(linears, slots, masses)
        else:
            mapped = [run_linear(*each) for each in zip(linears, slots, strict=True)]
            if padding is not None:  # a row without tokens has no slots, and its zeros are given a bias
                empty = padding.once("rows without tokens", lambda: padding.tokens == 0)
                mapped = [zero_padding(x, empty) for x in mapped]
        return Pair(*(attention.split_heads(x, attention.num_kv_heads) for x in mapped))

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


def _has_bias(attention: Heads) -> bool:
    """Whether a bias is added to keys or values."""
    return attention.k_proj.bias is not None or attention.v_proj.bias is not None


def _once(pair: Pair) -> list[Tensor]:
    """One sequence where both are the same."""
    return [pair.key] if pair.value is pair.key else [pair.key, pair.value]

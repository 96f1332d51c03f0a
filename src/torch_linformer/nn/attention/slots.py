"""The context of Linformer attention: K slots that a map makes of the whole sequence."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.attention import attend, repeat_heads
from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.functional.window import attend_with_window
from torch_linformer.nn.attention.context import Attended, Call, Context
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.products import count_multiplications
from torch_linformer.nn.chunks import Chunks, SlotsOfChunks
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.options import DEFAULTS, DENSE, PARAMETERLESS, AttentionOptions
from torch_linformer.nn.projection import SequenceProjection

SLOT_BIASES = ("slot_bias_k", "slot_bias_v")


class Slots(Context):
    """K slots, each a mixture of all positions, and with a ``window`` the positions near the query themselves.

    Adds ``proj_k`` and ``proj_v``, E and F, each a :class:`SequenceProjection` or None; and ``slot_bias_k`` and
    ``slot_bias_v``, each a parameter or None.
    """

    name = "slots of the whole sequence"
    options = frozenset({"projection", "sharing", "length_scaling", "window", "slot_bias"})
    no_mask = "a slot mixes all positions, so no score belongs to one (query, key) pair"

    def __init__(self, options: AttentionOptions, max_len: int, k: int) -> None:
        super().__init__(options, max_len, k)
        if options["sharing"] == "layerwise":
            raise ValueError(
                "sharing='layerwise' shares one projection among layers, so a lone layer cannot own it: "
                "use LinformerEncoder, or sharing='kv' for one projection in this layer"
            )
        self.projection, self.sharing = options["projection"], options["sharing"]
        self.length_scaling, self.has_bias = options["length_scaling"], options["slot_bias"]

    @classmethod
    def unused_options(cls, options: AttentionOptions) -> list[str]:
        projection, without = options["projection"], list[str]()
        if projection is None or projection in PARAMETERLESS:
            without = ["sharing", "length_scaling"]  # no parameters of its own to share
        elif projection not in DENSE:
            without = ["length_scaling"]
        unshared = [name for name in without if options[name] != DEFAULTS[name]]  # type: ignore[literal-required]
        return [*super().unused_options(options), *unshared]

    @classmethod
    def describe(cls, options: AttentionOptions) -> str:
        projection = options["projection"]
        return cls.name if projection is None else f"slots made by projection={projection!r}"

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def is_aligned(self) -> bool:
        return self.window is not None

    def add_parameters(self, attention: Heads, factory: dict[str, Any]) -> None:
        attention.register_module("proj_k", None)
        attention.register_module("proj_v", None)
        if self.projection is not None:
            options: dict[str, Any] = {
                "projection": self.projection,
                "num_heads": attention.num_kv_heads if self.sharing == "none" else None,
                "length_scaling": self.length_scaling,
                **factory,
            }
            attention.proj_k = SequenceProjection(self.max_len, self.k, **options)
            if self.sharing != "kv" and self.projection not in PARAMETERLESS:
                attention.proj_v = SequenceProjection(self.max_len, self.k, **options)
        for name in SLOT_BIASES:
            shape = attention.num_kv_heads, self.k, attention.head_dim
            bias_HKD = nn.Parameter(torch.zeros(shape, **factory)) if self.has_bias else None
            attention.register_parameter(name, bias_HKD)

    def reset_parameters(self, attention: Heads) -> None:
        for projection in (attention.proj_k, attention.proj_v):
            if isinstance(projection, SequenceProjection):
                projection.reset_parameters()
        if self.has_bias:
            for name in SLOT_BIASES:
                nn.init.zeros_(attention.get_parameter(name))

    def read(
        self,
        attention: Heads,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        shared_projection: SequenceProjection | None,
    ) -> KeysAndValues:
        proj_k, proj_v = _maps(attention, shared_projection)
        padding = None if padding is None else padding.justified
        near = super().read(attention, key, value, padding, None) if self.window else None
        if self._compresses_first(attention, proj_k, proj_v, key.shape[1], value is key):
            slots_k = proj_k(key, padding, all_slots=False)
            slots_v = slots_k if proj_v is proj_k and value is key else proj_v(value, padding, all_slots=False)
            keys, values = _heads_of_slots(attention, slots_k, slots_v, proj_k, proj_v, key, padding)
        else:
            positions = near or super().read(attention, key, value, padding, None)
            keys = proj_k(positions.keys, padding, all_slots=False)
            values = proj_v(positions.values, padding, all_slots=False)
        return _reached_slots(keys, values, proj_k, key, padding, near)

    def read_chunks(
        self,
        attention: Heads,
        chunks: Chunks,
        norm: nn.LayerNorm | None,
        shared_projection: SequenceProjection | None,
    ) -> KeysAndValues:
        proj_k, proj_v = _maps(attention, shared_projection)
        compresses_first = self._compresses_first(attention, proj_k, proj_v, chunks.length, True)
        one_for_both = compresses_first and proj_v is proj_k
        slots_k, slots_v = SlotsOfChunks(proj_k, chunks), SlotsOfChunks(proj_v, chunks)
        near = super().read_chunks(attention, chunks, norm, None) if self.window else None
        for chunk in chunks.cut_at(1 if proj_k.projection in DENSE else proj_k.window):
            if compresses_first:
                key = value = chunks.read(chunk, norm)
            elif near is not None:
                key, value = near.keys[:, :, chunk], near.values[:, :, chunk]
            else:
                x = chunks.read(chunk, norm)
                key, value, _, _, _ = super().read(attention, x, x, None, None)
            slots_k.add(chunk, key)
            if not one_for_both:
                slots_v.add(chunk, value)
        keys = slots_k.total()
        values = keys if one_for_both else slots_v.total()
        if compresses_first:
            keys, values = _heads_of_slots(attention, keys, values, proj_k, proj_v, chunks.sequence, chunks.padding)
        return _reached_slots(keys, values, proj_k, chunks.sequence, chunks.padding, near)

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        if self.has_bias:
            context = _with_bias(attention, context)
        keys, values, slot_padding, near, _ = context
        if near is None:
            output, weights = attend(
                queries_BHND,
                keys,
                values,
                padding_mask=slot_padding,
                dropout_p=attention.dropout_p,
                need_weights=call.need_weights,
            )
        else:
            assert self.window is not None
            heads, reach = attention.num_heads, self.window // 2
            first, last = max(0, call.start - reach), call.start + queries_BHND.shape[2] + reach
            near_keys, near_values = near.keys[:, :, first:last], near.values[:, :, first:last]
            output, weights = attend_with_window(
                queries_BHND,
                repeat_heads(keys, heads),
                repeat_heads(values, heads),
                repeat_heads(near_keys, heads),
                repeat_heads(near_values, heads),
                reach,
                slot_padding=slot_padding,
                key_padding=None if near.padding is None else near.padding[:, first:last],
                offset=call.start - first,
                dropout_p=attention.dropout_p,
                need_weights=call.need_weights,
            )
        return output, None if weights is None else context.over_all_slots(weights)

    def _compresses_first(
        self,
        attention: Heads,
        proj_k: SequenceProjection,
        proj_v: SequenceProjection,
        length: int,
        same_source: bool,
    ) -> bool:
        """Whether compressing the inputs before ``k_proj`` and ``v_proj`` takes fewer multiplications."""
        if not (proj_k.commutes_with_channels and proj_v.commutes_with_channels):
            return False
        # A compiled graph serves many lengths: deciding on the actual one would tie the graph to it.
        length = proj_k.max_len if torch.compiler.is_compiling() else length
        counted = count_multiplications(
            length,
            proj_k.reached(length),
            [(linear.in_features, linear.out_features) for linear in (attention.k_proj, attention.v_proj)],
            slots_of_position=proj_k.slots_of_position,
            one_compressed=proj_v is proj_k and same_source,
            has_positions=bool(self.window),
        )
        return counted.compress_first < counted.project_last


def _maps(attention: Heads, shared: SequenceProjection | None) -> tuple[SequenceProjection, SequenceProjection]:
    """E and F: the attention's own, or what it is handed."""
    proj_k, proj_v = (cast(SequenceProjection | None, x) for x in (attention.proj_k, attention.proj_v))
    if proj_k is not None and shared is not None:
        raise ValueError("this attention owns its maps: shared_projection belongs to one with projection=None")
    proj_k = shared if proj_k is None else proj_k
    if proj_k is None:
        raise ValueError("this attention owns no projection (projection=None): pass shared_projection")
    return proj_k, proj_k if proj_v is None else proj_v


def _heads_of_slots(
    attention: Heads,
    slots_k_BKC: Tensor,
    slots_v_BKC: Tensor,
    proj_k: SequenceProjection,
    proj_v: SequenceProjection,
    key: Tensor,
    padding: Padding | None,
) -> tuple[Tensor, Tensor]:
    """Keys and values ``(B, H, K, D)`` from the slots of the inputs themselves."""
    ones = key.new_ones(1 if padding is None else key.shape[0], key.shape[1], 1)
    keys = _map_channels(attention.k_proj, slots_k_BKC, proj_k, ones, padding)
    values = _map_channels(attention.v_proj, slots_v_BKC, proj_v, ones, padding)
    heads = attention.num_kv_heads
    return attention.split_heads(keys, heads), attention.split_heads(values, heads)


def _map_channels(
    linear: nn.Linear, slots: Tensor, projection: SequenceProjection, ones: Tensor, padding: Padding | None
) -> Tensor:
    """``(Eᵀ X) W + (Eᵀ m) bᵀ``, where b is what the map makes of a zero, called once for both.

    So adapters around the map take part, and nobody else reads its parameters.
    """
    if linear.bias is None:
        return run_linear(linear, slots)
    mapped, bias = torch.split(run_linear(linear, F.pad(slots, (0, 0, 0, 1))), [slots.shape[1], 1], dim=1)
    mass: Tensor = projection(ones, padding, all_slots=False)
    return mapped + (mass - 1) * bias


def _reached_slots(
    keys: Tensor,
    values: Tensor,
    projection: SequenceProjection,
    sequence: Tensor,
    padding: Padding | None,
    near: KeysAndValues | None,
) -> KeysAndValues:
    """The slots that a sequence reaches, so that a short text pays for no more, and what is near."""
    slot_padding = projection.slot_padding_mask(sequence, padding, all_slots=False)
    return KeysAndValues(keys, values, slot_padding, near, projection.k)


def _with_bias(attention: Heads, slots: KeysAndValues) -> KeysAndValues:
    """The slots with their biases, added where they are used: slots of chunks are made outside a call."""
    bias_k, bias_v = cast(Tensor, attention.slot_bias_k), cast(Tensor, attention.slot_bias_v)
    reached = slots.keys.shape[2]
    keys, values = slots.keys + bias_k[:, :reached], slots.values + bias_v[:, :reached]
    # A slot without a token is nothing, and its bias too: a row with only padding attends to all of them.
    return slots._replace(keys=keys, values=zero_padding(values, slots.padding))

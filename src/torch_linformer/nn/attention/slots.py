"""The context of Linformer attention: K slots that a map makes of the whole sequence."""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.attention import attend
from torch_linformer.functional.padding import Once, Padding, afresh, length_of, zero_padding
from torch_linformer.functional.window import attend_with_window
from torch_linformer.nn.attention.context import Attended, Call, Context
from torch_linformer.nn.attention.exact_tokens import ExactTokens, Places
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.slot_maps import Pair, SlotMaps, SlotsInTheMaking
from torch_linformer.nn.chunks import Chunks
from torch_linformer.nn.maps import SequenceMap, build_map
from torch_linformer.nn.options import (
    COUNTED,
    DEFAULTS,
    DENSE,
    ONE_MAP,
    PARAMETERLESS,
    PER_HEAD,
    AttentionOptions,
    check_k,
)

SLOT_BIASES = ("slot_bias_k", "slot_bias_v")
LEAST_TOKENS = 1e-6  # that a slot counts for: empty ones are masked, and have a logarithm
SLOT_PARAMETERS = (*SLOT_BIASES, "slot_mass")


class Slots(Context):
    """K slots, each a mixture of all positions; with a ``window`` the positions near the query, and the exact tokens.

    Adds ``proj_k`` and ``proj_v``, E and F, each a :data:`SequenceMap` or None; ``slot_bias_k`` and ``slot_bias_v``;
    and ``slot_mass``, each a parameter or None.
    """

    name = "slots of the whole sequence"
    takes_pieces = True
    options = frozenset(
        {"projection", "sharing", "length_scaling", "window", "slot_bias", "slot_mass", "exact_first", "exact_last"}
    )
    no_mask = "a slot mixes all positions, so no score belongs to one (query, key) pair"

    def __init__(self, options: AttentionOptions, max_len: int, k: int) -> None:
        super().__init__(options, max_len, k)
        check_slots(k, max_len, self.window)
        if options["sharing"] == "layerwise":
            raise ValueError(
                "sharing='layerwise' shares one projection among layers, so a lone layer cannot own it: "
                "use LinformerEncoder, or sharing='kv' for one projection in this layer"
            )
        self.projection, self.sharing = options["projection"], options["sharing"]
        self.length_scaling, self.has_bias = options["length_scaling"], options["slot_bias"] and k > 0
        self.mass = options["slot_mass"] if k > 0 else "none"
        self.exact = ExactTokens(options["exact_first"], options["exact_last"])
        self.exact.check(max_len)

    @classmethod
    def unused_options(cls, options: AttentionOptions) -> list[str]:
        projection, without = options["projection"], list[str]()
        if projection is None or projection in PARAMETERLESS:
            without = ["sharing"]  # no parameters of its own to share
        if projection not in DENSE:
            without.append("length_scaling")
        if projection is not None and projection not in COUNTED:
            without.append("slot_mass")
        unused = [name for name in without if options[name] != DEFAULTS[name]]  # type: ignore[literal-required]
        return [*super().unused_options(options), *unused]

    @classmethod
    def describe(cls, options: AttentionOptions) -> str:
        projection = options["projection"]
        return cls.name if projection is None else f"slots made by projection={projection!r}"

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def moves_keys(self) -> bool:
        # A dense map finds the row of each real token, wherever it stands.
        return self.window is not None or self.exact.number > 0 or self.projection not in DENSE

    @property
    def is_aligned(self) -> bool:
        return self.window is not None

    def add_parameters(self, attention: Heads, factory: dict[str, Any]) -> None:
        attention.register_module("proj_k", None)
        attention.register_module("proj_v", None)
        heads, width = attention.num_kv_heads, attention.head_dim
        if self.projection is not None and self.k > 0:
            per_head = self.sharing in PER_HEAD
            options = {"projection": self.projection, "length_scaling": self.length_scaling, **factory}
            options["num_heads"] = heads if per_head else None
            linears = {"proj_k": attention.k_proj, "proj_v": attention.v_proj}
            if self.sharing in ONE_MAP or self.projection in PARAMETERLESS:
                del linears["proj_v"]
            for name, linear in linears.items():
                scored = width if per_head else linear.in_features
                attention.register_module(name, build_map(self.max_len, self.k, scored, **options))
        for name in SLOT_BIASES:
            bias_HKD = nn.Parameter(torch.zeros(heads, self.k, width, **factory)) if self.has_bias else None
            attention.register_parameter(name, bias_HKD)
        mass_HK = nn.Parameter(torch.zeros(heads, self.k, **factory)) if self.mass == "learned" else None
        attention.register_parameter("slot_mass", mass_HK)

    def reset_parameters(self, attention: Heads) -> None:
        for projection in (attention.proj_k, attention.proj_v):
            if isinstance(projection, SequenceMap):
                projection.reset_parameters()
        for name in SLOT_PARAMETERS:
            if getattr(attention, name) is not None:
                nn.init.zeros_(attention.get_parameter(name))

    def read(
        self,
        attention: Heads,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        shared_projection: SequenceMap | None,
    ) -> KeysAndValues:
        positions = super().read(attention, key, value, padding, None) if self.window else None
        near, exact = None if positions is None else positions.around(padding, self._reach), None
        if self.exact.number:
            places = self.exact.places(key, padding)
            exact_k = places.take(key)
            exact = super().read(attention, exact_k, exact_k if value is key else places.take(value), None, None)
            near, exact = _apart(near, exact, places, key.shape[1], self._reach)
        if self.k == 0:
            return _without_slots(attention, key)._replace(near=near, exact=exact)
        maps, inputs = SlotMaps.of(attention, shared_projection), Pair(key, value)
        if maps.compress_first(attention, length_of(key, padding), value is key, bool(self.window)):
            slots = maps.compress_inputs(attention, inputs, padding)
        else:
            positions = positions or super().read(attention, key, value, padding, None)
            slots = maps.compress(inputs, Pair(positions.keys, positions.values), padding)
        return self._context(slots, maps, key, padding)._replace(near=near, exact=exact)

    def read_chunks(
        self,
        attention: Heads,
        chunks: Chunks,
        norm: nn.LayerNorm | None,
        shared_projection: SequenceMap | None,
    ) -> KeysAndValues:
        near = super().read_chunks(attention, chunks, norm, None) if self.window else None
        exact = None
        if self.exact.number:
            places = self.exact.places(chunks.sequence, chunks.padding)
            x = chunks.normed(places.take(chunks.sequence), places.missing, norm)
            exact = super().read(attention, x, x, None, None)
            near, exact = _apart(near, exact, places, chunks.length, self._reach)
        if self.k == 0:
            return _without_slots(attention, chunks.sequence)._replace(near=near, exact=exact)
        maps = SlotMaps.of(attention, shared_projection)
        compresses_first = maps.compress_first(attention, chunks.length, True, bool(self.window))
        slots_of_chunks = SlotsInTheMaking(maps, chunks)
        for chunk in chunks.cut_at(maps.of_keys.chunk_multiple):
            heads = None if near is None else Pair(near.keys[:, :, chunk], near.values[:, :, chunk])
            if heads is not None and not compresses_first and not maps.score_inputs:
                slots_of_chunks.add(chunk, heads, heads)
                continue
            x = chunks.read(chunk, norm)
            inputs = Pair(x, x)
            if not compresses_first and heads is None:
                positions = super().read(attention, x, x, None, None)
                heads = Pair(positions.keys, positions.values)
            slots_of_chunks.add(chunk, inputs, inputs if compresses_first or heads is None else heads)
        slots = slots_of_chunks.total()
        if compresses_first:
            masses = maps.masses(attention, chunks.sequence, chunks.padding)
            slots = maps.heads_of_slots(attention, slots, masses, chunks.padding)
        return self._context(slots, maps, chunks.sequence, chunks.padding)._replace(near=near, exact=exact)

    def _context(self, slots: Pair, maps: SlotMaps, sequence: Tensor, padding: Padding | None) -> KeysAndValues:
        """The slots that a sequence reaches, so that a short text pays for no more."""
        proj, log_tokens = maps.of_keys, None
        if self.mass != "none":
            tokens = proj.tokens_of_slots(sequence, padding).to(torch.promote_types(sequence.dtype, torch.float32))
            log_tokens = tokens.clamp(min=LEAST_TOKENS).log()
        slot_padding = proj.slot_padding_mask(sequence, padding, all_slots=False)
        return KeysAndValues(slots.key, slots.value, slot_padding, num_slots=proj.k, log_tokens=log_tokens)

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        if self.has_bias:
            context = _with_bias(attention, context)
        once = self._once(attention, context, call)
        keys, values, slot_padding, score_bias = self._slots_and_exact(attention, context, once)
        near = context.near
        if near is None:
            output, weights = attend(
                queries_BHND,
                keys,
                values,
                padding_mask=slot_padding,
                score_bias=score_bias,
                dropout_p=attention.dropout_p,
                need_weights=call.need_weights,
            )
        else:
            reach, start = self._reach, near.before + call.start
            first, last = max(0, start - reach), start + queries_BHND.shape[2] + reach
            near_keys, near_values = near.keys[:, :, first:last], near.values[:, :, first:last]
            output, weights = attend_with_window(
                queries_BHND,
                keys,
                values,
                near_keys,
                near_values,
                reach,
                slot_padding=slot_padding,
                slot_bias=score_bias,
                key_padding=None if near.padding is None else near.padding[:, first:last],
                offset=start - first,
                dropout_p=attention.dropout_p,
                need_weights=call.need_weights,
                once=once,
            )
        return output, None if weights is None else context.over_all_slots(weights)

    @property
    def _reach(self) -> int:
        """Positions that a window holds on either side of its query."""
        return 0 if self.window is None else self.window // 2

    def _once(self, attention: Heads, context: KeysAndValues, call: Call) -> Once:
        """What is kept for all layers of the same kind and number of slots, window and exact tokens."""
        if call.padding is None:
            return afresh
        own = cast("SequenceMap | None", attention.proj_k)
        kind = None if own is None else (own.projection, own.max_len)
        return call.padding.about((kind, context.num_slots, self.window, self.exact))

    def _slots_and_exact(
        self, attention: Heads, context: KeysAndValues, once: Once
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """Keys, values and padding of the slots and of the exact tokens after them, and a bias ``(B or 1, H, ·)``."""
        keys, values, padding, bias = context.keys, context.values, context.padding, None
        if context.log_tokens is not None:
            bias = context.log_tokens.to(keys.dtype).unsqueeze(1)
            if attention.slot_mass is not None:
                bias = bias + cast(Tensor, attention.slot_mass)[:, : bias.shape[-1]]
        exact = context.exact
        if exact is None:
            return keys, values, padding, bias
        if bias is not None:
            bias = F.pad(bias, (0, self.exact.number))
        if padding is not None or exact.padding is not None:
            padding = once("slots and exact tokens", partial(context.padding_with, exact))
        return torch.cat([keys, exact.keys], dim=2), torch.cat([values, exact.values], dim=2), padding, bias


def check_slots(k: int, max_len: int, window: int | None, *, limit: str = "max_len") -> None:
    """Raise ``ValueError`` for a number of slots that cannot be made of ``max_len`` tokens, or nothing to attend to."""
    if k == 0 and window is not None:
        return
    check_k(k, max_len, limit=limit)


def _apart(
    near: KeysAndValues | None, exact: KeysAndValues, places: Places, length: int, reach: int
) -> tuple[KeysAndValues | None, KeysAndValues]:
    """The window without the tokens that are seen exactly, so that these count once, and the exact tokens.

    In a row without tokens all that is attended to is missing: its values are zeros.
    """
    if near is not None:
        near = near._replace(padding=places.hidden(length, reach))
    return near, exact._replace(values=zero_padding(exact.values, places.missing), padding=places.missing)


def _without_slots(attention: Heads, sequence: Tensor) -> KeysAndValues:
    """No slots at all."""
    empty = sequence.new_zeros(sequence.shape[0], attention.num_kv_heads, 0, attention.head_dim)
    return KeysAndValues(empty, empty, empty.new_zeros(1, 0, dtype=torch.bool))


def _with_bias(attention: Heads, slots: KeysAndValues) -> KeysAndValues:
    """The slots with their biases, added where they are used: slots of chunks are made outside a call."""
    bias_k, bias_v = cast(Tensor, attention.slot_bias_k), cast(Tensor, attention.slot_bias_v)
    reached = slots.keys.shape[2]
    keys, values = slots.keys + bias_k[:, :reached], slots.values + bias_v[:, :reached]
    # A slot without a token is nothing, and its bias too: a row with only padding attends to all of them.
    return slots._replace(keys=keys, values=zero_padding(values, slots.padding))

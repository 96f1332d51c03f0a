"""The context of Linformer attention: K slots that a map makes of the whole sequence."""

from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.functional.attention import attend
from torch_linformer.functional.padding import Padding, mask_of, zero_padding
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import (
    Attended,
    ExactTokens,
    Window,
    bias_at,
    check_exact_tokens,
    find_exact_tokens,
)
from torch_linformer.nn.attention.context import Call, Context
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.slot_maps import Pair, SequenceMap, SlotMaps, Source, build_map
from torch_linformer.nn.options import (
    COUNTED,
    DENSE,
    ONE_MAP,
    PARAMETERLESS,
    PER_HEAD,
    AttentionConfig,
    check_k,
)

LEAST_TOKENS = 1e-6  # that a slot counts for: empty ones are masked, and have a logarithm


class SlotTerms(nn.Module):
    """What is learned of each slot beside its map: ``bias_k`` and ``bias_v`` ``(Hkv, K, D)``, ``mass`` ``(Hkv, K)``.

    A module that is called, so that whoever moves or gathers parameters at calls finds these.
    """

    def __init__(self, shape: tuple[int, int, int], has_bias: bool, has_mass: bool, **factory: Any) -> None:
        super().__init__()
        self.bias_k = nn.Parameter(torch.zeros(shape, **factory)) if has_bias else None
        self.bias_v = nn.Parameter(torch.zeros(shape, **factory)) if has_bias else None
        self.mass = nn.Parameter(torch.zeros(shape[:2], **factory)) if has_mass else None

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, slots: Slots) -> Slots:
        """The slots that a sequence reaches with these terms."""
        keys, values, padding, score_bias = slots
        reached = keys.shape[2]
        if self.bias_k is not None and self.bias_v is not None:
            keys = keys + self.bias_k[:, :reached]
            values = zero_padding(values + self.bias_v[:, :reached], mask_of(padding))  # a hidden slot is nothing
        if self.mass is not None and score_bias is not None:
            score_bias = score_bias + self.mass[:, :reached]
        return Slots(keys, values, padding, score_bias)


class SlotContext(Context):
    """K slots, each a mixture of all positions; with a ``window`` the positions near the query, and the exact tokens.

    Modules: ``proj_k`` and ``proj_v``, E and F, each a map of positions to slots or None (E = F has only the first);
    and ``slot_terms``, what is learned of each slot beside its map, or None.

    Example:
        >>> import torch
        >>> from torch_linformer.nn.attention.context import HeadSizes
        >>> from torch_linformer.nn.attention.slot_context import SlotContext
        >>> from torch_linformer.nn.options import AttentionConfig
        >>> options = AttentionConfig(projection="dynamic", sharing="kv_per_head", window=8)
        >>> context = SlotContext(HeadSizes.of_heads(4, 16), options, max_len=4096, k=64)
        >>> query, key, value = torch.randn(3, 2, 4, 1000, 16)  # heads that another module has made
        >>> context(query, key, value)[0].shape
        torch.Size([2, 4, 1000, 16])
    """

    name = "slots of the whole sequence"
    takes_pieces = takes_distances = True
    options = frozenset(
        {"projection", "sharing", "length_scaling", "window", "slot_bias", "slot_mass", "exact_first", "exact_last"}
    )
    no_mask = "a slot mixes all positions, so no score belongs to one (query, key) pair"

    proj_k: SequenceMap | None
    proj_v: SequenceMap | None
    slot_terms: SlotTerms | None

    def build(self, options: AttentionConfig, **factory: Any) -> None:
        sizes, max_len, k = self.sizes, self.max_len, self.k
        check_k(k, max_len, window=self.window)
        check_exact_tokens(options.exact_first, options.exact_last, max_len)
        if options.sharing == "layerwise":
            raise ValueError(
                "sharing='layerwise' shares one projection among layers, so a lone layer cannot own it: "
                "use LinformerEncoder, or sharing='kv' for one projection in this layer"
            )
        self.projection = options.projection
        self.exact_first, self.exact_last = options.exact_first, options.exact_last
        self.mass = options.slot_mass if k > 0 else "none"
        self.reach = 0 if self.window is None else self.window // 2  # of a window on either side of its query
        self.is_aligned, self.is_ordered = self.window is not None, True
        # A dense map finds the row of each real token, wherever it stands.
        self.moves_keys = self.is_aligned or self.exact_first + self.exact_last > 0 or self.projection not in DENSE
        self.proj_k = self.proj_v = None
        if self.projection is not None and k > 0:
            per_head = options.sharing in PER_HEAD
            scored_k, scored_v = (sizes.head_dim,) * 2 if per_head else (sizes.key_width, sizes.value_width)
            map_options = {"projection": self.projection, "length_scaling": options.length_scaling, **factory}
            map_options["num_heads"] = sizes.num_kv_heads if per_head else None
            self.proj_k = build_map(max_len, k, scored_k, **map_options)
            if options.sharing not in ONE_MAP and self.projection not in PARAMETERLESS:
                self.proj_v = build_map(max_len, k, scored_v, **map_options)
        has_bias, has_mass = options.slot_bias and k > 0, self.mass == "learned"
        shape = sizes.num_kv_heads, k, sizes.head_dim
        self.slot_terms = SlotTerms(shape, has_bias, has_mass, **factory) if has_bias or has_mass else None

    @classmethod
    def unused_options(cls, options: AttentionConfig) -> list[str]:
        projection, without = options.projection, list[str]()
        if projection is None or projection in PARAMETERLESS:
            without = ["sharing"]  # no parameters of its own to share
        if projection not in DENSE:
            without.append("length_scaling")
        if projection is not None and projection not in COUNTED:
            without.append("slot_mass")
        unused = [name for name in without if getattr(options, name) != getattr(AttentionConfig, name)]
        return [*super().unused_options(options), *unused]

    @classmethod
    def describe(cls, options: AttentionConfig) -> str:
        projection = options.projection
        return cls.name if projection is None else f"slots made by projection={projection!r}"

    def reset_parameters(self) -> None:
        for module in (self.proj_k, self.proj_v, self.slot_terms):
            if module is not None:
                module.reset_parameters()

    def maps(self, shared: SequenceMap | None = None) -> SlotMaps:
        """Its own E and F, or the map that it is handed."""
        if self.proj_k is not None and shared is not None:
            raise ValueError("this attention owns its maps: shared_projection belongs to one with projection=None")
        proj_k = shared if self.proj_k is None else self.proj_k
        if proj_k is None:
            raise ValueError("this attention owns no projection (projection=None): pass shared_projection")
        return SlotMaps(proj_k, proj_k if self.proj_v is None else self.proj_v)

    def read(self, source: Source, shared_projection: SequenceMap | None = None) -> KeysAndValues:
        has_window, num_slots = self.window is not None, 0
        if self.k > 0:
            maps = self.maps(shared_projection)
            num_slots = maps.key.k
            slots_read, heads = maps.read(source, has_window)
            # Of a short text no more than the slots that it reaches are paid for.
            slots = Slots(*slots_read, maps.key.slot_padding(source.like, source.padding))
            if self.mass != "none":
                tokens = maps.key.tokens_of_slots(source.like, source.padding)
                tokens = tokens.to(torch.promote_types(slots.keys.dtype, torch.float32))
                log_tokens = tokens.clamp(min=LEAST_TOKENS).log().to(slots.keys.dtype)
                slots = slots._replace(bias=log_tokens.unsqueeze(1))
        else:
            heads = source.all_heads()  # of a window, without which there are slots
            empty = source.like.new_zeros(source.like.shape[0], self.sizes.num_kv_heads, 0, self.sizes.head_dim)
            slots = Slots(empty, empty)
        window = None if heads is None else self._window(heads, source.padding)
        exact = None
        if self.exact_first + self.exact_last > 0:
            places = find_exact_tokens(source.like, source.padding, self.exact_first, self.exact_last)
            keys, values = source.tokens(places)
            exact = ExactTokens(keys, zero_padding(values, mask_of(places.missing)), places.missing)
            if window is not None:  # these tokens count once
                window = window._replace(padding=places.hidden(source.like.shape[1], self.reach))
        return KeysAndValues(slots, exact, window, num_slots)

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = Call()) -> Attended:
        window = read.window
        if window is not None and call.start > 0:  # of a window that was read for all positions, what these see
            position, mask = window.offset + call.start, mask_of(window.padding)
            first, last = max(0, position - window.reach), position + queries.shape[2] + window.reach
            window = window._replace(
                keys=window.keys[:, :, first:last],
                values=window.values[:, :, first:last],
                padding=None if mask is None else mask[:, first:last],
                offset=position - first,
            )
        if window is not None and call.distance_bias is not None:
            distances = torch.arange(-window.reach, window.reach + 1, device=queries.device)
            window = window._replace(bias=bias_at(call.distance_bias, distances.unsqueeze(0)).squeeze(1))
        slots = read.slots if self.slot_terms is None else self.slot_terms(read.slots)
        output, weights = attend(queries, slots, read.exact, window, call.softmax)
        return output, None if weights is None else read.over_all_slots(weights)

    def extra_repr(self) -> str:
        return f"{self.name}, max_len={self.max_len}, k={self.k}, window={self.window}"

    def _window(self, heads: Pair, padding: Padding | None) -> Window:
        """The positions of the rows that queries here can see, those of other processes too."""
        keys, values = heads
        if padding is None or padding.collective is None:
            return Window(keys, values, self.reach, padding)
        keys_and_values = padding.collective.around(torch.cat([keys, values], dim=-1), self.reach)
        keys, values = torch.split(keys_and_values, [keys.shape[-1], values.shape[-1]], dim=-1)
        before = min(self.reach, padding.start)
        return Window(keys, values, self.reach, padding.mask_around(self.reach), before)

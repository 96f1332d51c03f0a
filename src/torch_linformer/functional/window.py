"""The local window: each query and the positions near it, in blocks of queries, so that the cost is O(N·w)."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention import additive_mask, bias_as_channel, repeat_heads
from torch_linformer.functional.device_sizes import sizes_for
from torch_linformer.functional.flex_window import attend_by_flex
from torch_linformer.functional.implementations import (
    WINDOWED_ATTENTION,
    Implementation,
    autocast_dtype,
    choose,
)
from torch_linformer.functional.joined_window import attend_joined, can_be_joined
from torch_linformer.functional.local_blocks import (
    Near,
    WindowSlots,
    blocks_of,
    first_positions,
    join_weights,
    local_pieces,
    put_around,
)
from torch_linformer.functional.padding import Once, afresh
from torch_linformer.functional.torch_state import records_a_graph


def attend_with_window(
    query: Tensor,
    slots_k: Tensor,
    slots_v: Tensor,
    key: Tensor,
    value: Tensor,
    reach: int,
    *,
    slot_padding: Tensor | None = None,
    slot_bias: Tensor | None = None,
    key_padding: Tensor | None = None,
    offset: int = 0,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
    once: Once = afresh,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """One softmax over slots ``(B, H, K, ·)`` and over the positions at most ``reach`` away from each query, unchecked.

    Slots, keys and values may have fewer heads than the query (multi-query), dividing H.

    Query i is at position ``offset + i`` of ``key`` and ``value`` ``(B, H, M, ·)``, which hold all positions that the
    windows reach. ``slot_padding`` is bool ``(B or 1, K)``, True at slots that get no weight; ``slot_bias``
    ``(B or 1, H or 1, K)`` is added to their scores; ``key_padding`` is bool ``(B or 1, M)``, True at padding, where
    keys and values are finite. ``once`` keeps what is worked out from these two masks and the sizes, for the next call.

    Returns the output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax before dropout
    ``(B, H, N, K + 2 reach + 1)``, slots first; zeros where K is 0 and a query reaches no position but padding.
    """
    length, width = query.shape[2], value.shape[-1]
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    beyond = "it returns no weights" if need_weights else "it drops no weights" if dropout_p > 0 else None
    chosen = choose(WINDOWED_ATTENTION, query, key, value, impl=impl, beyond_flex=beyond)
    if slot_bias is not None:
        slot_bias = repeat_heads(slot_bias, query.shape[1])
    if chosen == "flex":
        output = attend_by_flex(
            query,
            (slots_k, slots_v),
            (key, value),
            reach,
            slot_padding=slot_padding,
            slot_bias=slot_bias,
            key_padding=key_padding,
            offset=offset,
            scale=scale,
            once=once,
        )
        return output, None
    by_sdpa = chosen == "torch" and not need_weights and dropout_p == 0
    slots_k, slots_v, key, value = (repeat_heads(x, query.shape[1]) for x in (slots_k, slots_v, key, value))
    if by_sdpa and can_be_joined(query, slots_k, slots_v, key, value, slot_bias):
        query, slots_k, slots_v, key, value = (x.to(autocast_dtype(x)) for x in (query, slots_k, slots_v, key, value))
        near = Near(key, value, key_padding, reach, offset)
        return attend_joined(query, WindowSlots(slots_k, slots_v, slot_padding), slot_bias, near, scale, once), None
    if slot_bias is not None:
        query, slots_k, slots_v = bias_as_channel(query, slots_k, slots_v, slot_bias, scale)
        key, value = F.pad(key, (0, 1)), F.pad(value, (0, 1))
    slots = WindowSlots(slots_k, slots_v, slot_padding)
    blocks = _cut_into_blocks(query, Near(key, value, key_padding, reach, offset), slots, once)
    parts = _split(blocks, slots)
    outputs: list[Tensor] = []
    weights: list[Tensor] = []
    for part in parts:
        if by_sdpa:
            allowed = partial(_allowed, part, slots)
            # Parts of it are made where they are needed: all at once they are larger than the caches.
            mask = once(("scores", length, offset, query.dtype), allowed) if len(parts) == 1 else allowed()
            output = F.scaled_dot_product_attention(*_sdpa_arguments(part, slots), attn_mask=mask, scale=scale)
            output = output.view(query.shape[0], part.queries.shape[2], *output.shape[1:]).transpose(1, 2)
            if records_a_graph():  # where another program computes SDPA, its strides are other ones
                output = output.clone(memory_format=torch.contiguous_format)
        else:
            output, softmax = _by_definition(part, slots, dropout_p, scale)
            if need_weights:
                weights.append(join_weights(softmax, slots_k.shape[2], reach, reach))
        outputs.append(output)
    joined = first_positions(torch.cat(weights, dim=2), length) if need_weights else None
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    output = first_positions(output.flatten(2, 3), length)[..., :width]
    if slots_k.shape[2] == 0:
        near = Near(key, value, key_padding, reach, offset)
        alone = once(("alone", length, offset), lambda: ~near.visible(1, length).any(dim=-1).unsqueeze(1))
        output, joined = output.masked_fill(alone, 0.0), None if joined is None else joined.masked_fill(alone, 0.0)
    return output, joined


class _Blocks(NamedTuple):
    """Queries ``(B, H, n, c, D)``, and what is near them.

    Attributes:
        queries: n blocks of them.
        keys: pieces ``(B, H, n, ·, D)`` of the span of positions of each block, one after the other.
        values: likewise.
        visible: bool ``(B or 1, n, c, s)``.
    """

    queries: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    visible: Tensor


def _cut_into_blocks(query: Tensor, near: Near, slots: WindowSlots, once: Once) -> _Blocks:
    length = query.shape[2]
    # Sizes may be symbolic while compiling: one graph for every length has blocks of one size.
    most = sizes_for(query.device).window_block
    block = most if records_a_graph() else max(1, min(most, length))
    number = blocks_of(length, block)
    fill = number * block - length
    queries = put_around(query, 0, fill).reshape(*query.shape[:2], number, block, query.shape[-1])
    span, sides = block + 2 * near.reach, near.sides(length + fill)
    keys, values = (local_pieces(x, block, span, sides) for x in (near.key, near.value))

    def find() -> Tensor:
        visible = near.visible(block, length + fill)
        if slots.padding is None and slots.keys.shape[2] > 0:
            return visible
        # A softmax over nothing would be NaN: in a row that is all padding, or without slots.
        nothing = ~visible.any(dim=-1)
        if slots.padding is not None:
            nothing = nothing & slots.padding.all(dim=-1)[:, None, None]
        return visible | nothing.unsqueeze(-1)

    return _Blocks(queries, keys, values, once(("visible", length, near.offset), find))


def _split(blocks: _Blocks, slots: WindowSlots) -> list[_Blocks]:
    """As many blocks at a time as the device takes scores; while compiling all."""
    most = sizes_for(blocks.queries.device).window_scores
    if records_a_graph() or most is None:
        return [blocks]
    batch, heads, number, block, _ = blocks.queries.shape
    scores = batch * heads * block * (slots.keys.shape[2] + blocks.visible.shape[-1])
    at_once = max(1, most // max(1, scores))
    if at_once >= number:
        return [blocks]

    # Split, not sliced: the gradient of a slice is as long as the whole.
    queries, visible = torch.split(blocks.queries, at_once, dim=2), torch.split(blocks.visible, at_once, dim=1)
    keys, values = ([torch.split(x, at_once, dim=2) for x in each] for each in (blocks.keys, blocks.values))
    return [
        _Blocks(queries[part], [x[part] for x in keys], [x[part] for x in values], visible[part])
        for part in range(len(queries))
    ]


def _by_definition(blocks: _Blocks, slots: WindowSlots, dropout_p: float, scale: float) -> tuple[Tensor, Tensor]:
    """Output and softmax of the blocks."""
    queries_BHncD = blocks.queries * scale
    shape, num_slots = queries_BHncD.shape[:-1], slots.keys.shape[2]
    keys_BHnsD, values_BHnsX = (torch.cat(pieces, dim=-2) for pieces in (blocks.keys, blocks.values))
    # All blocks share the slots in one product: one that is broadcast over the blocks would copy the slots for each.
    slot_scores_BHncK = (queries_BHncD.flatten(2, 3) @ slots.keys.transpose(-2, -1)).view(*shape, num_slots)
    if slots.padding is not None:
        allowed = additive_mask(~slots.padding[:, None, None, None, :], slot_scores_BHncK.dtype)
        slot_scores_BHncK = slot_scores_BHncK + allowed
    scores_BHncs = queries_BHncD @ keys_BHnsD.transpose(-2, -1)
    scores_BHncs = scores_BHncs + additive_mask(blocks.visible.unsqueeze(1), scores_BHncs.dtype)
    softmax = torch.softmax(torch.cat([slot_scores_BHncK, scores_BHncs], dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    # Split, not sliced: the gradient of a slice is as long as the whole.
    to_slots, to_window = torch.split(kept, [num_slots, keys_BHnsD.shape[3]], dim=-1)
    from_slots = (to_slots.flatten(2, 3) @ slots.values).view(*shape, slots.values.shape[3])
    return from_slots + to_window @ values_BHnsX, softmax


def _sdpa_arguments(blocks: _Blocks, slots: WindowSlots) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: each block is a row of a batch, with a copy of the slots before what is near it."""
    number = blocks.queries.shape[2]

    def with_slots(slots_BHKX: Tensor, near: list[Tensor]) -> Tensor:
        slots_BHnKX = slots_BHKX.unsqueeze(2).expand(-1, -1, number, -1, -1)
        return torch.cat([x.transpose(1, 2) for x in (slots_BHnKX, *near)], dim=-2).flatten(0, 1)

    queries = blocks.queries.transpose(1, 2).flatten(0, 1)
    return queries, with_slots(slots.keys, blocks.keys), with_slots(slots.values, blocks.values)


def _allowed(blocks: _Blocks, slots: WindowSlots) -> Tensor:
    """What is added to the scores of :func:`_sdpa_arguments`, ``(B · n, 1, c, K + s)``."""
    batch, _, number, block, _ = blocks.queries.shape
    seen = blocks.visible.new_ones(()) if slots.padding is None else ~slots.padding[:, None, None, :]
    seen = seen.expand(batch, number, block, slots.keys.shape[2])
    allowed = torch.cat([seen, blocks.visible.expand(batch, -1, -1, -1)], dim=-1)
    return additive_mask(allowed.flatten(0, 1).unsqueeze(1), blocks.queries.dtype)

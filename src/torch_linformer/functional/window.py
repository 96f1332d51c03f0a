"""The local window: each query and the positions near it, in blocks of queries, so that the cost is O(N·w)."""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.attention import additive_mask, bias_as_channel, repeat_heads
from torch_linformer.functional.device_sizes import sizes_for
from torch_linformer.functional.flex_window import attend_by_flex
from torch_linformer.functional.implementations import (
    WINDOWED_ATTENTION,
    Implementation,
    autocast_dtype,
    choose,
    needs_graph,
)
from torch_linformer.functional.local_blocks import (
    blocks_of,
    first_positions,
    join_weights,
    local_mask,
    local_pieces,
    put_around,
)
from torch_linformer.functional.padding import Once, afresh
from torch_linformer.functional.torch_state import is_transformed, is_watched, records_a_graph


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
    ``(B, H, N, K + 2 reach + 1)``, slots first.
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
    if by_sdpa and _can_be_joined(query, slots_k, slots_v, key, value, slot_bias):
        query, slots_k, slots_v, key, value = (x.to(autocast_dtype(x)) for x in (query, slots_k, slots_v, key, value))
        near = _Near(key, value, key_padding, reach, offset)
        return _joined(query, _Slots(slots_k, slots_v, slot_padding), slot_bias, near, scale, once), None
    if slot_bias is not None:
        query, slots_k, slots_v = bias_as_channel(query, slots_k, slots_v, slot_bias, scale)
        key, value = F.pad(key, (0, 1)), F.pad(value, (0, 1))
    slots = _Slots(slots_k, slots_v, slot_padding)
    blocks = _cut_into_blocks(query, _Near(key, value, key_padding, reach, offset), slots, once)
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
        else:
            output, softmax = _by_definition(part, slots, dropout_p, scale)
            if need_weights:
                weights.append(join_weights(softmax, slots_k.shape[2], reach, reach))
        outputs.append(output)
    joined = first_positions(torch.cat(weights, dim=2), length) if need_weights else None
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    return first_positions(output.flatten(2, 3), length)[..., :width], joined


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


class _Near(NamedTuple):
    """Keys and values ``(B, H, M, ·)``, which are padding, the reach of a window, and the position of query 0."""

    key: Tensor
    value: Tensor
    padding: Tensor | None
    reach: int
    offset: int

    @property
    def real(self) -> Tensor:
        """Bool ``(B or 1, M)``, False at padding."""
        if self.padding is None:
            return self.key.new_ones(1, self.key.shape[2], dtype=torch.bool)
        return ~self.padding

    def visible(self, block: int, queries: int) -> Tensor:
        """Which positions of its span each query of a block sees, bool ``(B or 1, n, c, s)``."""
        if not torch.compiler.is_compiling() and queries == 0:
            return self.real.new_ones(1, 0, block, block + 2 * self.reach)
        spans = F.pad(self.real, self.sides(queries)).unfold(1, block + 2 * self.reach, block)
        return spans.unsqueeze(2) & local_mask(block, self.reach, self.reach, self.key.device)

    def sides(self, queries: int) -> tuple[int, int]:
        """Positions that the first query sees before key 0, and the last one after key M − 1."""
        return self.reach - self.offset, self.offset + queries + self.reach - self.key.shape[2]


class _Slots(NamedTuple):
    keys: Tensor
    values: Tensor
    padding: Tensor | None


def _can_be_joined(*tensors: Tensor | None) -> bool:
    """Whether :func:`_joined` can compute it: in inference, on a CPU, by operations that run at once."""
    given = [tensor for tensor in tensors if tensor is not None]
    at_once = not records_a_graph() and not is_transformed() and not is_watched() and not needs_graph(*given)
    plain = all(type(tensor) in (Tensor, nn.Parameter) and tensor.device.type == "cpu" for tensor in given)
    slots, value = given[1], given[4]
    return at_once and plain and given[0].shape[2] > 0 and slots.shape[2] > 0 and slots.shape[3] == value.shape[3]


def _joined(query: Tensor, slots: _Slots, slot_bias: Tensor | None, near: _Near, scale: float, once: Once) -> Tensor:
    r"""Two softmaxes, over the slots and over the window, joined by the logarithms of their sums, ``(B, H, N, D)``.

    .. math:: \mathrm{out} = (1 - \sigma(l_w - l_s))\, o_s + \sigma(l_w - l_s)\, o_w

    No slot is copied for each block, and no bias widens the channels: it takes half the time (docs/log.md). Only the
    operator below SDPA gives these logarithms, without a gradient.
    """
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu  # reads rows of channels: checked above it only
    query, slots_k, slots_v, key, value = (
        x if x.stride(-1) == 1 else x.contiguous() for x in (query, slots.keys, slots.values, near.key, near.value)
    )
    hidden = torch.finfo(query.dtype).min / 2  # a sum of nothing but −∞ would be NaN
    bias = None if slot_bias is None else slot_bias.to(query.dtype).unsqueeze(2)
    if slots.padding is not None:
        there = query.new_zeros(1, 1, 1, slots.keys.shape[2]) if bias is None else bias
        bias = torch.where(slots.padding[:, None, None, :], hidden, there)
    length = query.shape[2]
    block = sizes_for(query.device).window_block
    number = blocks_of(length, block)
    fill = number * block - length
    query = F.pad(query, (0, 0, 0, fill)) if fill else query
    output: Tensor
    output, of_slots = flash(query, slots_k, slots_v, attn_mask=bias, scale=scale)

    span, sides = block + 2 * near.reach, near.sides(length + fill)
    spans = [F.pad(x, (0, 0, *sides)).unfold(2, span, block).mT for x in (key, value)]

    def find() -> Tensor:
        visible = near.visible(block, length + fill)
        return torch.zeros(visible.shape, dtype=query.dtype).masked_fill_(~visible, hidden)

    allowed = once(("scores of windows", length, near.offset, query.dtype), find)

    def in_blocks(x_HNX: Tensor) -> Tensor:
        return x_HNX.view(x_HNX.shape[0], number, block, *x_HNX.shape[2:]).transpose(0, 1)

    for row, mask in enumerate(allowed.expand(len(query), -1, -1, -1)):  # the blocks of one row are views
        keys, values = (x[row].transpose(0, 1) for x in spans)
        found, of_window = flash(in_blocks(query[row]), keys, values, attn_mask=mask.unsqueeze(1), scale=scale)
        share = torch.sigmoid(of_window - in_blocks(of_slots[row]))
        in_blocks(output[row]).lerp_(found, share.unsqueeze(-1).to(found.dtype))
    return output[:, :, :length]


def _cut_into_blocks(query: Tensor, near: _Near, slots: _Slots, once: Once) -> _Blocks:
    length = query.shape[2]
    # Sizes may be symbolic while compiling: one graph for every length has blocks of one size.
    most = sizes_for(query.device).window_block
    block = most if torch.compiler.is_compiling() else max(1, min(most, length))
    number = blocks_of(length, block)
    fill = number * block - length
    queries = put_around(query, 0, fill).reshape(*query.shape[:2], number, block, query.shape[-1])
    span, sides = block + 2 * near.reach, near.sides(length + fill)
    keys, values = (local_pieces(x, block, span, sides) for x in (near.key, near.value))

    def find() -> Tensor:
        visible = near.visible(block, length + fill)
        if slots.padding is None:
            return visible
        # A row that is all padding would have nothing to attend to.
        nothing = slots.padding.all(dim=-1)[:, None, None] & ~visible.any(dim=-1)
        return visible | nothing.unsqueeze(-1)

    return _Blocks(queries, keys, values, once(("visible", length, near.offset), find))


def _split(blocks: _Blocks, slots: _Slots) -> list[_Blocks]:
    """As many blocks at a time as the device takes scores; while compiling all."""
    most = sizes_for(blocks.queries.device).window_scores
    if torch.compiler.is_compiling() or most is None:
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


def _by_definition(blocks: _Blocks, slots: _Slots, dropout_p: float, scale: float) -> tuple[Tensor, Tensor]:
    """Output and softmax of the blocks."""
    queries_BHncD = blocks.queries * scale
    shape, num_slots = queries_BHncD.shape[:-1], slots.keys.shape[2]
    keys_BHnsD, values_BHnsX = (torch.cat(pieces, dim=-2) for pieces in (blocks.keys, blocks.values))
    # All blocks share the slots in one product: one that is broadcast over the blocks would copy the slots for each.
    slot_scores_BHncK = (queries_BHncD.flatten(2, 3) @ slots.keys.mT).view(*shape, num_slots)
    if slots.padding is not None:
        allowed = additive_mask(~slots.padding[:, None, None, None, :], slot_scores_BHncK.dtype)
        slot_scores_BHncK = slot_scores_BHncK + allowed
    scores_BHncs = queries_BHncD @ keys_BHnsD.mT
    scores_BHncs = scores_BHncs + additive_mask(blocks.visible.unsqueeze(1), scores_BHncs.dtype)
    softmax = torch.softmax(torch.cat([slot_scores_BHncK, scores_BHncs], dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    # Split, not sliced: the gradient of a slice is as long as the whole.
    to_slots, to_window = torch.split(kept, [num_slots, keys_BHnsD.shape[3]], dim=-1)
    from_slots = (to_slots.flatten(2, 3) @ slots.values).view(*shape, slots.values.shape[3])
    return from_slots + to_window @ values_BHnsX, softmax


def _sdpa_arguments(blocks: _Blocks, slots: _Slots) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value: each block is a row of a batch, with a copy of the slots before what is near it."""
    number = blocks.queries.shape[2]

    def with_slots(slots_BHKX: Tensor, near: list[Tensor]) -> Tensor:
        slots_BHnKX = slots_BHKX.unsqueeze(2).expand(-1, -1, number, -1, -1)
        return torch.cat([x.transpose(1, 2) for x in (slots_BHnKX, *near)], dim=-2).flatten(0, 1)

    queries = blocks.queries.transpose(1, 2).flatten(0, 1)
    return queries, with_slots(slots.keys, blocks.keys), with_slots(slots.values, blocks.values)


def _allowed(blocks: _Blocks, slots: _Slots) -> Tensor:
    """What is added to the scores of :func:`_sdpa_arguments`, ``(B · n, 1, c, K + s)``."""
    batch, _, number, block, _ = blocks.queries.shape
    seen = blocks.visible.new_ones(()) if slots.padding is None else ~slots.padding[:, None, None, :]
    seen = seen.expand(batch, number, block, slots.keys.shape[2])
    allowed = torch.cat([seen, blocks.visible.expand(batch, -1, -1, -1)], dim=-1)
    return additive_mask(allowed.flatten(0, 1).unsqueeze(1), blocks.queries.dtype)

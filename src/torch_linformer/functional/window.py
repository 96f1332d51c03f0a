"""The local window: each query and the positions near it, in blocks of queries, so that the cost is O(N·w)."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.cpu import autocast_dtype, by_flash, by_onednn, tensors_in
from torch_linformer.functional.device_sizes import sizes_for
from torch_linformer.functional.flex import attend_by_flex, why_not_flex
from torch_linformer.functional.implementations import UNMEASURED, Implementation, register
from torch_linformer.functional.padding import Mask, as_mask, derive, mask_of, put_around
from torch_linformer.functional.pytorch import (
    flash_attention,
    is_traced,
    needs_graph,
    records_a_graph,
    serves_any_length,
)
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import (
    Attended,
    SoftmaxCall,
    Window,
    additive_mask,
    bias_as_channel,
    bias_at,
    for_heads,
    repeat_heads,
)

# Sequences cut into blocks of positions, each with those around it.


def blocks_of(length: int, block: int) -> int:
    """Blocks that hold ``length`` positions; in a recorded graph, enough for it to serve every length."""
    if records_a_graph():
        # One block and several would be two graphs; so would filling up by no position and by some.
        number: Any = length // block + 1  # a tensor in a trace
        two_at_least: int = number.clamp(min=2) if is_traced() else torch.sym_max(number, 2)  # type: ignore[no-untyped-call]
        return two_at_least
    return -(-length // block)


def first_positions(x: Tensor, length: int) -> Tensor:
    """``(B, H, ·, X)`` to ``(B, H, length, X)``."""
    if records_a_graph():
        # A slice is contiguous at some lengths only, on which a graph for all lengths must not depend.
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]


def local_parts(sequence: Tensor, block: int, span: int, sides: tuple[int, int] = (0, 0)) -> list[Tensor]:
    """Parts ``(…, n, ·, D)`` of the spans of n blocks, one after the other; a span begins where its block does.

    ``sides`` are positions to put before and after the sequence ``(…, M, D)``.
    """
    blocks = (sequence.shape[-2] + sum(sides) - span + block) // block
    if not records_a_graph() and blocks == 1:  # comparing a size would tie a graph to it
        return [put_around(sequence, *sides).unsqueeze(-3)]
    # By columns as wide as a block. Tensor.unfold would give them as one view, but its backward pass is slow.
    sequence = put_around(sequence, sides[0], sides[1] + -span % block)
    starts = range(0, span, block)
    if records_a_graph():  # a graph for all lengths cannot know that the whole is one column more
        shape = (*sequence.shape[:-2], blocks, block, sequence.shape[-1])
        columns = [sequence[..., start : start + blocks * block, :].reshape(shape) for start in starts]
    else:
        whole = torch.unflatten(sequence, -2, (-1, block))
        columns = [whole[..., i : i + blocks, :, :] for i in range(len(starts))]
    return [column[..., : span - start, :] for column, start in zip(columns, starts, strict=True)]


def local_mask(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """Bool ``(c, s)``: True at positions at most ``before`` back and ``after`` ahead of a query."""
    positions = torch.ones(block, before + block + after, dtype=torch.bool, device=device)
    return positions.triu_().tril_(before + after)


def join_weights(softmax: Tensor, num_slots: int, before: int, after: int) -> Tensor:
    """``(B, H, n, c, K + s)`` to ``(B, H, n · c, K + before + 1 + after)``: of a span only the query's own window."""
    query = torch.arange(softmax.shape[-2], device=softmax.device).unsqueeze(-1)
    window_columns = num_slots + query + torch.arange(before + 1 + after, device=softmax.device)
    slot_columns = torch.arange(num_slots, device=softmax.device).expand(len(query), -1)
    index = torch.cat([slot_columns, window_columns], dim=-1)
    return softmax.gather(-1, index.expand(*softmax.shape[:-1], -1)).flatten(2, 3)


class SpanLayout(NamedTuple):
    """How queries are cut into blocks, and where the spans of positions that their windows reach lie among the keys.

    Attributes:
        block: queries c in a block.
        queries: in all blocks, those that fill up the last one among them.
        keys: positions M.
        reach: of a window.
        offset: position of query 0.
        device: of the masks.
    """

    block: int
    queries: int
    keys: int
    reach: int
    offset: int
    device: torch.device

    @property
    def span(self) -> int:
        """Positions that the windows of a block reach."""
        return self.block + 2 * self.reach

    @property
    def sides(self) -> tuple[int, int]:
        """Positions that the first query sees before key 0, and the last one after key M − 1."""
        return self.reach - self.offset, self.offset + self.queries + self.reach - self.keys

    @property
    def distances(self) -> Tensor:
        """How far from each query of a block the positions of its span are, ``(c, s)``."""
        positions = torch.arange(-self.reach, self.block + self.reach, device=self.device)
        return positions - torch.arange(self.block, device=self.device).unsqueeze(-1)


def visible_positions(mask: Mask | None, layout: SpanLayout) -> Tensor:
    """Which positions of its span each query of a block sees, bool ``(B or 1, n, c, s)``."""
    real = torch.ones(1, layout.keys, dtype=torch.bool, device=layout.device) if mask is None else ~mask.mask
    if not records_a_graph() and layout.queries == 0:
        return real.new_ones(1, 0, layout.block, layout.span)
    spans = F.pad(real, layout.sides).unfold(1, layout.span, layout.block)
    if records_a_graph():  # the layout of a view of overlapping spans depends on their number
        spans = spans.clone(memory_format=torch.contiguous_format)
    return spans.unsqueeze(2) & local_mask(layout.block, layout.reach, layout.reach, layout.device)


# One softmax over the slots and the span of each block.


class _Blocks(NamedTuple):
    """Queries ``(B, H, n, c, D)`` in n blocks, and what they see, bool ``(B or 1, n, c, s)`` and ``(B or 1, n, c, K)``.

    Keys and values are parts ``(B, H, n, ·, D)`` of the span of positions of each block, one after the other. The bias
    ``(H or 1, c, s)`` is added to the scores of the spans; the mask of the window keeps what follows from it.
    """

    queries: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    visible: Tensor
    visible_slots: Tensor | None
    window_mask: Mask | None
    layout: SpanLayout
    bias: Tensor | None


def _attend_in_blocks(by_sdpa: bool, query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> Attended:
    num_heads, length, width = query.shape[1], query.shape[2], window.values.shape[-1]
    scale, num_slots = call.scale_for(query), slots.keys.shape[2]
    slots, mask = for_heads(slots, num_heads), as_mask(window.padding)
    keys, values = repeat_heads(window.keys, num_heads), repeat_heads(window.values, num_heads)
    window = window._replace(keys=keys, values=values, padding=mask)
    if num_slots == 0:
        keys, values = (F.pad(x, (0, 0, 0, 1)) for x in slots[:2])
        slots = Slots(keys, values, derive(mask, _one_hidden_slot, query.device))
    if slots.bias is not None:
        query, keys, values = bias_as_channel(query, slots.keys, slots.values, slots.bias, scale)
        slots = slots._replace(keys=keys, values=values)
        window = window._replace(keys=F.pad(window.keys, (0, 1)), values=F.pad(window.values, (0, 1)))
    by_sdpa = by_sdpa and not call.need_weights and call.dropout_p == 0
    if window.bias is not None and needs_graph(window.bias):
        by_sdpa = False  # its mask would have a gradient, for which it keeps all scores beside copies of the slots
    parts = _split(_cut_into_blocks(query, window, slots), slots)
    outputs: list[Tensor] = []
    softmaxes: list[Tensor] = []
    for part in parts:
        if by_sdpa:
            outputs.append(_attend_by_sdpa(part, slots, scale, is_whole=len(parts) == 1))
            continue
        output, softmax = _attend_by_definition(part, slots, scale, call.dropout_p)
        outputs.append(output)
        if call.need_weights:
            softmaxes.append(join_weights(softmax, slots.keys.shape[2], window.reach, window.reach))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    output = first_positions(output.flatten(2, 3), length)[..., :width]
    if not call.need_weights:
        return output, None
    weights, hidden = first_positions(torch.cat(softmaxes, dim=2), length), mask_of(slots.padding)
    if hidden is not None:
        weights = weights.masked_fill(F.pad(hidden, (0, 2 * window.reach + 1))[:, None, None, :], 0.0)
    return output, weights[..., slots.keys.shape[2] - num_slots :]


def _one_hidden_slot(mask: Mask | None, device: torch.device) -> Mask:
    return Mask(torch.ones(1, 1, dtype=torch.bool, device=device))


def _cut_into_blocks(query: Tensor, window: Window, slots: Slots) -> _Blocks:
    length = query.shape[2]
    # Sizes may be symbolic while compiling: one graph for every length has blocks of one size.
    largest = sizes_for(query.device).window_block
    block = largest if records_a_graph() else max(1, min(largest, length))
    # OpenVINO knows no maximum of sizes, and a sum of blocks would be no divisor of positions.
    number = (length + 2 * block - 1) // block if serves_any_length() else blocks_of(length, block)
    fill = number * block - length
    queries = put_around(query, 0, fill).reshape(*query.shape[:2], number, block, query.shape[-1])
    layout = SpanLayout(block, length + fill, window.keys.shape[2], window.reach, window.offset, query.device)
    keys, values = (local_parts(x, block, layout.span, layout.sides) for x in (window.keys, window.values))
    mask, slot_mask = as_mask(window.padding), as_mask(slots.padding)
    visible = derive(mask, visible_positions, layout)
    visible_slots = None if slot_mask is None else derive(mask, _visible_slots, layout, slot_mask)
    bias = None if window.bias is None else bias_at(window.bias, layout.distances)
    return _Blocks(queries, keys, values, visible, visible_slots, mask, layout, bias)


def _visible_slots(mask: Mask | None, layout: SpanLayout, slot_mask: Mask) -> Tensor:
    """A query that sees nothing sees the hidden slots, whose values are zeros: a softmax over nothing would be NaN."""
    sees_nothing = ~derive(mask, visible_positions, layout).any(dim=-1) & slot_mask.mask.all(dim=-1)[:, None, None]
    return ~slot_mask.mask[:, None, None, :] | sees_nothing.unsqueeze(-1)


def _split(blocks: _Blocks, slots: Slots) -> list[_Blocks]:
    """As many blocks at a time as the device takes scores; while compiling all."""
    largest = sizes_for(blocks.queries.device).window_scores
    if records_a_graph() or largest is None:
        return [blocks]
    batch, heads, number, block, _ = blocks.queries.shape
    scores = batch * heads * block * (slots.keys.shape[2] + blocks.visible.shape[-1])
    at_once = max(1, largest // max(1, scores))
    if at_once >= number:
        return [blocks]
    # Split, not sliced: the gradient of a slice is as long as the whole.
    queries, visible = torch.split(blocks.queries, at_once, dim=2), torch.split(blocks.visible, at_once, dim=1)
    visible_slots: Sequence[Tensor | None] = [None] * len(queries)
    if blocks.visible_slots is not None:
        visible_slots = torch.split(blocks.visible_slots, at_once, dim=1)
    keys, values = (
        [list(part) for part in zip(*(torch.split(x, at_once, dim=2) for x in spans), strict=True)]
        for spans in (blocks.keys, blocks.values)
    )
    return [_Blocks(*part, *blocks[5:]) for part in zip(queries, keys, values, visible, visible_slots, strict=True)]


def _attend_by_definition(blocks: _Blocks, slots: Slots, scale: float, dropout_p: float) -> tuple[Tensor, Tensor]:
    """Output and softmax of the blocks."""
    queries_BHncD = blocks.queries * scale
    shape, num_slots = queries_BHncD.shape[:-1], slots.keys.shape[2]
    keys_BHnsD, values_BHnsX = (torch.cat(parts, dim=-2) for parts in (blocks.keys, blocks.values))
    # All blocks share the slots in one product: one that is broadcast over the blocks would copy the slots for each.
    slot_scores_BHncK = (queries_BHncD.flatten(2, 3) @ slots.keys.transpose(-2, -1)).view(*shape, num_slots)
    if blocks.visible_slots is not None:
        allowed = additive_mask(blocks.visible_slots.unsqueeze(1), slot_scores_BHncK.dtype)
        slot_scores_BHncK = slot_scores_BHncK + allowed
    scores_BHncs = queries_BHncD @ keys_BHnsD.transpose(-2, -1)
    scores_BHncs = scores_BHncs + additive_mask(blocks.visible.unsqueeze(1), scores_BHncs.dtype)
    if blocks.bias is not None:
        scores_BHncs = scores_BHncs + blocks.bias.unsqueeze(1).to(scores_BHncs.dtype)
    softmax = torch.softmax(torch.cat([slot_scores_BHncK, scores_BHncs], dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    to_slots, to_window = torch.split(kept, [num_slots, keys_BHnsD.shape[3]], dim=-1)
    slot_output = (to_slots.flatten(2, 3) @ slots.values).view(*shape, slots.values.shape[3])
    return slot_output + to_window @ values_BHnsX, softmax


def _attend_by_sdpa(blocks: _Blocks, slots: Slots, scale: float, is_whole: bool) -> Tensor:
    """Output of the blocks: each is a row of a batch, with a copy of the slots before its span."""
    batch, _, number, _, _ = blocks.queries.shape
    num_slots = slots.keys.shape[2]

    def with_slots(slots_BHKX: Tensor, spans: list[Tensor]) -> Tensor:
        slots_BHnKX = slots_BHKX.unsqueeze(2).expand(-1, -1, number, -1, -1)
        return torch.cat([x.transpose(1, 2) for x in (slots_BHnKX, *spans)], dim=-2).flatten(0, 1)

    queries = blocks.queries.transpose(1, 2).flatten(0, 1)
    keys, values = with_slots(slots.keys, blocks.keys), with_slots(slots.values, blocks.values)
    # Masks of parts are made where they are needed: all at once they are larger than the caches.
    sizes = num_slots, batch, queries.dtype
    if is_whole and blocks.window_mask is not None:
        mask = blocks.window_mask.derive(_allowed_in_blocks, blocks.layout, as_mask(slots.padding), *sizes)
    else:
        mask = _allowed(blocks.visible, blocks.visible_slots, *sizes)
    if blocks.bias is not None:
        mask = mask + F.pad(blocks.bias.to(mask.dtype), (num_slots, 0))
    output = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
    output = output.view(batch, number, *output.shape[1:]).transpose(1, 2)
    # Where another program computes a graph's SDPA, its strides are other ones.
    return output.clone(memory_format=torch.contiguous_format) if records_a_graph() else output


def _allowed(visible: Tensor, visible_slots: Tensor | None, num_slots: int, rows: int, dtype: torch.dtype) -> Tensor:
    """0 at the slots and the positions that each query sees, −∞ elsewhere: ``(B · n, 1, c, K + s)``."""
    seen = visible.new_ones(()) if visible_slots is None else visible_slots
    seen = seen.expand(rows, *visible.shape[1:3], num_slots)
    allowed = torch.cat([seen, visible.expand(rows, -1, -1, -1)], dim=-1)
    return additive_mask(allowed.flatten(0, 1).unsqueeze(1), dtype)


def _allowed_in_blocks(
    mask: Mask, layout: SpanLayout, slot_mask: Mask | None, num_slots: int, rows: int, dtype: torch.dtype
) -> Tensor:
    visible_slots = None if slot_mask is None else mask.derive(_visible_slots, layout, slot_mask)
    return _allowed(mask.derive(visible_positions, layout), visible_slots, num_slots, rows, dtype)


# Two softmaxes, joined: in inference on a CPU, where no slot is then copied for each block.

BLOCK = 32  # queries whose windows are computed together: more see more positions that are none of theirs
LANES = 16  # slots that the CPU's SDPA computes together; what is beyond a multiple of them it takes one by one


def attend_joined(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> Attended:
    r"""Two softmaxes, over the slots and over the window, joined by the logarithms of their sums, ``(B, H, N, D)``.

    .. math:: \mathrm{out} = (1 - \sigma(l_w - l_s))\, o_s + \sigma(l_w - l_s)\, o_w

    No slot is copied for each block, and no bias widens the channels: it takes half the time (docs/log.md). Only the
    operator below SDPA gives these logarithms, without a gradient.
    """
    scale, num_heads = call.scale_for(query), query.shape[1]
    slots = for_heads(slots, num_heads)
    window_keys, window_values = (repeat_heads(x, num_heads) for x in window[:2])
    query, window_keys, window_values = (x.to(autocast_dtype(x)) for x in (query, window_keys, window_values))
    accurate = torch.promote_types(query.dtype, torch.float32)  # scores may be as low as anything in float16
    hidden = torch.finfo(accurate).min / 2  # a sum of nothing but −∞ would be NaN
    # Higher than the window's: a query that sees nothing gets the values of hidden slots, which are zeros.
    keys, values, bias = _in_lanes(slots, accurate, hidden / 2)
    length = query.shape[2]
    number = blocks_of(length, BLOCK)
    fill = number * BLOCK - length
    query = F.pad(query, (0, 0, 0, fill)) if fill else query
    output, slot_sums = flash_attention(query, keys, values, mask=bias, scale=scale)

    layout = SpanLayout(BLOCK, length + fill, window_keys.shape[2], window.reach, window.offset, query.device)
    spans = [
        F.pad(x, (0, 0, *layout.sides)).unfold(2, layout.span, BLOCK).transpose(-2, -1)
        for x in (window_keys, window_values)
    ]
    allowed = derive(as_mask(window.padding), _window_scores, layout, accurate, hidden)
    window_bias = None if window.bias is None else bias_at(window.bias, layout.distances).to(accurate)

    def in_blocks(x_HNX: Tensor) -> Tensor:
        return x_HNX.view(x_HNX.shape[0], number, BLOCK, *x_HNX.shape[2:]).transpose(0, 1)

    for row, mask in enumerate(allowed.expand(len(query), -1, -1, -1)):  # the blocks of one row are views
        span_keys, span_values = (x[row].transpose(0, 1) for x in spans)
        scores = mask.unsqueeze(1) if window_bias is None else mask.unsqueeze(1) + window_bias
        seen, window_sums = flash_attention(in_blocks(query[row]), span_keys, span_values, mask=scores, scale=scale)
        share = torch.sigmoid(window_sums - in_blocks(slot_sums[row]))
        in_blocks(output[row]).lerp_(seen, share.unsqueeze(-1).to(seen.dtype))
    return output[:, :, :length], None


def _in_lanes(slots: Slots, dtype: torch.dtype, hidden: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values of a multiple of :data:`LANES` slots, and what is added to their scores ``(B or 1, ·, 1, K)``."""
    keys, values = (x.to(autocast_dtype(x)) for x in slots[:2])
    padding, bias = mask_of(slots.padding), slots.bias
    if rest := -keys.shape[2] % LANES:
        padding = keys.new_zeros(1, keys.shape[2], dtype=torch.bool) if padding is None else padding
        padding = F.pad(padding, (0, rest), value=True)
        keys, values = (F.pad(x, (0, 0, 0, rest)) for x in (keys, values))
        bias = None if bias is None else F.pad(bias, (0, rest))
    bias = None if bias is None else bias.to(dtype).unsqueeze(2)
    if padding is not None:
        seen = keys.new_zeros(1, 1, 1, keys.shape[2], dtype=dtype) if bias is None else bias
        bias = torch.where(padding[:, None, None, :], hidden, seen)
    return keys, values, bias


def _window_scores(mask: Mask | None, layout: SpanLayout, dtype: torch.dtype, hidden: float) -> Tensor:
    visible = visible_positions(mask, layout)
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, hidden)


def _why_not_joined(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> str | None:
    if call.need_weights or call.dropout_p > 0:
        return "it returns and drops no weights"
    if needs_graph(*tensors_in((query, slots, window))):
        return "it has no gradient"
    if query.shape[2] == 0 or slots.keys.shape[2] == 0 or slots.keys.shape[3] != window.values.shape[3]:
        return "it needs a query and a slot, and keys and values of one width"
    return None


_FLEX = Implementation(
    attend_by_flex,
    "cpu, cuda or xpu; no bias of a window, no dropout, no weights, no trace, no torch.func; on a CPU no gradient",
    why_not_flex,
    lambda *call: False,
    measured=UNMEASURED,
)
WINDOWED_ATTENTION = register(
    "windowed attention",
    {
        "flex": _FLEX,
        "onednn": by_onednn(partial(_attend_in_blocks, False), (torch.bfloat16,)),
        "flash": by_flash(attend_joined, _why_not_joined),
        "torch": Implementation(partial(_attend_in_blocks, True)),
    },
)

"""The local window: which positions stand near which queries, in blocks, so that its cost is O(N·w)."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention import SCORES, additive_mask, sdpa_is_held_back

BLOCK = 64  # queries whose windows are worked on together


def attend_with_window(
    query: Tensor,
    slots_k: Tensor,
    slots_v: Tensor,
    key: Tensor,
    value: Tensor,
    reach: int,
    *,
    slot_padding: Tensor | None = None,
    key_padding: Tensor | None = None,
    offset: int = 0,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """One softmax over slots and over the positions at most ``reach`` away from each query.

    Args:
        query: ``(B, H, N, D)``; query i stands at position ``offset + i`` of ``key``.
        slots_k: ``(B, H, K, D)``, and ``slots_v`` ``(B, H, K, Dv)``.
        slots_v: see there.
        key: ``(B, H, M, D)``, and ``value`` ``(B, H, M, Dv)``: all positions that the windows reach.
        value: see there.
        reach: positions on either side.
        slot_padding: bool ``(B or 1, K)``, True at slots that get no weight.
        key_padding: bool ``(B, M)``, True at padding, where keys and values are finite.
        offset: see ``query``.
        dropout_p: probability of dropping a weight.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.

    Returns:
        The output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax before dropout
        ``(B, H, N, K + 2 reach + 1)``, slots first.
    """
    length, device = query.shape[2], query.device
    # Sizes may be symbolic while compiling: one graph for every length has blocks of one size.
    block = BLOCK if torch.compiler.is_compiling() else max(1, min(BLOCK, length))
    number = blocks_of(length, block)
    fill = number * block - length
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    queries = F.pad(query, (0, 0, 0, fill)).reshape(*query.shape[:2], number, block, query.shape[-1])
    # So many positions before the first and behind the last query.
    sides = reach - offset, offset + length + fill + reach - key.shape[2]
    keys, values = (local_blocks(F.pad(x, (0, 0, *sides)), block, reach, reach) for x in (key, value))
    real = key.new_ones(1, key.shape[2], dtype=torch.bool) if key_padding is None else ~key_padding
    real = local_blocks(F.pad(real, sides).unsqueeze(-1), block, reach, reach).squeeze(-1)
    visible = real.unsqueeze(-2) & local_mask(block, reach, reach, device)
    if slot_padding is not None:
        # A row of padding alone would have nothing to attend to.
        nothing = slot_padding.all(dim=-1)[:, None, None] & ~visible.any(dim=-1)
        visible = visible | nothing.unsqueeze(-1)
    slots = _Slots(slots_k, slots_v, slot_padding)
    parts = _split(_Blocks(queries, keys, values, visible), slots)
    weights = None
    if need_weights or dropout_p > 0 or sdpa_is_held_back(query, key, value):
        outputs, softmax = zip(*(_by_definition(part, slots, dropout_p, scale) for part in parts), strict=True)
        if need_weights:
            weights = join_weights(torch.cat(softmax, dim=2), slots_k.shape[2], reach, reach)
            weights = first_positions(weights, length)
    else:
        outputs = tuple(_by_sdpa(part, slots, scale) for part in parts)
    return first_positions(torch.cat(outputs, dim=2).flatten(2, 3), length), weights


class _Blocks(NamedTuple):
    """Queries ``(B, H, blocks, block, D)``, what stands near them ``(B, H, blocks, span, D)`` and ``(…, Dv)``, and
    bool ``(B or 1, blocks, block, span)``, True where they see it."""

    queries: Tensor
    keys: Tensor
    values: Tensor
    visible: Tensor


class _Slots(NamedTuple):
    """Keys and values of the slots, and those that get no weight: see :func:`attend_with_window`."""

    keys: Tensor
    values: Tensor
    padding: Tensor | None


def _split(blocks: _Blocks, slots: _Slots) -> Iterator[_Blocks]:
    """So many blocks at a time that their scores stay in the caches of a CPU; otherwise all of them."""
    # Sizes are symbolic while compiling.
    if torch.compiler.is_compiling() or blocks.queries.device.type != "cpu":
        return iter([blocks])
    batch, heads, _, block, _ = blocks.queries.shape
    scores = batch * heads * block * (slots.keys.shape[2] + blocks.keys.shape[3])
    at_once = max(1, SCORES // max(1, scores))
    parts = [torch.split(x, at_once, dim=2) for x in (blocks.queries, blocks.keys, blocks.values)]
    return (_Blocks(*part) for part in zip(*parts, torch.split(blocks.visible, at_once, dim=1), strict=True))


def _by_definition(blocks: _Blocks, slots: _Slots, dropout_p: float, scale: float) -> tuple[Tensor, Tensor]:
    """Output and softmax of the blocks."""
    queries = blocks.queries * scale
    # Slots serve all blocks as one: a product that is broadcast over the blocks would copy the slots for each.
    slot_scores = (queries.flatten(2, 3) @ slots.keys.mT).view(*queries.shape[:-1], slots.keys.shape[2])
    if slots.padding is not None:
        slot_scores = slot_scores + additive_mask(~slots.padding[:, None, None, None, :], slot_scores.dtype)
    window_scores = queries @ blocks.keys.mT
    window_scores = window_scores + additive_mask(blocks.visible.unsqueeze(1), window_scores.dtype)
    softmax = torch.softmax(torch.cat([slot_scores, window_scores], dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    # Split, not sliced: the gradient of a slice is as long as the whole.
    of_slots, of_window = torch.split(kept, [slots.keys.shape[2], blocks.keys.shape[3]], dim=-1)
    from_slots = (of_slots.flatten(2, 3) @ slots.values).view(*queries.shape[:-1], slots.values.shape[3])
    return from_slots + of_window @ blocks.values, softmax


def _by_sdpa(blocks: _Blocks, slots: _Slots, scale: float) -> Tensor:
    """Output of the blocks, each with a copy of the slots in front of what stands near."""
    batch, _, number, block, _ = blocks.queries.shape

    def with_slots(of_slots: Tensor, near: Tensor) -> Tensor:
        of_slots = of_slots.unsqueeze(2).expand(-1, -1, number, -1, -1)
        return torch.cat([of_slots.transpose(1, 2), near.transpose(1, 2)], dim=-2).flatten(0, 1)

    seen = blocks.visible.new_ones(()) if slots.padding is None else ~slots.padding[:, None, None, :]
    seen = seen.expand(batch, number, block, slots.keys.shape[2])
    allowed = torch.cat([seen, blocks.visible.expand(batch, -1, -1, -1)], dim=-1)
    output = F.scaled_dot_product_attention(
        blocks.queries.transpose(1, 2).flatten(0, 1),
        with_slots(slots.keys, blocks.keys),
        with_slots(slots.values, blocks.values),
        attn_mask=allowed.flatten(0, 1).unsqueeze(1),
        scale=scale,
    )
    return output.view(batch, number, *output.shape[1:]).transpose(1, 2)


def blocks_of(length: int, block: int) -> int:
    """Blocks that hold ``length`` positions; while compiling, so many that one graph can serve every length."""
    if torch.compiler.is_compiling():
        # One block and more would be two graphs; so would filling up by no position and by some.
        number: int = torch.sym_max(length // block + 1, 2)  # type: ignore[no-untyped-call]
        return number
    return -(-length // block)


def first_positions(x: Tensor, length: int) -> Tensor:
    """``(B, H, ·, X)`` to ``(B, H, length, X)``."""
    if torch.compiler.is_compiling():
        # A slice is contiguous at some lengths only: a graph over all lengths must not ask.
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]


def local_blocks(sequence: Tensor, block: int, before: int, after: int = 0) -> Tensor:
    """Every block of positions with its neighbours: ``(…, before + M + after, D)`` to ``(…, M / block, span, D)``.

    ``sequence`` holds ``before`` positions in front of the first block and ``after`` behind the last one; a span is
    ``before + block + after`` positions.
    """
    span = before + block + after
    blocks = (sequence.shape[-2] - before - after) // block
    if not torch.compiler.is_compiling() and blocks == 1:  # a question about a size would tie a graph to it
        return sequence.unsqueeze(-3)
    # Column by block-wide column of the spans. As one view they would be unfolded, whose backward pass is slow.
    sequence = F.pad(sequence, (0, 0, 0, -span % block))
    shape = (*sequence.shape[:-2], blocks, block, sequence.shape[-1])
    columns = [sequence[..., start : start + blocks * block, :].reshape(shape) for start in range(0, span, block)]
    return torch.cat(columns, dim=-2)[..., :span, :]


def local_mask(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """Bool ``(block, span)``: True where a position stands at most ``before`` back and ``after`` ahead of a query."""
    query = torch.arange(block, device=device).unsqueeze(-1) + before
    position = torch.arange(before + block + after, device=device)
    return (position >= query - before) & (position <= query + after)


def join_weights(softmax: Tensor, num_slots: int, before: int, after: int) -> Tensor:
    """``(B, H, blocks, block, K + span)`` to ``(B, H, blocks · block, K + before + 1 + after)``.

    Behind the weights of the slots stand, for each query, those of its own window alone.
    """
    query = torch.arange(softmax.shape[-2], device=softmax.device).unsqueeze(-1)
    of_window = num_slots + query + torch.arange(before + 1 + after, device=softmax.device)
    of_slots = torch.arange(num_slots, device=softmax.device).expand(len(query), -1)
    index = torch.cat([of_slots, of_window], dim=-1)
    return softmax.gather(-1, index.expand(*softmax.shape[:-1], -1)).flatten(2, 3)

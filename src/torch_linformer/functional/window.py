"""The local window: which positions stand near which queries, in blocks, so that its cost is O(N·w)."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

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
    block = max(1, min(BLOCK, length))
    fill = -length % block
    query = F.pad(query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale), (0, 0, 0, fill))
    queries = query.reshape(*query.shape[:2], -1, block, query.shape[-1])
    # So many positions before the first and behind the last query.
    sides = reach - offset, offset + length + fill + reach - key.shape[2]
    keys, values = (local_blocks(F.pad(x, (0, 0, *sides)), block, reach, reach) for x in (key, value))
    real = key.new_ones(1, key.shape[2], dtype=torch.bool) if key_padding is None else ~key_padding
    real = local_blocks(F.pad(real, sides).unsqueeze(-1), block, reach, reach).squeeze(-1)
    visible = real.unsqueeze(-2) & local_mask(block, reach, reach, device)
    slot_scores = queries @ slots_k.unsqueeze(2).mT
    window_scores = queries @ keys.mT
    if slot_padding is not None:
        slot_scores = slot_scores.masked_fill(slot_padding[:, None, None, None, :], float("-inf"))
        # A row of padding alone would have nothing to attend to.
        nothing = slot_padding.all(dim=-1)[:, None, None] & ~visible.any(dim=-1)
        visible = visible | nothing.unsqueeze(-1)
    window_scores = window_scores.masked_fill(~visible.unsqueeze(1), float("-inf"))
    softmax = torch.softmax(torch.cat([slot_scores, window_scores], dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    num_slots = slots_k.shape[2]
    # Split, not sliced: the gradient of a slice is as long as the whole.
    of_slots, of_window = torch.split(kept, [num_slots, kept.shape[-1] - num_slots], dim=-1)
    output = of_slots @ slots_v.unsqueeze(2) + of_window @ values
    weights = join_weights(softmax, num_slots, reach, reach)[:, :, :length] if need_weights else None
    return output.flatten(2, 3)[:, :, :length], weights


def local_blocks(sequence: Tensor, block: int, before: int, after: int = 0) -> Tensor:
    """Every block of positions with its neighbours: ``(…, before + M + after, D)`` to ``(…, M / block, span, D)``.

    ``sequence`` holds ``before`` positions in front of the first block and ``after`` behind the last one; a span is
    ``before + block + after`` positions.
    """
    span = before + block + after
    blocks = (sequence.shape[-2] - span) // block + 1
    if blocks == 1:
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

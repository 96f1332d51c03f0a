"""Sequences cut into blocks of positions, each with those around it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.kernels.graph import is_traced, records_a_graph
from torch_linformer.functional.padding import Mask


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


def local_blocks(sequence: Tensor, block: int, before: int, after: int = 0) -> Tensor:
    """Every block with the positions around it: ``(…, before + M + after, D)`` to ``(…, M / block, span, D)``.

    A span is ``before + block + after`` positions.
    """
    pieces = local_pieces(sequence, block, before + block + after)
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=-2)


def local_pieces(sequence: Tensor, block: int, span: int, sides: tuple[int, int] = (0, 0)) -> list[Tensor]:
    """Pieces ``(…, n, ·, D)`` of the spans of n blocks, one after the other; a span begins where its block does.

    ``sides`` are positions to put before and after the sequence.
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


def put_around(sequence: Tensor, before: int, after: int, fill: float = 0.0) -> Tensor:
    """``(…, M, C)`` with positions that hold ``fill`` before and after it; itself where there are none to add."""
    if not records_a_graph() and before == after == 0:
        return sequence
    return F.pad(sequence, (0, 0, before, after), value=fill)


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

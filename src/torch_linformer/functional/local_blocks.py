"""Sequences cut into blocks of positions, each with those around it."""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.torch_state import is_traced, records_a_graph


def blocks_of(length: int, block: int) -> int:
    """Blocks that hold ``length`` positions; in a recorded graph, enough for it to serve every length."""
    if records_a_graph():
        # One block and several would be two graphs; so would filling up by no position and by some.
        number: Any = length // block + 1  # a tensor in a trace
        enough: int = number.clamp(min=2) if is_traced() else torch.sym_max(number, 2)  # type: ignore[no-untyped-call]
        return enough
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
        every = torch.unflatten(sequence, -2, (-1, block))
        columns = [every[..., i : i + blocks, :, :] for i in range(len(starts))]
    return [column[..., : span - start, :] for column, start in zip(columns, starts, strict=True)]


def put_around(sequence: Tensor, before: int, after: int, fill: float = 0.0) -> Tensor:
    """``(…, M, C)`` with positions that hold ``fill`` before and after it; itself where there are none to add."""
    if not records_a_graph() and before == after == 0:
        return sequence
    return F.pad(sequence, (0, 0, before, after), value=fill)


def local_mask(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """Bool ``(c, s)``: True at positions at most ``before`` back and ``after`` ahead of a query."""
    every = torch.ones(block, before + block + after, dtype=torch.bool, device=device)
    return every.triu_().tril_(before + after)


def join_weights(softmax: Tensor, num_slots: int, before: int, after: int) -> Tensor:
    """``(B, H, n, c, K + s)`` to ``(B, H, n · c, K + before + 1 + after)``: of a span only the query's own window."""
    query = torch.arange(softmax.shape[-2], device=softmax.device).unsqueeze(-1)
    of_window = num_slots + query + torch.arange(before + 1 + after, device=softmax.device)
    of_slots = torch.arange(num_slots, device=softmax.device).expand(len(query), -1)
    index = torch.cat([of_slots, of_window], dim=-1)
    return softmax.gather(-1, index.expand(*softmax.shape[:-1], -1)).flatten(2, 3)


class Near(NamedTuple):
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
        if not records_a_graph() and queries == 0:
            return self.real.new_ones(1, 0, block, block + 2 * self.reach)
        spans = F.pad(self.real, self.sides(queries)).unfold(1, block + 2 * self.reach, block)
        return spans.unsqueeze(2) & local_mask(block, self.reach, self.reach, self.key.device)

    def sides(self, queries: int) -> tuple[int, int]:
        """Positions that the first query sees before key 0, and the last one after key M − 1."""
        return self.reach - self.offset, self.offset + queries + self.reach - self.key.shape[2]


class WindowSlots(NamedTuple):
    """Keys and values ``(B, H, K, ·)`` of the slots beside a window, and which are padding, bool ``(B or 1, K)``."""

    keys: Tensor
    values: Tensor
    padding: Tensor | None

    def padded(self, rest: int) -> "WindowSlots":
        """With ``rest`` more, which are padding."""
        padding = self.keys.new_zeros(1, self.keys.shape[2], dtype=torch.bool) if self.padding is None else self.padding
        keys, values = (F.pad(x, (0, 0, 0, rest)) for x in (self.keys, self.values))
        return WindowSlots(keys, values, F.pad(padding, (0, rest), value=True))

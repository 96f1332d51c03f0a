"""Where slots that are chosen by the input look: their prior, how far it lets them, and the blocks of both."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_linformer.functional.kernels.device_sizes import sizes_for

STEEPNESS = 2.0  # of the prior at first: −2 at a distance of one segment


class SegmentPrior(NamedTuple):
    r"""Where in its row each slot looks at first: :math:`p_{ij} = -2 e^{a_j} (t_i - c_j - d_j)^2`.

    :math:`t_i = (i + ½) K / n` is the place of the i-th of a row's n real tokens, counted in segments, and
    :math:`c_j = j + ½` the center of segment j.

    Attributes:
        shift: d, ``(K,)``, in segments.
        log_steepness: a, ``(K,)``.
        first: j of the first of these slots, which may be a part of all.
        total: the number K of all slots, if these are a part.
    """

    shift: Tensor
    log_steepness: Tensor
    first: int = 0
    total: int | None = None

    def part(self, slots: slice) -> "SegmentPrior":
        return SegmentPrior(self.shift[slots], self.log_steepness[slots], slots.start, self.shift.shape[0])

    @property
    def centers(self) -> Tensor:
        """:math:`c_j + d_j`, ``(K,)``."""
        dtype = torch.promote_types(self.shift.dtype, torch.float32)
        index = torch.arange(self.first, self.first + self.shift.shape[0], device=self.shift.device, dtype=dtype)
        return index + 0.5 + self.shift.to(dtype)

    def distances(self, positions: slice, tokens: Tensor) -> Tensor:
        """:math:`t_i - c_j - d_j`, ``(B or 1, K, m)``, for rows of ``tokens`` ``(B or 1,)`` real tokens."""
        centers_K, num_slots = self.centers, self.shift.shape[0] if self.total is None else self.total
        index = torch.arange(positions.start, positions.stop, device=tokens.device, dtype=centers_K.dtype)
        places_Bm = (index + 0.5) * (num_slots / tokens.clamp(min=1).to(centers_K.dtype).unsqueeze(-1))
        return places_Bm.unsqueeze(1) - centers_K.unsqueeze(-1)

    @property
    def steepness(self) -> Tensor:
        """``(K, 1)``."""
        exponents = self.log_steepness.to(torch.promote_types(self.log_steepness.dtype, torch.float32))
        return STEEPNESS * exponents.exp().unsqueeze(-1)

    def scores(self, distances: Tensor) -> Tensor:
        """p, ``(B or 1, K, m)``."""
        return -self.steepness * distances.square()

    def gradients(self, grad_scores: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Those of d and a, from those of p ``(B, K, m)``."""
        grad_shift = (grad_scores * distances).sum(dim=(0, 2)) * 2 * self.steepness.squeeze(-1)
        grad_log_steepness = (grad_scores * self.scores(distances)).sum(dim=(0, 2))
        return grad_shift, grad_log_steepness


# Nats below the largest, where a weight is nothing: numbers near the smallest ones are ten times as slow.
LOWEST_SCORE = -50.0
ROUNDED = 1.02  # of norms in the type of the input: bfloat16 is off by less than a hundredth each
FEWEST_SLOTS = 32  # at once, where some are left out: with fewer the calls take longer than the scores that they save
SPAN = 512  # positions whose segments belong to slots that are computed at once, likewise


class Reach:
    r"""Which slots have any weight at which positions.

    A weight is nothing where its score lies more than :data:`LOWEST_SCORE` below that of the token nearest to the
    slot's center. Of the scores :math:`|w_j \cdot k_i| \le |w_j| \max_i |k_i|` is known, so none has to be computed:
    beyond a distance of some segments the prior alone decides. Devices that compute while Python goes on are not
    asked for numbers, and leave nothing out; nor is anything left out where one block holds all positions. Arguments
    are those of :func:`pool`.
    """

    def __init__(self, queries: Tensor, prior: SegmentPrior, scored: Tensor, tokens: Tensor, first: int) -> None:
        self.num_slots, self.length, self.first = queries.shape[1], scored.shape[2], first
        plain = type(scored) is Tensor and scored.device.type == "cpu"  # a fake tensor has no numbers
        self.leaves_out = plain and self.length > positions_at_once(queries, scored)
        if self.leaves_out:
            norms = torch.linalg.vector_norm(queries, dim=-1).amax(dim=0).double()
            bounds_K = norms * torch.linalg.vector_norm(scored, dim=-1).max().double() * ROUNDED
            self.tokens = tokens.numpy()
            segment_B1 = self.num_slots / tokens.clamp(min=1).double().unsqueeze(-1)
            centers_K, steepness_K = prior.centers.double(), prior.steepness[:, 0].double()
            outside_K = (-centers_K).clamp(min=0) + (centers_K - self.num_slots).clamp(min=0)
            farthest_BK = ((outside_K + segment_B1 / 2).square() + (2 * bounds_K - LOWEST_SCORE) / steepness_K).sqrt()
            # Where a number is missing, everything is in reach.
            begin_BK = ((centers_K - farthest_BK) / segment_B1 - 0.5).nan_to_num(nan=-math.inf)
            end_BK = ((centers_K + farthest_BK) / segment_B1 - 0.5).nan_to_num(nan=math.inf)
            self.begin, self.end = begin_BK.numpy(), end_BK.numpy()

    def is_real(self, rows: slice, positions: slice) -> bool:
        """Whether no position there is known to be padding."""
        return self.leaves_out and bool(self.first + positions.stop <= _rows_of(rows, self.tokens).min())

    def are_whole(self, blocks: Sequence["Block"]) -> bool:
        """Whether each block has all slots and positions of its rows."""
        return not self.leaves_out and all(block.slots.stop - block.slots.start == self.num_slots for block in blocks)

    def positions(self, rows: slice, slots: slice) -> slice:
        """The positions from the first to the last that has a weight in one of these slots."""
        if not self.leaves_out:
            return slice(0, self.length)
        begin, end = (_rows_of(rows, x)[:, slots] for x in (self.begin, self.end))
        stop = min(self.first + self.length, _rows_of(rows, self.tokens).max())  # after it is padding
        first, last = math.ceil(max(begin.min(), self.first)), math.floor(min(end.max(), stop - 1))
        return slice(first - self.first, max(first, last + 1) - self.first)


def _rows_of(rows: slice, array: Any) -> Any:
    """What belongs to these rows; one row stands for all."""
    return array if len(array) == 1 else array[rows]


class Block(NamedTuple):
    """Slots and positions of some rows of a batch."""

    rows: slice
    slots: slice
    positions: slice

    def take(self, sequence: Tensor) -> Tensor:
        """Its positions of a sequence ``(B, H, M, X)``."""
        return sequence[self.rows, :, self.positions]


def positions_at_once(queries: Tensor, scored: Tensor) -> int:
    """Of one row, whose scores with all slots are computed together."""
    return max(1, sizes_for(scored.device).pooled_scores // (scored.shape[1] * queries.shape[1]))


def blocks_of_slots(reach: Reach, queries: Tensor, scored: Tensor) -> Iterator[Block]:
    """Slots at once, and the positions that they reach: of several rows, or of one where positions are left out."""
    (batch, heads, length, _), num_slots = scored.shape, queries.shape[1]
    size = max(1, sizes_for(scored.device).pooled_scores // heads)
    rows = 1 if reach.leaves_out else max(1, size // max(1, num_slots * length))
    slots_at_once = max(FEWEST_SLOTS, SPAN * num_slots // length) if reach.leaves_out else num_slots
    for row in range(0, batch, rows):
        block_rows = slice(row, row + rows)
        start = 0
        while start < num_slots:
            slots = slice(start, min(start + slots_at_once, num_slots))
            positions = reach.positions(block_rows, slots)
            fitting = max(1, size // max(1, positions.stop - positions.start))
            if fitting < slots.stop - start:
                slots = slice(start, start + fitting)
                positions = reach.positions(block_rows, slots)
            if positions.start < positions.stop:
                yield Block(block_rows, slots, positions)
            start = slots.stop

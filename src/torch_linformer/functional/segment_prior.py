"""Where slots that are chosen by the input look at first, and how far they can look from there."""

from typing import NamedTuple

import torch
from torch import Tensor

STEEPNESS = 2.0  # of the prior at first: −2 at a distance of one segment
LEAST = -50.0  # nats below the largest, where a weight is nothing: numbers near the smallest ones are ten times as slow

ROUNDED = 1.02  # of norms in the type of the input: bfloat16 is off by less than a hundredth each


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

    def gradients(self, of_scores: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Those of d and a, from those of p ``(B, K, m)``."""
        of_shift = (of_scores * distances).sum(dim=(0, 2)) * 2 * self.steepness.squeeze(-1)
        return of_shift, (of_scores * self.scores(distances)).sum(dim=(0, 2))


class Reach:
    r"""Which slots have any weight in a block of positions.

    A weight is nothing where its score lies more than :data:`LEAST` below that of the token nearest to the slot's
    center. Of the scores :math:`|w_j \cdot k_i| \le |w_j| \max_i |k_i|` is known, so none has to be computed: beyond a
    distance of some segments the prior alone decides. Devices that compute while Python goes on are not asked for
    numbers, and leave no slot out; nor is anything left out where one block holds all positions.

    Args:
        queries: w, ``(H, K, D)``.
        prior: of the slots.
        scored: k, ``(B, H, M, D)``.
        tokens: real tokens of each whole row, ``(B or 1,)``.
        first: the place of position 0 in its row.
        at_once: the most positions of a block.
    """

    def __init__(
        self, queries: Tensor, prior: SegmentPrior, scored: Tensor, tokens: Tensor, first: int, at_once: int
    ) -> None:
        self.num_slots, self.first = queries.shape[1], first
        plain = type(scored) is Tensor and scored.device.type == "cpu"  # a fake tensor has no numbers
        self.leaves_out = plain and scored.shape[2] > at_once
        if self.leaves_out:
            norms = torch.linalg.vector_norm(queries, dim=-1).amax(dim=0).double()
            bounds = norms * torch.linalg.vector_norm(scored, dim=-1).max().double() * ROUNDED
            self.centers, self.steepness, self.bounds, self.tokens = (
                x.detach().double().numpy() for x in (prior.centers, prior.steepness[:, 0], bounds, tokens)
            )

    def is_real(self, rows: slice, positions: slice) -> bool:
        """Whether no position there is known to be padding."""
        if not self.leaves_out:
            return False
        tokens = self.tokens if len(self.tokens) == 1 else self.tokens[rows]
        return bool(self.first + positions.stop <= tokens.min())

    def of(self, rows: slice, positions: slice) -> slice:
        """The slots from the first to the last that has a weight there."""
        if not self.leaves_out:
            return slice(0, self.num_slots)
        tokens = (self.tokens if len(self.tokens) == 1 else self.tokens[rows]).clip(min=1)
        start, stop = self.first + positions.start, self.first + positions.stop
        begin = (start + 0.5) * self.num_slots / tokens.max()
        end = min((stop - 0.5) * self.num_slots / tokens.min(), self.num_slots)  # behind it is padding
        outside = (begin - self.centers).clip(min=0) + (self.centers - end).clip(min=0)
        nearest = (-self.centers).clip(min=0) + (self.centers - self.num_slots).clip(min=0)
        nearest += self.num_slots / (2 * tokens.min())
        none = self.steepness * (outside**2 - nearest**2) > 2 * self.bounds - LEAST
        near = (~none).nonzero()[0]  # NaN is not left out
        return slice(int(near[0]), int(near[-1]) + 1) if len(near) else slice(0, 0)

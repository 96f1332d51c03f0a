"""Where slots that are chosen by the input look at first."""

from typing import NamedTuple

import torch
from torch import Tensor

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

"""What is added to scores: biases and masks."""

import torch
from torch import Tensor
from torch.nn import functional as F


def bias_as_channel(
    query: Tensor, key: Tensor, value: Tensor, score_bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with one more channel, whose product is ``score_bias`` ``(B or 1, H or 1, K)``.

    A bias that is learned would be a mask with a gradient, for which SDPA keeps all scores.
    """
    channel = (score_bias / scale).to(key.dtype).expand(*key.shape[:3]).unsqueeze(-1)
    # The kernels of SDPA take values as wide as keys.
    return F.pad(query, (0, 1), value=1.0), torch.cat([key, channel], dim=-1), F.pad(value, (0, 1))


def bias_at(bias: Tensor, offsets: Tensor) -> Tensor:
    """A bias of distances ``(H, 2 R + 1)`` at ``offsets`` ``(n, m)``, as ``(H, n, m)``; beyond R that of the ends."""
    longest = bias.shape[-1] // 2
    places = offsets.clamp(-longest, longest) + longest
    # A third of the time of bias[..., places], its gradient too; and no size is a product of sizes, to which a graph
    # for all lengths would be tied.
    rows = bias.unsqueeze(1).expand(-1, places.shape[0], -1)
    return rows.gather(-1, places.expand(bias.shape[0], -1, -1))


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a bool mask is True and -∞ elsewhere; adding it to scores of many heads is faster than filling them.

    What is no bool mask is one that is added already.
    """
    if allowed.dtype != torch.bool:
        return allowed.to(dtype)
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))

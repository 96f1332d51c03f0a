"""Rotary positions: queries and keys rotated by an angle that grows with their position."""

import torch
from torch import Tensor


def rotate(x: Tensor, positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    r"""Rotate the first ``width`` channels of every head, so that q · k depends only on their distance.

    Channels i and i + width / 2 are the coordinates of a vector rotated by :math:`p\,\theta^{-2i / width}`; the other
    channels stay as they are. Angles are computed in no less than float32.

    Args:
        x: ``(B, H, N, D)``.
        positions: ``(B or 1, N)``, whole numbers.
        width: channels to rotate, even, 0 to D.
        theta: the slowest rotation takes about :math:`2\pi\theta` positions.

    Source: arXiv 2104.09864, section 3.4.
    """
    if width == 0:
        return x
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = theta ** (torch.arange(0, width, 2, device=x.device, dtype=dtype) / -width)
    angles = positions[:, None, :, None].to(dtype) * frequencies
    cos, sin = angles.cos(), angles.sin()
    # Split, not sliced: the gradient of a slice is as wide as the whole head.
    first, second, unrotated = torch.split(x, [width // 2, width // 2, x.shape[-1] - width], dim=-1)
    rotated = [first * cos - second * sin, first * sin + second * cos]
    return torch.cat([*(channels.to(x.dtype) for channels in rotated), unrotated], dim=-1)

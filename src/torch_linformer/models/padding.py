"""Padding on any side made exact: real tokens move to the front on the way in and back on the way out."""

import torch
from torch import Tensor

from torch_linformer.functional.projection import zero_padding


class LeftJustified:
    """The order that puts each row's real tokens first, and the way back.

    Position i of a sequence uses row i of E, so a row must come out the same wherever its padding stood.

    Args:
        attention_mask: ``(B, N)``, nonzero at real tokens.
    """

    def __init__(self, attention_mask: Tensor) -> None:
        real = attention_mask != 0
        tokens = real.sum(dim=-1, keepdim=True)
        # Where each position goes: the real tokens keep their order, the padding follows. No sort: counting is linear.
        self.inverse = torch.where(real, real.cumsum(dim=-1), tokens + (~real).cumsum(dim=-1)) - 1
        positions = torch.arange(real.shape[1], device=real.device).expand_as(self.inverse)
        self.order = torch.empty_like(self.inverse).scatter(-1, self.inverse, positions)
        self.key_padding_mask = positions >= tokens

    def justify(self, tensor: Tensor | None) -> Tensor | None:
        """``(B, N)``, or ``(B, N, C)`` with zeros at padding, the real tokens first; None stays None."""
        if tensor is None:
            return None
        justified = _gather(tensor, self.order)
        # NaN at padding would reach the gradients of the first norm.
        return justified if tensor.dim() == 2 else zero_padding(justified, self.key_padding_mask)

    def restore(self, tensor: Tensor) -> Tensor:
        """``(B, N, C)`` or ``(B, H, N, K)`` in the order the input had."""
        return _gather(tensor, self.inverse, dim=tensor.dim() - 2)


def _gather(tensor: Tensor, order: Tensor, dim: int = 1) -> Tensor:
    """Reorder dimension ``dim`` by ``order`` (B, N), the same for every other index of a row."""
    batch, length = order.shape
    shape = [batch, *[1] * (tensor.dim() - 1)]
    shape[dim] = length
    expanded = [batch, *tensor.shape[1:]]
    return tensor.expand(expanded).gather(dim, order.view(shape).expand(expanded))

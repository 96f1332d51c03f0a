"""Padding: where it is, and the order in which a row's real tokens come first.

Row i of E, the windows and the positions of causal attention belong to the i-th real token. The result of a row must
not depend on where its padding is, so real tokens are moved to the front on the way in and back on the way out.
"""

from typing import NamedTuple, Self

import torch
from torch import Tensor


class Padding(NamedTuple):
    """The padding of a batch.

    Attributes:
        mask: bool ``(B, N)``, True at padding, as the sequence is given.
        trailing: bool ``(B, N)``, the same after the real tokens are moved to the front.
        order: ``(B, N)``, the position that each place of the moved row is taken from; None where nothing has to move,
            because padding follows already or the order does not matter.
        inverse: ``(B, N)``, the way back.
    """

    mask: Tensor
    trailing: Tensor
    order: Tensor | None = None
    inverse: Tensor | None = None

    @classmethod
    def of(cls, mask: Tensor) -> Self:
        """Padding on any side and between real tokens: ``mask`` is bool ``(B, N)``."""
        real = ~mask
        tokens = real.sum(dim=-1, keepdim=True)
        # Where each position goes: the real tokens keep their order, the padding follows. No sort: counting is linear.
        inverse = torch.where(real, real.cumsum(dim=-1), tokens + mask.cumsum(dim=-1)) - 1
        positions = torch.arange(mask.shape[1], device=mask.device).expand_as(inverse)
        order = torch.empty_like(inverse).scatter(-1, inverse, positions)
        return cls(mask, positions >= tokens, order, inverse)

    @classmethod
    def unmoved(cls, mask: Tensor) -> Self:
        """Padding that follows the real tokens, or whose place does not matter."""
        return cls(mask, mask)

    @property
    def justified(self) -> Self:
        """The padding of what :meth:`justify` returns."""
        return type(self)(self.trailing, self.trailing)

    def clean(self, sequence: Tensor) -> Tensor:
        """``sequence`` in its own order, with zeros at padding."""
        return zero_padding(sequence, self.mask)

    def justify(self, sequence: Tensor) -> Tensor:
        """``sequence`` with the real tokens first; ``(B, N, C)`` and ``(B, H, N, D)`` have zeros at padding."""
        moved = reorder(sequence, self.order, dim=max(1, sequence.dim() - 2))
        return moved if sequence.dim() == 2 else zero_padding(moved, self.trailing)

    def restore(self, sequence: Tensor) -> Tensor:
        """``(B, N, C)`` or ``(B, H, N, K)`` in the original order."""
        return reorder(sequence, self.inverse, dim=sequence.dim() - 2)


def justify(mask: Tensor | None, *sequences: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """``sequences`` with the real tokens of each row first, and the mask ``(B, M)`` of what follows these."""
    if mask is None:
        return list(sequences), None
    padding = Padding.of(mask)
    return [padding.justify(sequence) for sequence in sequences], padding.trailing


def reorder(sequence: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """The positions of dimension ``dim`` in the order ``(B, N)`` of their row, the same for all its other indices."""
    if order is None:
        return sequence
    batch, length = order.shape
    first = sequence.expand(batch, *sequence.shape[1:]).movedim(dim, 1)
    # Whole positions of a flat sequence: forward and backward ten times as fast as torch.gather of every channel.
    places = order + torch.arange(batch, device=order.device).unsqueeze(-1) * length
    return first.flatten(0, 1).index_select(0, places.flatten()).view(first.shape).movedim(1, dim)


def zero_padding(sequence: Tensor, mask: Tensor | None) -> Tensor:
    """``sequence`` with zeros at padding, whatever was there; the gradient to padding is exactly zero."""
    return fill_padding(sequence, mask, 0.0)


def fill_padding(sequence: Tensor, mask: Tensor | None, value: float) -> Tensor:
    """``(B, N, C)`` or ``(B, H, N, D)`` with ``value`` at padding. Replaced, not multiplied away: 0 · NaN is NaN."""
    if mask is None:
        return sequence
    mask = mask if sequence.dim() == 3 else mask[:, None]
    return sequence.masked_fill(mask.unsqueeze(-1), value)


def check_padding_mask(key_padding_mask: Tensor | None, batch: int, length: int) -> None:
    """Raise ``ValueError`` where the mask is not bool ``(B, M)``."""
    if key_padding_mask is None:
        return
    if key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True at padding), got {key_padding_mask.dtype}")
    if key_padding_mask.shape != (batch, length):
        raise ValueError(
            f"key_padding_mask must have shape (B, M) = ({batch}, {length}), got {tuple(key_padding_mask.shape)}"
        )

"""What queries attend to, made once and kept for any number of them."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class KeysAndValues(NamedTuple):
    """What queries attend to.

    Attributes:
        keys: of slots or positions, ``(B, H, ·, D)``.
        values: likewise.
        padding: which of them get no attention, bool ``(B or 1, ·)``.
        near: the positions themselves where there is a local window beside the slots.
        num_slots: K, where they are slots; they may be only the first ones, those that a sequence reaches.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor | None
    near: "KeysAndValues | None" = None
    num_slots: int = 0

    def rows(self, index: Tensor) -> "KeysAndValues":
        """The rows of the batch that ``index`` names, in its order (beam search, repeated samples)."""
        keys, values = (x.index_select(0, index) for x in (self.keys, self.values))
        padding = self.padding
        if padding is not None and padding.shape[0] > 1:
            padding = padding.index_select(0, index)
        near = None if self.near is None else self.near.rows(index)
        return self._replace(keys=keys, values=values, padding=padding, near=near)

    def over_all_slots(self, weights: Tensor) -> Tensor:
        """Weights ``(…, K)`` of all slots, 0 where there was none to attend to; after them may stand a window's."""
        reached = self.keys.shape[2]
        if reached == self.num_slots:
            return weights
        of_slots, of_window = torch.split(weights, [reached, weights.shape[-1] - reached], dim=-1)
        return torch.cat([F.pad(of_slots, (0, self.num_slots - reached)), of_window], dim=-1)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        own = sum(x.numel() * x.element_size() for x in (self.keys, self.values, self.padding) if x is not None)
        return own if self.near is None else own + self.near.nbytes

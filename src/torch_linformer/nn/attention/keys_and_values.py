"""What queries attend to, made once and kept for any number of them."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding


class KeysAndValues(NamedTuple):
    """What queries attend to.

    Attributes:
        keys: of slots or positions, ``(B, H, ·, D)``.
        values: likewise.
        padding: which of them get no attention, bool ``(B or 1, ·)``.
        log_tokens: log of the number of tokens that each stands for, ``(B or 1, ·)``, where scores have it added.
        exact: positions that every query attends to themselves beside the slots.
        near: the positions themselves where there is a local window beside the slots.
        num_slots: K, where they are slots; they may be only the first ones, those that a sequence reaches.
        before: of positions near the queries of a piece of the rows: those before the first query's.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor | None
    near: "KeysAndValues | None" = None
    num_slots: int = 0
    log_tokens: Tensor | None = None
    exact: "KeysAndValues | None" = None
    before: int = 0

    def rows(self, index: Tensor) -> "KeysAndValues":
        """The rows of the batch that ``index`` names, in its order (beam search, repeated samples)."""
        keys, values = (x.index_select(0, index) for x in (self.keys, self.values))
        padding, log_tokens = (
            x if x is None or x.shape[0] == 1 else x.index_select(0, index) for x in (self.padding, self.log_tokens)
        )
        near, exact = (None if part is None else part.rows(index) for part in (self.near, self.exact))
        return KeysAndValues(keys, values, padding, near, self.num_slots, log_tokens, exact, self.before)

    def over_all_slots(self, weights: Tensor) -> Tensor:
        """Weights ``(…, K)`` of all slots, 0 where there was none to attend to; after them may stand a window's."""
        reached = self.keys.shape[2]
        if reached == self.num_slots:
            return weights
        of_slots, of_window = torch.split(weights, [reached, weights.shape[-1] - reached], dim=-1)
        return torch.cat([F.pad(of_slots, (0, self.num_slots - reached)), of_window], dim=-1)

    def padding_with(self, others: "KeysAndValues") -> Tensor:
        """Which of these and of others, which follow them, get no attention, ``(B, ·)``."""
        masks = [
            part.keys.new_zeros(1, part.keys.shape[2], dtype=torch.bool) if part.padding is None else part.padding
            for part in (self, others)
        ]
        rows = self.keys.shape[0]  # not the most that a mask has: a comparison would tie an exported graph to it
        return torch.cat([mask.expand(rows, -1) for mask in masks], dim=-1)

    def around(self, padding: Padding | None, reach: int) -> "KeysAndValues":
        """Those of all positions of the rows within ``reach`` of these, which may be a piece of them."""
        if padding is None or not padding.is_piece:
            return self
        both = padding.around(torch.cat([self.keys, self.values], dim=-1), reach)
        keys, values = torch.split(both, [self.keys.shape[-1], self.values.shape[-1]], dim=-1)
        before, mask = min(reach, padding.start), padding.mask_around(reach)
        return self._replace(keys=keys, values=values, padding=mask, before=before)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        tensors = (self.keys, self.values, self.padding, self.log_tokens)
        own = sum(x.numel() * x.element_size() for x in tensors if x is not None)
        return own + sum(part.nbytes for part in (self.near, self.exact) if part is not None)

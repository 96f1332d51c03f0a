"""What causal attention keeps of the past."""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor


@dataclass
class CausalState:
    """What causal attention keeps of the past: tensors whose sizes do not depend on how long that was.

    Attributes:
        tokens: real tokens so far, ``(B,)``.
        keys: sums of weighted keys, ``(B, H, K, D)``.
        mass_k: sums of their weights, ``(B, H, K)``.
        values: sums of weighted values, ``(B, H, K, Dv)``.
        mass_v: sums of their weights, ``(B, H, K)``.
        recent_keys: keys of the last w − 1 real tokens, ``(B, H, w − 1, D)``; fewer stand at the end.
        recent_values: their values, ``(B, H, w − 1, Dv)``.
    """

    tokens: Tensor
    keys: Tensor
    mass_k: Tensor
    values: Tensor
    mass_v: Tensor
    recent_keys: Tensor
    recent_values: Tensor

    @classmethod
    def empty(cls, key: Tensor, value: Tensor, num_slots: int, window: int | None) -> Self:
        """The state before the first token of sequences like ``key`` and ``value``."""
        (batch, heads, _, width), recent = key.shape, (window or 1) - 1
        sums = torch.promote_types(key.dtype, torch.float32)
        return cls(
            tokens=torch.zeros(batch, dtype=torch.long, device=key.device),
            keys=key.new_zeros(batch, heads, num_slots, width, dtype=sums),
            mass_k=key.new_zeros(batch, heads, num_slots, dtype=sums),
            values=value.new_zeros(batch, heads, num_slots, value.shape[-1], dtype=sums),
            mass_v=key.new_zeros(batch, heads, num_slots, dtype=sums),
            recent_keys=key.new_zeros(batch, heads, recent, width),
            recent_values=value.new_zeros(batch, heads, recent, value.shape[-1]),
        )

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        return type(self)(*(getattr(self, field.name).index_select(0, index) for field in fields(self)))

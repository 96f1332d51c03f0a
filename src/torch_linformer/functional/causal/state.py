"""The inputs of causal attention, and what it keeps of the past."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.causal.running_means import SlotWeights


class CausalInput(NamedTuple):
    """Consecutive positions: scaled queries ``(B, H, N, D)``; keys and values with zeros at padding, bool ``(B, N)``.

    Without ``weights_k`` there are no slots; without ``weights_v`` the weights of keys are those of values.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    padding: Tensor | None
    weights_k: SlotWeights | None
    weights_v: SlotWeights | None

    def to(self, dtype: torch.dtype) -> Self:
        return self._replace(query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))

    def pad(self, number: int) -> Self:
        """The inputs with ``number`` positions of padding after them."""
        padding = self.padding
        if padding is None:
            padding = self.query.new_zeros(self.query.shape[0], self.query.shape[2], dtype=torch.bool)
        query, key, value = (F.pad(x, (0, 0, 0, number)) for x in self[:3])
        weights_k, weights_v = (None if proj is None else proj.pad(number) for proj in self[4:])
        return type(self)(query, key, value, F.pad(padding, (0, number), value=True), weights_k, weights_v)

    def split(self, sizes: list[int]) -> Iterator[Self]:
        """Pieces of these sizes. Split, not sliced: the gradient of a slice is as long as the whole."""
        none = [None] * len(sizes)
        tensors = [torch.split(x, sizes, dim=2) for x in self[:3]]
        padding = none if self.padding is None else torch.split(self.padding, sizes, dim=1)
        weights = [none if proj is None else proj.split(sizes) for proj in self[4:]]
        return (type(self)(*parts) for parts in zip(*tensors, padding, *weights, strict=True))


@dataclass
class CausalState:
    """What causal attention keeps of the past: tensors whose sizes do not depend on its length.

    Attributes:
        tokens: real tokens so far, ``(B,)``.
        keys: sums of weighted keys, ``(B, H, K, D)``.
        mass_k: sums of their weights, ``(B, H, K)``.
        values: sums of weighted values, ``(B, H, K, Dv)``.
        mass_v: sums of their weights, ``(B, H, K)``.
        recent_keys: keys of the last w − 1 real tokens, ``(B, H, w − 1, D)``; fewer are at the end.
        recent_values: their values, ``(B, H, w − 1, Dv)``.
        first_keys: keys of the first T real tokens, ``(B, H, T, D)``, zeros where there are fewer yet.
        first_values: their values, ``(B, H, T, Dv)``.
    """

    tokens: Tensor
    keys: Tensor
    mass_k: Tensor
    values: Tensor
    mass_v: Tensor
    recent_keys: Tensor
    recent_values: Tensor
    first_keys: Tensor
    first_values: Tensor

    @classmethod
    def empty(cls, key: Tensor, value: Tensor, num_slots: int, window: int | None, exact_first: int = 0) -> Self:
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
            first_keys=key.new_zeros(batch, heads, exact_first, width),
            first_values=value.new_zeros(batch, heads, exact_first, value.shape[-1]),
        )

    def with_first(self, key: Tensor, value: Tensor, padding: Tensor | None) -> Self:
        """The state with those of the first T tokens that stand in the next positions, whose real tokens come first.

        Queries see no more of them than :meth:`sees_first` says.
        """
        places = torch.arange(self.first_keys.shape[2], device=key.device) - self.tokens.unsqueeze(-1)
        number = key.shape[2] if padding is None else (~padding).sum(dim=-1, keepdim=True)
        is_here = (places >= 0) & (places < number)
        index = places.masked_fill(~is_here, 0)[:, None, :, None]
        is_here = is_here[:, None, :, None]

        def taken(sequence: Tensor, before: Tensor) -> Tensor:
            return torch.where(is_here, sequence.gather(2, index.expand_as(before)), before)

        first_keys, first_values = taken(key, self.first_keys), taken(value, self.first_values)
        return replace(self, first_keys=first_keys, first_values=first_values)

    def sees_first(self, positions: Tensor, window: int | None) -> Tensor:
        """Bool ``(B, 1, N, T)``: the first tokens that tokens of these numbers ``(B, N)``, counted from 0, attend to.

        They are those up to the token itself that its window does not hold.
        """
        ages = positions.unsqueeze(-1) - torch.arange(self.first_keys.shape[2], device=positions.device)
        return (ages >= (window or 0)).unsqueeze(1)

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        return type(self)(*(x.index_select(0, index) for x in self.tensors()))

    def like(self, other: "CausalState") -> list[Tensor]:
        """All tensors, of the types of another state's."""
        return [x.to(y.dtype) for x, y in zip(self.tensors(), other.tensors(), strict=True)]

    def tensors(self) -> list[Tensor]:
        """All of them, in the order in which they are given."""
        return [getattr(self, field.name) for field in fields(self)]

"""The inputs of causal attention, what it keeps of the past, and its next token: what decoding does at every step."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.causal.running_means import CausalSlots, SlotWeights


class CausalInput(NamedTuple):
    """Consecutive positions: scaled queries ``(B, H, N, D)``; keys and values with zeros at padding, bool ``(B, N)``.

    Without ``slots`` they attend to nothing but the window, of ``window`` positions, and the first tokens.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    padding: Tensor | None
    slots: CausalSlots | None
    window: int | None

    def to(self, dtype: torch.dtype) -> Self:
        return self._replace(query=self.query.to(dtype), key=self.key.to(dtype), value=self.value.to(dtype))

    def pad(self, number: int) -> Self:
        """The inputs with ``number`` positions of padding after them."""
        padding = self.padding
        if padding is None:
            padding = self.query.new_zeros(self.query.shape[0], self.query.shape[2], dtype=torch.bool)
        query, key, value = (F.pad(x, (0, 0, 0, number)) for x in self[:3])
        slots = None if self.slots is None else self.slots.map_weights(lambda x: F.pad(x, (0, 0, 0, number)))
        return type(self)(query, key, value, F.pad(padding, (0, number), value=True), slots, self.window)

    def split(self, sizes: list[int]) -> Iterator[Self]:
        """Pieces of these sizes. Split, not sliced: the gradient of a slice is as long as the whole."""
        none = [None] * len(sizes)
        query, key, value = (torch.split(x, sizes, dim=2) for x in self[:3])
        padding = none if self.padding is None else torch.split(self.padding, sizes, dim=1)
        slots = none if self.slots is None else self.slots.split(sizes)
        for parts in zip(query, key, value, padding, slots, strict=True):
            yield type(self)(*parts, self.window)


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


def attend_next(token: CausalInput, state: CausalState, dropout_p: float) -> tuple[Tensor, Tensor, CausalState]:
    """One token in each row, without chunks: output, softmax and the state after it."""
    query, key, value, padding, slots, window = token
    scores, outputs = [], []
    keys, mass_k, values, mass_v = state.keys, state.mass_k, state.values, state.mass_v
    if slots is not None:
        keys, mass_k = _add_token(keys, mass_k, slots.weights_k, key, padding)
        values, mass_v = _add_token(values, mass_v, slots.weights_v or slots.weights_k, value, padding)
        scores_BH1K = ((query @ keys.transpose(-2, -1).to(query.dtype)) / _not_0(mass_k)).to(query.dtype)
        if slots.bias is not None:
            scores_BH1K = scores_BH1K + slots.bias.unsqueeze(-2).to(scores_BH1K.dtype)
        scores.append(scores_BH1K)
    num_slots, num_first = mass_k.shape[-1], state.first_keys.shape[2]
    if num_first > 0:
        seen = state.sees_first(state.tokens.unsqueeze(-1), window)
        scores.append((query @ state.first_keys.transpose(-2, -1).to(query.dtype)).masked_fill(~seen, float("-inf")))
    recent_keys = torch.cat([state.recent_keys.to(key.dtype), key], dim=2)
    recent_values = torch.cat([state.recent_values.to(value.dtype), value], dim=2)
    if window is not None:
        missing = torch.arange(window - 1, -1, -1, device=key.device) > state.tokens.unsqueeze(-1)
        scores.append((query @ recent_keys.transpose(-2, -1)).masked_fill(missing[:, None, None], float("-inf")))
    softmax = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    sizes = [num_slots, num_first, kept.shape[-1] - num_slots - num_first]
    to_slots, to_first, to_window = torch.split(kept, sizes, dim=-1)
    if slots is not None:
        outputs.append((to_slots / _not_0(mass_v)).to(value.dtype) @ values.to(value.dtype))
    if num_first > 0:
        outputs.append(to_first @ state.first_values.to(value.dtype))
    if window is not None:
        outputs.append(to_window @ recent_values)
    tokens = state.tokens + 1
    # Copies: a view would keep the token that has left the window.
    recent_keys, recent_values = recent_keys[:, :, 1:].clone(), recent_values[:, :, 1:].clone()
    if padding is not None:
        absent = padding[:, :, None, None]
        tokens = state.tokens + ~padding[:, 0]
        recent_keys = torch.where(absent, state.recent_keys, recent_keys)
        recent_values = torch.where(absent, state.recent_values, recent_values)
    first = state.first_keys, state.first_values
    after = CausalState(tokens, keys, mass_k, values, mass_v, recent_keys, recent_values, *first)
    return sum(outputs[1:], start=outputs[0]), softmax, after


def _add_token(
    sums: Tensor, mass: Tensor, proj: SlotWeights, token: Tensor, padding: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sums and masses after one more token ``(B, H, 1, X)``; padding ``(B, 1)`` adds nothing and lets nothing fade."""
    fade = torch.exp(-proj.decay.to(sums.dtype)).expand_as(mass)
    weight = torch.ones_like(fade) if proj.weights is None else proj.weights[..., 0, :].to(sums.dtype).expand_as(mass)
    if padding is not None:
        absent = padding.unsqueeze(-1)
        fade, weight = fade.masked_fill(absent, 1.0), weight.masked_fill(absent, 0.0)
    return sums * fade.unsqueeze(-1) + weight.unsqueeze(-1) * token, mass * fade + weight


def _not_0(mass: Tensor) -> Tensor:
    """Masses ``(B, H, 1, K)`` to divide by: before the first token all sums, and so the means, are 0."""
    return mass.masked_fill(mass == 0, 1.0).unsqueeze(2)

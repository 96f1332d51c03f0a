"""What queries attend to, made once and kept for any number of them; and what causal attention keeps of the past."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.causal import CausalState
from torch_linformer.functional.padding import Mask, mask_of
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import ExactTokens, Window, repeat_heads, rotate


class KeysAndValues(NamedTuple):
    """Keys and values that queries attend to, in one softmax.

    Attributes:
        slots: or all positions, in ordinary attention.
        exact: tokens that every query sees themselves.
        window: the positions near each query.
        num_slots: K; ``slots`` may be only the first ones, those that a sequence reaches.
    """

    slots: Slots
    exact: ExactTokens | None = None
    window: Window | None = None
    num_slots: int = 0

    def over_all_slots(self, weights: Tensor) -> Tensor:
        """Weights ``(…, K)`` of all slots, 0 where there was none to attend to; after them stand those of the rest."""
        reached = self.slots.keys.shape[2]
        if reached == self.num_slots:
            return weights
        slot_weights, window_weights = torch.split(weights, [reached, weights.shape[-1] - reached], dim=-1)
        return torch.cat([F.pad(slot_weights, (0, self.num_slots - reached)), window_weights], dim=-1)

    def rows(self, index: Tensor) -> "KeysAndValues":
        """The rows of the batch that ``index`` names, in its order (beam search, repeated samples)."""
        batch = self.slots.keys.shape[0]
        return self._map(lambda x: x.index_select(0, index) if x.shape[0] == batch else x)

    def to_keep(self) -> "KeysAndValues":
        """The same, with tensors in the place of masks that belong to one call."""
        return self._map(lambda x: x)

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        sizes: list[int] = []
        self._map(lambda x: sizes.append(x.numel() * x.element_size()))
        return sum(sizes)

    def _map(self, function: Callable[[Tensor], Any]) -> "KeysAndValues":
        exact, window = (None if part is None else _mapped(part, function) for part in (self.exact, self.window))
        return KeysAndValues(_mapped(self.slots, function), exact, window, self.num_slots)


def _mapped(part: Any, function: Callable[[Tensor], Any]) -> Any:
    """A record with ``function`` of each of its tensors."""
    tensors = {name: x.mask if isinstance(x, Mask) else x for name, x in part._asdict().items()}
    return part._replace(**{name: function(x) for name, x in tensors.items() if isinstance(x, Tensor)})


@dataclass
class FullState:
    """Everything: keys ``(B, H, M, D)`` and values ``(B, H, M, D)`` of M positions, and which of them are padding.

    ``padding`` is bool ``(B, M)``, or None where all are real.
    """

    keys: Tensor
    values: Tensor
    padding: Tensor | None

    @property
    def tokens(self) -> Tensor:
        """Real tokens so far, ``(B,)``."""
        if self.padding is None:
            return torch.full((len(self.keys),), self.keys.shape[2], device=self.keys.device)
        return (~self.padding).sum(dim=-1)

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        padding = None if self.padding is None else self.padding.index_select(0, index)
        return type(self)(self.keys.index_select(0, index), self.values.index_select(0, index), padding)

    def followed_by(self, keys: Tensor, values: Tensor, padding: Tensor | None) -> Self:
        """With the positions that come next."""
        if padding is not None or self.padding is not None:
            parts = [(self.keys, self.padding), (keys, padding)]
            padding = torch.cat(
                [x.new_zeros(x.shape[0], x.shape[2], dtype=torch.bool) if mask is None else mask for x, mask in parts],
                dim=1,
            )
        return type(self)(torch.cat([self.keys, keys], dim=2), torch.cat([self.values, values], dim=2), padding)


class Past:
    """The past of one causal attention; each call that is given it brings it up to date.

    Attributes:
        state: None before the first call.

    Example:
        >>> import torch
        >>> from torch_linformer.nn import LinformerAttention, Past
        >>> attention = LinformerAttention(64, 4, max_len=1024, k=16, causal=True, window=8)
        >>> text, past = torch.randn(1, 100, 64), Past()
        >>> parts = [attention(part, past=past)[0] for part in text.chunk(4, dim=1)]
        >>> torch.allclose(torch.cat(parts, dim=1), attention(text)[0], atol=1e-5)
        True
    """

    def __init__(self, state: CausalState | FullState | None = None) -> None:
        self.state = state

    def select_rows(self, index: Tensor) -> None:
        """Keep the rows of the batch that ``index`` names, in its order (beam search, repeated samples)."""
        if self.state is not None:
            self.state = self.state.rows(index.to(self.state.tokens.device))

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        if self.state is None:
            return 0
        tensors = (getattr(self.state, field.name) for field in fields(self.state))
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)


def at_positions(
    rotary_dim: int, queries: Tensor, positions: Slots, past: Past | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of as many heads ``(B, H, N, D)``, rotated by the positions that follow the past."""
    keys, heads = positions.keys, queries.shape[1]
    if rotary_dim > 0:
        places = _places_after(past, mask_of(positions.padding), keys.shape[2], keys.device)
        queries = rotate(queries, places, rotary_dim)
        keys = rotate(keys, places, rotary_dim)
    return queries, repeat_heads(keys, heads), repeat_heads(positions.values, heads)


def _places_after(past: Past | None, mask: Tensor | None, length: int, device: torch.device) -> Tensor:
    """The number of each position's token, ``(B or 1, N)``, in a count of real tokens that goes on from the past."""
    ones = torch.ones(1, length, dtype=torch.bool, device=device)
    places = (ones if mask is None else ~mask).cumsum(dim=-1) - 1
    return places if past is None or past.state is None else places + past.state.tokens.unsqueeze(-1)

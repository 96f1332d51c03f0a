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
    """Keys and values that queries attend to, in one softmax."""

    slots: Slots  # or all positions, in ordinary attention
    exact: ExactTokens | None = None  # tokens that every query sees themselves
    window: Window | None = None  # the positions near each query
    num_slots: int = 0  # K; ``slots`` may be only the first ones, those that a sequence reaches

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
        """The same with ``function`` of each tensor."""

        def mapped(part: Any) -> Any:
            tensors = {name: x.mask if isinstance(x, Mask) else x for name, x in part._asdict().items()}
            return part._replace(**{name: function(x) for name, x in tensors.items() if isinstance(x, Tensor)})

        exact, window = (None if part is None else mapped(part) for part in (self.exact, self.window))
        return KeysAndValues(mapped(self.slots), exact, window, self.num_slots)


@dataclass
class FullState:
    """Everything: keys and values ``(B, H, M, D)`` of M positions, and the padding among them, bool ``(B, M)``."""

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
    keys, heads, mask = positions.keys, queries.shape[1], mask_of(positions.padding)
    if rotary_dim > 0:  # places ``(B or 1, N)``, in a count of real tokens that goes on from the past
        ones = torch.ones(1, keys.shape[2], dtype=torch.bool, device=keys.device)
        places = (ones if mask is None else ~mask).cumsum(dim=-1) - 1
        if past is not None and past.state is not None:
            places = places + past.state.tokens.unsqueeze(-1)
        queries = rotate(queries, places, rotary_dim)
        keys = rotate(keys, places, rotary_dim)
    return queries, repeat_heads(keys, heads), repeat_heads(positions.values, heads)

"""What queries attend to, made once and kept for any number of them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.softmax_parts import ExactTokens, Slots, Window
from torch_linformer.functional.masks import Mask


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

"""What a causal attention keeps of the positions it has read, so that it can go on from there."""

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor

from torch_linformer.functional.causal_state import CausalState


@dataclass
class FullState:
    """Everything: keys ``(B, H, M, D)``, values ``(B, H, M, D)`` and bool padding ``(B, M)`` of M positions."""

    keys: Tensor
    values: Tensor
    padding: Tensor

    @property
    def tokens(self) -> Tensor:
        """Real tokens so far, ``(B,)``."""
        return (~self.padding).sum(dim=-1)

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        return type(self)(*(getattr(self, field.name).index_select(0, index) for field in fields(self)))


class Past:
    """The past of one causal attention; each call that is given it brings it up to date.

    Attributes:
        state: None before the first call.
    """

    def __init__(self) -> None:
        self.state: CausalState | FullState | None = None

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
        return sum(x.numel() * x.element_size() for x in tensors)


def positions_behind(past: Past | None, padding: Tensor | None, length: int, device: torch.device) -> Tensor:
    """The number of each position's token, ``(B or 1, N)``, in a count of real tokens that goes on from the past."""
    ones = torch.ones(1, length, dtype=torch.bool, device=device)
    positions = (ones if padding is None else ~padding).cumsum(dim=-1) - 1
    return positions if past is None or past.state is None else positions + past.state.tokens.unsqueeze(-1)

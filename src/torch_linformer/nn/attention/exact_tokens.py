"""The tokens that every query attends to themselves: the first and the last ones of a row."""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.functional.padding import Padding


class ExactTokens(NamedTuple):
    """The first and the last tokens of each row, ``first`` and ``last`` of them.

    In a row with fewer tokens those that are both count once, as first ones.
    """

    first: int
    last: int

    @property
    def number(self) -> int:
        return self.first + self.last

    def check(self, max_len: int, *, limit: str = "max_len") -> None:
        """Raise ``ValueError`` for more tokens than a sequence can have."""
        if self.number > max_len:
            raise ValueError(
                f"exact_first + exact_last = {self.number} tokens, but the longest sequence has {limit} = {max_len}"
            )

    def places(self, sequence: Tensor, padding: Padding | None) -> tuple[Tensor, Tensor | None]:
        """Their positions ``(B or 1, T)`` in ``sequence`` ``(B, M, C)``, and bool: True where there is no such token.

        None where there are all of them, as in a long sequence without padding.
        """
        length, device = sequence.shape[1], sequence.device
        tokens = torch.full((1, 1), length, device=device)
        if padding is not None:
            tokens = (~padding.trailing).sum(dim=-1, keepdim=True)
        first = torch.arange(self.first, device=device).expand(tokens.shape[0], -1)
        last = tokens - self.last + torch.arange(self.last, device=device)
        places = torch.cat([first, last], dim=-1)
        if padding is None and not torch.compiler.is_compiling() and length >= self.number:
            return places, None
        missing = torch.cat([first >= tokens, last < self.first], dim=-1)
        return places.masked_fill(missing, 0), missing

    def take(self, sequence: Tensor, places: Tensor) -> Tensor:
        """``(B, T, C)`` of ``(B, M, C)``."""
        if sequence.shape[1] == 0:
            return sequence.new_zeros(sequence.shape[0], self.number, sequence.shape[2])
        return sequence.gather(1, places.unsqueeze(-1).expand(sequence.shape[0], -1, sequence.shape[-1]))

    def seen_apart(self, sequence: Tensor, padding: Padding | None) -> Tensor:
        """Bool ``(B or 1, M)``: True at these tokens and at padding, which a window beside them leaves out."""
        places, missing = self.places(sequence, padding)
        hidden = torch.zeros(places.shape[0], sequence.shape[1] + 1, dtype=torch.bool, device=sequence.device)
        places = places if missing is None else places.masked_fill(missing, sequence.shape[1])
        hidden = hidden.scatter(1, places, True)[:, :-1]
        return hidden if padding is None else hidden | padding.trailing

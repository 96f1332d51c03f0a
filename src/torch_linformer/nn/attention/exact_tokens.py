"""The tokens that every query attends to themselves: the first and the last ones of a row."""

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.functional.padding import Once, Padding, afresh, length_of, total_of, zero_padding
from torch_linformer.functional.torch_state import records_a_graph


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

    def places(self, sequence: Tensor, padding: Padding | None) -> "Places":
        """Where they stand in the rows of ``sequence`` ``(B, M, C)``."""
        if padding is not None:
            return padding.once(("places", self), partial(self._find, sequence, padding))
        return self._find(sequence, None)

    def _find(self, sequence: Tensor, padding: Padding | None) -> "Places":
        length, device = length_of(sequence, padding), sequence.device
        tokens = torch.full((1, 1), length, device=device)
        if padding is not None:
            tokens = padding.tokens
        first = torch.arange(self.first, device=device).expand(tokens.shape[0], -1)
        last = tokens - self.last + torch.arange(self.last, device=device)
        index = torch.cat([first, last], dim=-1)
        if padding is None and not records_a_graph() and length >= self.number:
            return Places(index, None, None)
        missing = torch.cat([first >= tokens, last < self.first], dim=-1)
        once = afresh if padding is None else padding.about(self)
        return Places(index.masked_fill(missing, 0), missing, padding, once)


class Places(NamedTuple):
    """Where the exact tokens of each row stand.

    Attributes:
        positions: theirs, ``(B or 1, T)``.
        missing: bool ``(B or 1, T)``, True where there is no such token; None where there are all of them, as in a long
            sequence without padding.
        padding: of the rows.
        once: keeps what follows from them, for the other layers of a stack.
    """

    positions: Tensor
    missing: Tensor | None
    padding: Padding | None
    once: Once = afresh

    def take(self, sequence: Tensor) -> Tensor:
        """``(B, T, C)`` of ``(B, M, C)``, whichever piece of the rows holds them."""
        batch, length, channels = sequence.shape
        index, elsewhere = self.positions, None
        if self.padding is not None and self.padding.is_piece:
            index = index - self.padding.start
            elsewhere = (index < 0) | (index >= length)
            index = index.masked_fill(elsewhere, 0)
        if length == 0:
            taken = sequence.sum(dim=1, keepdim=True).expand(-1, index.shape[1], -1)  # zeros, part of the graph
        else:
            taken = sequence.gather(1, index.unsqueeze(-1).expand(batch, -1, channels))
        return total_of(zero_padding(taken, elsewhere), self.padding)

    def hidden(self, length: int, reach: int) -> Tensor:
        """Bool ``(B or 1, M)``: True at these tokens and at padding, which a window beside them leaves out.

        Of the ``length`` positions there are, and of the others that a window of that ``reach`` sees.
        """

        def find() -> Tensor:
            index, missing, mask, columns = self.positions, self.missing, None, length
            if self.padding is not None:
                mask = self.padding.mask_around(reach)
                columns = mask.shape[1]
                if self.padding.is_piece:
                    index = index - max(0, self.padding.start - reach)
                    outside = (index < 0) | (index >= columns)
                    missing = outside if missing is None else outside | missing
            index = index if missing is None else index.masked_fill(missing, columns)
            found = torch.zeros(index.shape[0], columns + 1, dtype=torch.bool, device=index.device)
            found = found.scatter(1, index, 1)[:, :-1]  # a number: TorchScript has no scatter of a bool
            return found if mask is None else found | mask

        return self.once(("hidden", reach), find)

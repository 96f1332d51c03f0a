"""The tokens that every query attends to themselves: where the first and the last ones of each row stand."""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.masks import Mask, derive, mask_of
from torch_linformer.functional.padding import Padding, length_of, total_of, zero_padding


def check_exact_tokens(first: int, last: int, max_len: int, *, limit: str = "max_len") -> None:
    """Raise ``ValueError`` for more tokens than a sequence can have."""
    if first + last > max_len:
        raise ValueError(
            f"exact_first + exact_last = {first + last} tokens, but the longest sequence has {limit} = {max_len}"
        )


class ExactPlaces(NamedTuple):
    """Where the exact tokens of each row stand.

    Attributes:
        positions: theirs, ``(B or 1, T)``.
        missing: ``(B or 1, T)``, True where there is no such token; None where there are all of them, as in a long
            sequence without padding.
        padding: of the rows.
    """

    positions: Tensor
    missing: Mask | None
    padding: Padding | None

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

    def hidden(self, length: int, reach: int) -> Mask:
        """``(B or 1, M)``: True at these tokens and at padding, which a window beside them leaves out.

        Of the ``length`` positions there are, and of the others that a window of that ``reach`` sees.
        """
        return derive(self.missing, _hidden, self.positions, self.padding, length, reach)


def find_exact_tokens(sequence: Tensor, padding: Padding | None, first: int, last: int) -> ExactPlaces:
    """The ``first`` and the ``last`` tokens of each row of ``sequence`` ``(B, M, C)``.

    In a row with fewer tokens those that are both count once, as first ones.
    """
    return derive(padding, _find, length_of(sequence, padding), sequence.device, first, last)


def _find(padding: Padding | None, length: int, device: torch.device, first: int, last: int) -> ExactPlaces:
    tokens = torch.full((1, 1), length, device=device) if padding is None else padding.tokens
    first_places = torch.arange(first, device=device).expand(tokens.shape[0], -1)
    last_places = tokens - last + torch.arange(last, device=device)
    places = torch.cat([first_places, last_places], dim=-1)
    if padding is None and not records_a_graph() and length >= first + last:
        return ExactPlaces(places, None, None)
    missing = torch.cat([first_places >= tokens, last_places < first], dim=-1)
    return ExactPlaces(places.masked_fill(missing, 0), Mask(missing), padding)


def _hidden(mask: Mask | None, positions: Tensor, padding: Padding | None, length: int, reach: int) -> Mask:
    missing, hidden, columns = mask_of(mask), None, length
    if padding is not None:
        hidden = padding.mask_around(reach).mask
        columns = hidden.shape[1]
        if padding.is_piece:
            positions = positions - max(0, padding.start - reach)
            outside = (positions < 0) | (positions >= columns)
            missing = outside if missing is None else outside | missing
    positions = positions if missing is None else positions.masked_fill(missing, columns)
    is_exact = torch.zeros(positions.shape[0], columns + 1, dtype=torch.bool, device=positions.device)
    is_exact = is_exact.scatter(1, positions, 1)[:, :-1]  # a number: TorchScript has no scatter of a bool
    return Mask(is_exact if hidden is None else is_exact | hidden)

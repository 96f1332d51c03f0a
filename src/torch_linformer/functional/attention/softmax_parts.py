"""What a softmax goes over: slots, tokens that every query sees themselves, and a window, as small records."""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.implementations import Name
from torch_linformer.functional.padding import (
    Mask,
    Padding,
    as_mask,
    derive,
    length_of,
    mask_of,
    total_of,
    zero_padding,
)


class Slots(NamedTuple):
    """Slots, each a mixture of positions; or all positions, in ordinary attention.

    Attributes:
        keys: ``(B, Hkv, K, D)``; heads of keys and values divide those of the queries.
        values: ``(B, Hkv, K, Dv)``.
        padding: bool ``(B or 1, K)``, True at slots that get no weight.
        bias: ``(B or 1, H or Hkv or 1, K)``, added to their scores: log m for a slot that stands for m tokens.
    """

    keys: Tensor
    values: Tensor
    padding: Mask | Tensor | None = None
    bias: Tensor | None = None


class ExactTokens(NamedTuple):
    """Tokens that every query sees themselves.

    Attributes:
        keys: ``(B, Hkv, T, D)``.
        values: ``(B, Hkv, T, Dv)``.
        padding: bool ``(B or 1, T)``, True where there is no such token.
    """

    keys: Tensor
    values: Tensor
    padding: Mask | Tensor | None = None


class Window(NamedTuple):
    """The positions near each query.

    Attributes:
        keys: ``(B, Hkv, M, D)``, of all positions that the windows reach.
        values: ``(B, Hkv, M, Dv)``.
        reach: query i sees the positions at most so far from ``offset + i``.
        padding: bool ``(B or 1, M)``, True at positions that nobody sees.
        offset: position of query 0.
        bias: ``(H or 1, 2 reach + 1)``, added to the score of the position ``-reach`` … ``reach`` away from the query.
    """

    keys: Tensor
    values: Tensor
    reach: int
    padding: Mask | Tensor | None = None
    offset: int = 0
    bias: Tensor | None = None


class SoftmaxCall(NamedTuple):
    """What one call asks of a softmax.

    Attributes:
        dropout_p: probability of dropping an attention weight; as in SDPA it applies whenever it is above 0.
        need_weights: also return the softmax before dropout.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        impl: see :func:`use_implementation`.
    """

    dropout_p: float = 0.0
    need_weights: bool = False
    scale: float | None = None
    impl: Name = "auto"

    def scale_for(self, query: Tensor) -> float:
        """The factor on the scores of queries ``(…, D)``."""
        return 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale


def join(slots: Slots, exact: ExactTokens | None) -> Slots:
    """Slots and exact tokens after them as one record: an exact token is a slot of one token."""
    if exact is None:
        return slots
    bias = None if slots.bias is None else F.pad(slots.bias, (0, exact.keys.shape[2]))
    keys = torch.cat([slots.keys, exact.keys], dim=2)
    values = torch.cat([slots.values, exact.values], dim=2)
    return Slots(keys, values, _joint_padding(slots, exact), bias)


def _joint_padding(slots: Slots, exact: ExactTokens) -> Mask | None:
    slot_mask, exact_mask = as_mask(slots.padding), as_mask(exact.padding)
    # Not the rows that the masks have: a comparison of these would tie an exported graph to their number.
    rows, num_slots, num_exact = slots.keys.shape[0], slots.keys.shape[2], exact.keys.shape[2]
    if slot_mask is not None:
        return slot_mask.derive(_followed_by, exact_mask, rows, num_exact)
    return None if exact_mask is None else exact_mask.derive(_preceded_by_slots, rows, num_slots)


def _followed_by(slot_mask: Mask, exact_mask: Mask | None, rows: int, num_exact: int) -> Mask:
    masks = slot_mask.mask, slot_mask.mask.new_zeros(1, num_exact) if exact_mask is None else exact_mask.mask
    return Mask(torch.cat([mask.expand(rows, -1) for mask in masks], dim=-1))


def _preceded_by_slots(exact_mask: Mask, rows: int, num_slots: int) -> Mask:
    masks = exact_mask.mask.new_zeros(1, num_slots), exact_mask.mask
    return Mask(torch.cat([mask.expand(rows, -1) for mask in masks], dim=-1))


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values ``(B, Hkv, M, D)`` for ``num_heads`` query heads, ``(B, H, M, D)``; a bias ``(B, Hkv, M)`` too."""
    check_heads(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def for_heads(slots: Slots, num_heads: int) -> Slots:
    """Slots with as many heads as the queries."""
    bias = None if slots.bias is None else repeat_heads(slots.bias, num_heads)
    return Slots(repeat_heads(slots.keys, num_heads), repeat_heads(slots.values, num_heads), slots.padding, bias)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise ``ValueError`` where query heads cannot share the key/value heads evenly."""
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} key/value heads")


def check_scale(scale: float | None) -> None:
    """Raise ``ValueError`` for a factor by which no score can be told from another."""
    if scale is not None and (scale == 0 or not math.isfinite(scale)):
        raise ValueError(f"scale must be a finite number other than 0, or None for 1 / sqrt(D), got {scale}")


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
            rows = sequence.sum(dim=1, keepdim=True).expand(-1, index.shape[1], -1)  # zeros, part of the graph
        else:
            rows = sequence.gather(1, index.unsqueeze(-1).expand(batch, -1, channels))
        return total_of(zero_padding(rows, elsewhere), self.padding)

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

"""What a softmax goes over: slots, tokens that every query sees themselves, and a window, as small records."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.masks import Mask, as_mask


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
        padding: bool ``(B or 1, M)``, True at positions that nobody sees, where keys and values are finite.
        offset: position of query 0.
        bias: ``(H or 1, 2 reach + 1)``, added to the score of the position ``-reach`` … ``reach`` away from the query.
    """

    keys: Tensor
    values: Tensor
    reach: int
    padding: Mask | Tensor | None = None
    offset: int = 0
    bias: Tensor | None = None


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
    no_mask = slot_mask.mask.new_zeros(1, num_exact)
    masks = slot_mask.mask, no_mask if exact_mask is None else exact_mask.mask
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

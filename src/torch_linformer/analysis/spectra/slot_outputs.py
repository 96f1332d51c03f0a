"""What a head would compute from its queries, keys and values if it attended to slots, a window and exact tokens."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.analysis.spectra.observing import ObservedHead
from torch_linformer.functional.dynamic import pool
from torch_linformer.functional.segment_prior import SegmentPrior
from torch_linformer.functional.window import attend_with_window

WINDOW = 64  # tokens


class HeadSlots(NamedTuple):
    """Keys ``(K, D)`` and values ``(K, Dv)`` of the slots of one head."""

    keys: Tensor
    values: Tensor


def beginning_slots(head: ObservedHead, k: int) -> HeadSlots:
    """Slots chosen by the input (``projection="dynamic"``) as they begin: only the prior, w = 0."""
    zeros = head.key.new_zeros(k)
    prior = SegmentPrior(shift=zeros, log_steepness=zeros)
    sequences = [x[None, None] for x in (head.key, head.value)]
    tokens = torch.tensor([len(head.key)], device=head.key.device)
    pooled = pool(head.key.new_zeros(k, head.key.shape[1]), prior, sequences[0], sequences, tokens)
    return HeadSlots(*(x[0, 0].to(head.key.dtype) for x in pooled.slots))


def attend_to_slots(head: ObservedHead, slots: HeadSlots) -> Tensor:
    """The output ``(N, Dv)`` of a softmax over only the slots; a mass that all have would change nothing."""
    return torch.softmax((head.query @ slots.keys.mT) * head.scaling, dim=-1) @ slots.values


def attend_beside_slots(head: ObservedHead, slots: HeadSlots | None) -> Tensor:
    """The output of one softmax over the window, the first and the last token, and slots with their mass, if any."""
    length, ends = len(head.key), sorted({0, len(head.key) - 1})
    query, key, value = (x[None, None] for x in (head.query, head.key, head.value))
    seen_apart = torch.zeros(1, length, dtype=torch.bool, device=key.device)
    seen_apart[:, ends] = True
    keys, values, bias = key[:, :, ends], value[:, :, ends], key.new_zeros(1, 1, len(ends))
    if slots is not None:
        number = len(slots.keys)
        keys = torch.cat([slots.keys[None, None], keys], dim=2)
        values = torch.cat([slots.values[None, None], values], dim=2)
        bias = torch.cat([bias.new_full((1, 1, number), math.log(length / number)), bias], dim=-1)
    output, _ = attend_with_window(
        query,
        keys,
        values,
        key,
        value,
        WINDOW // 2,
        slot_bias=bias,
        key_padding=seen_apart,
        scale=head.scaling,
    )
    return output[0, 0]

"""What a head would compute from its queries, keys and values if it attended to slots, a window and exact tokens."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.analysis.spectra.observing import ObservedHead
from torch_linformer.functional import ExactTokens, Slots, Window, dynamic_slots, slot_attention

WINDOW = 64  # tokens


class HeadSlots(NamedTuple):
    """Keys ``(K, D)`` and values ``(K, Dv)`` of the slots of one head."""

    keys: Tensor
    values: Tensor


def beginning_slots(head: ObservedHead, k: int) -> HeadSlots:
    """Slots chosen by the input (``projection="dynamic"``) as they begin: only the prior, w = 0."""
    queries = head.key.new_zeros(k, head.key.shape[1])
    slots = dynamic_slots(queries, head.key[None, None], head.value[None, None])
    return HeadSlots(slots.keys[0, 0], slots.values[0, 0])


def attend_to_slots(head: ObservedHead, slots: HeadSlots) -> Tensor:
    """The output ``(N, Dv)`` of a softmax over only the slots; a mass that all have would change nothing."""
    return torch.softmax((head.query @ slots.keys.mT) * head.scaling, dim=-1) @ slots.values


def attend_beside_slots(head: ObservedHead, slots: HeadSlots | None) -> Tensor:
    """The output of one softmax over the window, the first and the last token, and slots with their mass, if any."""
    length, ends = len(head.key), sorted({0, len(head.key) - 1})
    query, key, value = (x[None, None] for x in (head.query, head.key, head.value))
    seen_apart = torch.zeros(1, length, dtype=torch.bool, device=key.device)
    seen_apart[:, ends] = True
    exact = ExactTokens(key[:, :, ends], value[:, :, ends])
    if slots is None:
        joint = Slots(key[:, :, :0], value[:, :, :0])
    else:
        number = len(slots.keys)
        mass = key.new_full((1, 1, number), math.log(length / number))
        joint = Slots(slots.keys[None, None], slots.values[None, None], bias=mass)
    window = Window(key, value, WINDOW // 2, padding=seen_apart)
    output, _ = slot_attention(query, joint, exact=exact, window=window, scale=head.scaling)
    return output[0, 0]

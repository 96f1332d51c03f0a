"""A window and slots by two softmaxes, joined: in inference on a CPU, where no slot is then copied for each block."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.cpu_flash import can_flash, flash
from torch_linformer.functional.implementations import needs_graph
from torch_linformer.functional.local_blocks import Near, WindowSlots, blocks_of
from torch_linformer.functional.padding import Once
from torch_linformer.functional.torch_state import is_transformed, records_a_graph

BLOCK = 32  # queries whose windows are computed together: more see more positions that are none of theirs
LANES = 16  # slots that the CPU's SDPA computes together; what is beyond a multiple of them it takes one by one


def can_be_joined(*tensors: Tensor | None) -> bool:
    """Whether :func:`attend_joined` can compute it: in inference, on a CPU, by operations that run at once."""
    given = [tensor for tensor in tensors if tensor is not None]
    at_once = not records_a_graph() and not is_transformed() and not needs_graph(*given)
    query, slots, value = given[0], given[1], given[4]
    fits = query.shape[2] > 0 and slots.shape[2] > 0 and slots.shape[3] == value.shape[3]
    return at_once and can_flash(*given) and fits


def attend_joined(
    query: Tensor, slots: WindowSlots, slot_bias: Tensor | None, near: Near, scale: float, once: Once
) -> Tensor:
    r"""Two softmaxes, over the slots and over the window, joined by the logarithms of their sums, ``(B, H, N, D)``.

    .. math:: \mathrm{out} = (1 - \sigma(l_w - l_s))\, o_s + \sigma(l_w - l_s)\, o_w

    No slot is copied for each block, and no bias widens the channels: it takes half the time (docs/log.md). Only the
    operator below SDPA gives these logarithms, without a gradient.
    """
    if rest := -slots.keys.shape[2] % LANES:
        slots, slot_bias = slots.padded(rest), None if slot_bias is None else F.pad(slot_bias, (0, rest))
    accurate = torch.promote_types(query.dtype, torch.float32)  # scores may be as low as anything in float16
    hidden = torch.finfo(accurate).min / 2  # a sum of nothing but −∞ would be NaN
    bias = None if slot_bias is None else slot_bias.to(accurate).unsqueeze(2)
    if slots.padding is not None:
        there = query.new_zeros(1, 1, 1, slots.keys.shape[2], dtype=accurate) if bias is None else bias
        bias = torch.where(slots.padding[:, None, None, :], hidden, there)
    length = query.shape[2]
    number = blocks_of(length, BLOCK)
    fill = number * BLOCK - length
    query = F.pad(query, (0, 0, 0, fill)) if fill else query
    output, of_slots = flash(query, slots.keys, slots.values, mask=bias, scale=scale)

    span, sides = BLOCK + 2 * near.reach, near.sides(length + fill)
    spans = [F.pad(x, (0, 0, *sides)).unfold(2, span, BLOCK).transpose(-2, -1) for x in (near.key, near.value)]

    def find() -> Tensor:
        visible = near.visible(BLOCK, length + fill)
        return torch.zeros(visible.shape, dtype=accurate).masked_fill_(~visible, hidden)

    allowed = once(("scores of windows", length, near.offset, accurate), find)

    def in_blocks(x_HNX: Tensor) -> Tensor:
        return x_HNX.view(x_HNX.shape[0], number, BLOCK, *x_HNX.shape[2:]).transpose(0, 1)

    for row, mask in enumerate(allowed.expand(len(query), -1, -1, -1)):  # the blocks of one row are views
        keys, values = (x[row].transpose(0, 1) for x in spans)
        found, of_window = flash(in_blocks(query[row]), keys, values, mask=mask.unsqueeze(1), scale=scale)
        share = torch.sigmoid(of_window - in_blocks(of_slots[row]))
        in_blocks(output[row]).lerp_(found, share.unsqueeze(-1).to(found.dtype))
    return output[:, :, :length]

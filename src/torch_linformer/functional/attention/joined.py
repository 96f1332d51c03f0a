"""A window and slots by two softmaxes, joined: in inference on a CPU, where no slot is then copied for each block."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.plain_softmax import bias_at
from torch_linformer.functional.attention.softmax_parts import Slots, SoftmaxCall, Window
from torch_linformer.functional.attention.spans import SpanLayout, blocks_of, visible_positions
from torch_linformer.functional.kernels.cpu import autocast_dtype
from torch_linformer.functional.kernels.graph import needs_graph
from torch_linformer.functional.kernels.torch_private import flash_attention
from torch_linformer.functional.padding import Mask, as_mask, derive, mask_of

BLOCK = 32  # queries whose windows are computed together: more see more positions that are none of theirs
LANES = 16  # slots that the CPU's SDPA computes together; what is beyond a multiple of them it takes one by one


def attend_joined(query: Tensor, slots: Slots, window: Window, scale: float) -> Tensor:
    r"""Two softmaxes, over the slots and over the window, joined by the logarithms of their sums, ``(B, H, N, D)``.

    .. math:: \mathrm{out} = (1 - \sigma(l_w - l_s))\, o_s + \sigma(l_w - l_s)\, o_w

    No slot is copied for each block, and no bias widens the channels: it takes half the time (docs/log.md). Only the
    operator below SDPA gives these logarithms, without a gradient.
    """
    query, window_keys, window_values = (x.to(autocast_dtype(x)) for x in (query, window.keys, window.values))
    accurate = torch.promote_types(query.dtype, torch.float32)  # scores may be as low as anything in float16
    hidden = torch.finfo(accurate).min / 2  # a sum of nothing but −∞ would be NaN
    # Higher than the window's: a query that sees nothing gets the values of hidden slots, which are zeros.
    keys, values, bias = _in_lanes(slots, accurate, hidden / 2)
    length = query.shape[2]
    number = blocks_of(length, BLOCK)
    fill = number * BLOCK - length
    query = F.pad(query, (0, 0, 0, fill)) if fill else query
    output, slot_sums = flash_attention(query, keys, values, mask=bias, scale=scale)

    layout = SpanLayout(BLOCK, length + fill, window_keys.shape[2], window.reach, window.offset, query.device)
    spans = [
        F.pad(x, (0, 0, *layout.sides)).unfold(2, layout.span, BLOCK).transpose(-2, -1)
        for x in (window_keys, window_values)
    ]
    allowed = derive(as_mask(window.padding), _window_scores, layout, accurate, hidden)
    window_bias = None if window.bias is None else bias_at(window.bias, layout.distances).to(accurate)

    def in_blocks(x_HNX: Tensor) -> Tensor:
        return x_HNX.view(x_HNX.shape[0], number, BLOCK, *x_HNX.shape[2:]).transpose(0, 1)

    for row, mask in enumerate(allowed.expand(len(query), -1, -1, -1)):  # the blocks of one row are views
        span_keys, span_values = (x[row].transpose(0, 1) for x in spans)
        scores = mask.unsqueeze(1) if window_bias is None else mask.unsqueeze(1) + window_bias
        seen, window_sums = flash_attention(in_blocks(query[row]), span_keys, span_values, mask=scores, scale=scale)
        share = torch.sigmoid(window_sums - in_blocks(slot_sums[row]))
        in_blocks(output[row]).lerp_(seen, share.unsqueeze(-1).to(seen.dtype))
    return output[:, :, :length]


def why_not_joined(query: Tensor, key: Tensor, value: Tensor, slot_keys: Tensor, *call: object) -> str | None:
    """The reason why :func:`attend_joined` cannot compute a call, or None where it can."""
    *tensors, result = call
    assert isinstance(result, SoftmaxCall)
    if result.need_weights or result.dropout_p > 0:
        return "it returns and drops no weights"
    if needs_graph(query, key, value, slot_keys, *(x for x in tensors if isinstance(x, Tensor))):
        return "it has no gradient"
    if query.shape[2] == 0 or slot_keys.shape[2] == 0 or slot_keys.shape[3] != value.shape[3]:
        return "it needs a query and a slot, and keys and values of one width"
    return None


def _in_lanes(slots: Slots, dtype: torch.dtype, hidden: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values of a multiple of :data:`LANES` slots, and what is added to their scores ``(B or 1, ·, 1, K)``."""
    keys, values = (x.to(autocast_dtype(x)) for x in slots[:2])
    padding, bias = mask_of(slots.padding), slots.bias
    if rest := -keys.shape[2] % LANES:
        padding = keys.new_zeros(1, keys.shape[2], dtype=torch.bool) if padding is None else padding
        padding = F.pad(padding, (0, rest), value=True)
        keys, values = (F.pad(x, (0, 0, 0, rest)) for x in (keys, values))
        bias = None if bias is None else F.pad(bias, (0, rest))
    bias = None if bias is None else bias.to(dtype).unsqueeze(2)
    if padding is not None:
        seen = keys.new_zeros(1, 1, 1, keys.shape[2], dtype=dtype) if bias is None else bias
        bias = torch.where(padding[:, None, None, :], hidden, seen)
    return keys, values, bias


def _window_scores(mask: Mask | None, layout: SpanLayout, dtype: torch.dtype, hidden: float) -> Tensor:
    """What is added to the scores of the spans."""
    visible = visible_positions(mask, layout)
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, hidden)

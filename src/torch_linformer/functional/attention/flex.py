"""A window and slots by FlexAttention: one kernel over all of them, forward and backward."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from torch_linformer.functional.attention.softmax_parts import Slots, SoftmaxCall, Window
from torch_linformer.functional.kernels.graph import is_compiling, records_a_graph
from torch_linformer.functional.kernels.torch_private import is_transformed, is_watched
from torch_linformer.functional.padding import Mask, as_mask, derive

BLOCK = 128  # queries, and keys, that one program of the kernel takes: FlexAttention's own default


FLEX_DEVICES = ("cpu", "cuda", "xpu")  # of which FlexAttention has a gradient everywhere but on a CPU
FLEX_WIDTH = 16  # channels that a kernel of FlexAttention multiplies at the least


def attend_by_flex(query: Tensor, slots: Slots, window: Window, scale: float) -> Tensor:
    r"""Attention to slots and a window as attention to K slots and after them M positions.

    .. math:: \mathrm{out}_i = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt D + b_j)\, v_j, \quad
              j < K \text{ or } |j - K - \mathrm{offset} - i| \le \mathrm{reach}

    Slots and positions ``(B, Hkv, ·, D)`` are keys and values; they may have fewer heads than the query, and the values
    a width of their own. ``slot_bias`` is ``(B or 1, H, K)``. A query that sees nothing gets zeros.

    Which blocks are computed follows from the sizes, is kept for the next call, and takes (N / 128) · ((K + M) / 128)
    integers, twice; padding, the bias and the place of query 0 are tensors that the kernel reads, so that it is
    compiled once for all of them. The gradient of a bias is a sum over all queries, by atomic additions.

    No GPU has run this yet. Outside of compiled graphs a CPU computes it by FlexAttention's own plain formula, N × (K +
    M) scores at once, and there FlexAttention has no gradient.
    """
    dtype = query.dtype
    if torch.is_autocast_enabled(query.device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(query.device.type)
    keys, values = (torch.cat(pair, dim=2).to(dtype) for pair in zip(slots[:2], window[:2], strict=True))
    num_slots, columns = slots.keys.shape[2], keys.shape[2]
    slot_mask, window_mask = as_mask(slots.padding), as_mask(window.padding)
    hidden = None
    if slot_mask is not None or window_mask is not None:
        sizes_of_masks = query.shape[0], num_slots, columns - num_slots, query.device
        hidden = derive(window_mask, _hidden_columns, slot_mask, *sizes_of_masks)
    bias = None
    if slots.bias is not None:
        bias = slots.bias.to(dtype).expand(query.shape[0], query.shape[1], -1)
        # Not F.pad: in a recorded graph that would be a part of the kernel, which reads nothing but tensors.
        bias = torch.cat([bias, bias.new_zeros(*bias.shape[:2], columns - num_slots)], dim=-1)
    lengths = (query.shape[2], columns)
    number, index = _blocks(num_slots, window.reach, window.offset, lengths, query.device)
    sizes: list[Any] = [num_slots, num_slots + window.offset, window.reach]
    if not is_compiling():
        sizes = [query.new_full((), size, dtype=torch.long) for size in sizes]
    sees = _sees(sizes[0], sizes[1], sizes[2], hidden)
    mask = BlockMask.from_kv_blocks(number, index, BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=lengths)
    attend = _function(query.device.type)
    modify_scores = None if bias is None else _biased(bias)
    shares_heads = query.shape[1] != keys.shape[1]
    output: Tensor = attend(query.to(dtype), keys, values, modify_scores, mask, scale, shares_heads)
    return output


def why_not_flex(query: Tensor, key: Tensor, value: Tensor, *call: object) -> str | None:
    """The reason why FlexAttention cannot compute a call, or None where it can."""
    device, width = query.device.type, min(query.shape[-1], value.shape[-1])
    *_, window_bias, result = call
    assert isinstance(result, SoftmaxCall)
    if window_bias is not None:
        return "it adds no bias to the scores of a window"
    if result.need_weights:
        return "it returns no weights"
    if result.dropout_p > 0:
        return "it drops no weights"
    if is_transformed():
        return "the transforms of torch.func do not know it"
    if records_a_graph() and not is_compiling():
        return "torch.jit.trace cannot record it"
    if device not in FLEX_DEVICES:
        return f"it runs on {', '.join(FLEX_DEVICES)}, and a tensor is on {device}"
    if 0 in query.shape[:3]:
        return f"it needs a row and a query, got {tuple(query.shape)}"
    if device != "cpu" and width < FLEX_WIDTH:
        return f"its kernels need heads of {FLEX_WIDTH} channels or more, got {width}"
    return None


def _hidden_columns(
    window_mask: Mask | None, slot_mask: Mask | None, rows: int, num_slots: int, num_keys: int, device: torch.device
) -> Tensor:
    """Bool ``(B, K + M)``, True at slots and positions that nobody sees."""
    masks = [
        torch.zeros(1, size, dtype=torch.bool, device=device) if mask is None else mask.mask
        for mask, size in ((slot_mask, num_slots), (window_mask, num_keys))
    ]
    return torch.cat([mask.expand(rows, -1) for mask in masks], dim=1)


def _sees(num_slots: Any, place: Any, reach: Any, hidden: Tensor | None) -> Callable[..., Tensor]:
    """Whether a query sees a column.

    Sizes are tensors, because a kernel that is compiled here would be compiled for each value of a number; in a graph
    that is recorded they are numbers, because a kernel takes no constants that the graph makes.
    """

    def sees(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Any:
        return (column < num_slots) | ((column - place - query).abs() <= reach)

    if hidden is None:
        return sees

    def sees_real(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Any:
        return ~hidden[row, column] & sees(row, head, query, column)

    return sees_real


def _biased(bias: Tensor) -> Callable[..., Tensor]:
    def add(score: Tensor, row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
        return score + bias[row, head, column]

    return add


def _function(device: str) -> Callable[..., Any]:
    """FlexAttention as it is called: compiled by a graph that is recorded, or else here, but on a CPU as it is."""
    if device == "cpu" or is_compiling():
        function: Callable[..., Any] = flex_attention
        return function
    return _compiled()


@cache
def _compiled() -> Callable[..., Any]:
    # Sizes that change are compiled as symbols, once. With fullgraph a limit of compilations that is reached is an
    # error; without, the kernel would be replaced in silence by the formula that holds all scores.
    return torch.compile(flex_attention, fullgraph=True)


def _find_blocks(
    num_slots: int, reach: int, offset: int, lengths: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """How many blocks of columns each block of queries sees, ``(1, 1, n)``; and all, these first, ``(1, 1, n, m)``."""
    queries = torch.arange((lengths[0] + BLOCK - 1) // BLOCK, device=device).unsqueeze(-1) * BLOCK
    columns = torch.arange((lengths[1] + BLOCK - 1) // BLOCK, device=device) * BLOCK
    has_slots = columns < num_slots
    first = queries + (num_slots + offset - reach)
    has_window = (columns + (BLOCK - 1) >= first) & (columns <= first + (BLOCK - 1 + 2 * reach))
    seen = (has_slots | has_window)[None, None]
    index = seen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return seen.sum(dim=-1, dtype=torch.int32), index.to(torch.int32)


_kept_blocks = lru_cache(maxsize=32)(_find_blocks)


def _blocks(*sizes: Any) -> tuple[Tensor, Tensor]:
    # A recorded graph holds no tensors of other calls, its sizes may be symbols, and other calls take none of its own.
    if records_a_graph() or is_watched():
        return _find_blocks(*sizes)
    with torch.inference_mode(False):  # training takes them too
        return _kept_blocks(*sizes)

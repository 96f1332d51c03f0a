"""A window and slots by FlexAttention: one kernel over all of them, forward and backward."""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from torch_linformer.functional.padding import as_mask
from torch_linformer.functional.pytorch import is_compiling, is_transformed, is_watched, records_a_graph
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import Attended, SoftmaxCall, Window, join_masks, repeat_heads

BLOCK = 128  # queries, and keys, that one program of the kernel takes: FlexAttention's own default
FLEX_DEVICES = ("cpu", "cuda", "xpu")  # of which FlexAttention has a gradient everywhere but on a CPU
FLEX_WIDTH = 16  # channels that a kernel of FlexAttention multiplies at the least


def attend_by_flex(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> Attended:
    r"""Attention to slots and a window as attention to K slots and after them M positions.

    .. math:: \mathrm{out}_i = \mathrm{softmax}_j(s\, q_i \cdot k_j + b_j)\, v_j, \quad
              j < K \text{ or } |j - K - \mathrm{offset} - i| \le \mathrm{reach}

    with b the bias of the slots, 0 in the window, and s the scale. Keys and values may have fewer heads than the
    query, and values a width of their own. A query that sees nothing gets zeros.

    Which blocks are computed follows from the sizes, is kept for the next calls, and takes O(N · (K + reach) + M)
    numbers / 128²; padding, the bias and the place of query 0 are tensors that the kernel reads, so that it is compiled
    once for all of them. The gradient of a bias is a sum over all queries, by atomic additions.

    No GPU has run this yet. Outside of compiled graphs a CPU computes it by FlexAttention's own plain formula, N × (K +
    M) scores at once, and there FlexAttention has no gradient.
    """
    device, dtype, scale = query.device.type, query.dtype, call.scale_for(query)
    if torch.is_autocast_enabled(device) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device)
    keys, values = (torch.cat(pair, dim=2).to(dtype) for pair in zip(slots[:2], window[:2], strict=True))
    rows, num_heads, length, _ = query.shape
    num_slots, columns = slots.keys.shape[2], keys.shape[2]
    masks = as_mask(slots.padding), as_mask(window.padding)
    hidden_mask = join_masks(*masks, rows, (num_slots, columns - num_slots))
    hidden = None if hidden_mask is None else hidden_mask.mask
    sizes: list[Any] = [num_slots, num_slots + window.offset, window.reach]
    if not is_compiling():
        # A kernel that is compiled here would be compiled for each value of a number; one of a graph that is recorded
        # takes no constants that the graph makes.
        sizes = [query.new_full((), size, dtype=torch.long) for size in sizes]
    slots_end, place, reach = sizes

    def sees(row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Any:
        seen = (column < slots_end) | ((column - place - query).abs() <= reach)
        return seen if hidden is None else ~hidden[row, column] & seen

    add_bias: Callable[..., Tensor] | None = None
    if slots.bias is not None:
        bias = repeat_heads(slots.bias, num_heads).to(dtype).expand(rows, -1, -1)
        # Not F.pad: in a recorded graph that would be a part of the kernel, which reads nothing but tensors.
        bias = torch.cat([bias, bias.new_zeros(rows, num_heads, columns - num_slots)], dim=-1)

        def add_bias(score: Tensor, row: Tensor, head: Tensor, query: Tensor, column: Tensor) -> Tensor:
            return score + bias[row, head, column]

    kv_number, kv_index, q_number, q_index = _blocks(
        num_slots, window.reach, window.offset, (length, columns), query.device
    )
    mask = BlockMask(
        seq_lengths=(length, columns),
        kv_num_blocks=kv_number,
        kv_indices=kv_index,
        full_kv_num_blocks=None,
        full_kv_indices=None,
        q_num_blocks=q_number,
        q_indices=q_index,
        full_q_num_blocks=None,
        full_q_indices=None,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=sees,
    )
    attend = flex_attention_on(device)
    return attend(query.to(dtype), keys, values, add_bias, mask, scale, num_heads != keys.shape[1]), None


def why_not_flex(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> str | None:
    """The reason why FlexAttention cannot compute a call, or None where it can."""
    device, width = query.device.type, min(query.shape[-1], window.values.shape[-1])
    if window.bias is not None:
        return "it adds no bias to the scores of a window"
    if call.need_weights:
        return "it returns no weights"
    if call.dropout_p > 0:
        return "it drops no weights"
    if is_transformed():
        return "the transforms of torch.func do not know it"
    if records_a_graph() and not is_compiling():
        return "torch.jit.trace cannot record it"
    if device not in FLEX_DEVICES:
        return f"it runs on {', '.join(FLEX_DEVICES)}, and a tensor is on {device}"
    if 0 in (*query.shape[:3], slots.keys.shape[2] + window.keys.shape[2]):
        return f"it needs a row, a query and a key, got {tuple(query.shape)} and {tuple(window.keys.shape)}"
    if device != "cpu" and width < FLEX_WIDTH:
        return f"its kernels need heads of {FLEX_WIDTH} channels or more, got {width}"
    return None


@cache
def _compiled() -> Callable[..., Any]:
    # Sizes that change are compiled as symbols, once. With fullgraph a limit of compilations that is reached is an
    # error; without, the kernel would be replaced in silence by the formula that holds all scores.
    return torch.compile(flex_attention, fullgraph=True)


def flex_attention_on(device: str) -> Callable[..., Any]:
    """FlexAttention as it is called: compiled by a graph that is recorded, or else here, but on a CPU as it is."""
    if device == "cpu" or is_compiling():
        function: Callable[..., Any] = flex_attention
        return function
    return _compiled()


Blocks = tuple[Tensor, Tensor, Tensor, Tensor]


def _find_blocks(num_slots: int, reach: int, offset: int, lengths: tuple[int, int], device: torch.device) -> Blocks:
    """How many blocks of columns each of n blocks of queries sees, ``(1, 1, n)``, and which, ``(1, 1, n, m)``.

    The same of the queries that see each of m blocks of columns. Of a row of numbers FlexAttention reads only the first
    ones, as many as are seen, so that rows overlap in memory: it holds n · (K + 2 reach) / 128 numbers, and n + m.
    """
    rows, columns = (-(-length // BLOCK) for length in lengths)
    slot_blocks = -(-num_slots // BLOCK)
    place = num_slots + offset
    # Of a block of queries, first the slots, then the window's blocks, which follow each other.
    width = torch.sym_min(columns, slot_blocks + (2 * reach + BLOCK - 2) // BLOCK + 2)  # type: ignore[no-untyped-call]
    number = torch.arange(rows, device=device)
    first = ((number * BLOCK + place - reach) // BLOCK).clamp(slot_blocks, columns)
    last = (number * BLOCK + BLOCK - 1 + place + reach) // BLOCK
    kv_number = slot_blocks + (last + 1 - first).clamp_(min=0).minimum(columns - first)
    entry = torch.arange(rows * width + columns - width, device=device)
    row, seen = entry // width, entry % width
    kv_index = seen + (seen >= slot_blocks) * (first[row.clamp(max=rows - 1)] - slot_blocks)
    # Blocks of queries that see a block of columns follow each other, too; the next block of columns begins one later.
    number = torch.arange(columns, device=device)
    first_row = (reach + place) // -BLOCK
    last = (number * BLOCK + BLOCK - 1 + reach - place) // BLOCK
    seen_by = (last.clamp(max=rows - 1) + 1 - number - first_row).clamp(0, rows).masked_fill_(last < 0, 0)
    q_number = torch.where(number < slot_blocks, rows, seen_by)
    q_index = torch.arange(columns + rows, device=device).add_(first_row) % rows
    views = (
        kv_index.clamp_(max=columns - 1).to(torch.int32).as_strided((1, 1, rows, columns), (1, 1, width, 1)),
        q_index.to(torch.int32).as_strided((1, 1, columns, rows), (1, 1, 1, 1)),
    )
    return kv_number.to(torch.int32)[None, None], views[0], q_number.to(torch.int32)[None, None], views[1]


_kept_blocks = lru_cache(maxsize=4)(_find_blocks)  # layers of one model ask for the same


def _blocks(*sizes: Any) -> Blocks:
    # A recorded graph holds no tensors of other calls, its sizes may be symbols, and other calls take none of its own.
    if records_a_graph() or is_watched():
        return _find_blocks(*sizes)
    with torch.inference_mode(False):  # training takes them too
        return _kept_blocks(*sizes)

"""The operations: one softmax over slots, exact tokens and a window; and Linformer's, over slots made by E and F.

A window is computed in blocks of queries, so that its cost is O(N·w).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from torch_linformer.functional.cpu import autocast_dtype, by_flash, by_onednn, sizes_for, tensors_in
from torch_linformer.functional.flex import attend_by_flex, why_not_flex
from torch_linformer.functional.implementations import (
    UNMEASURED,
    Implementation,
    Name,
    check_implementation,
    compute,
    register,
)
from torch_linformer.functional.padding import (
    Mask,
    as_mask,
    check_shapes,
    justify,
    kept,
    mask_of,
    put_around,
    zero_padding,
)
from torch_linformer.functional.pytorch import (
    flash_attention,
    flash_attention_backward,
    is_traced,
    needs_graph,
    records_a_graph,
    serves_any_length,
)
from torch_linformer.functional.slots import Slots, check_dense, compress
from torch_linformer.functional.softmax import (
    ATTENTION,
    Attended,
    ExactTokens,
    Part,
    SoftmaxCall,
    Window,
    additive_mask,
    allowed_at,
    bias_as_channel,
    bias_at,
    check_heads,
    check_scale,
    for_heads,
    join,
)


def slot_attention(
    query: Tensor,
    slots: Slots,
    *,
    exact: ExactTokens | None = None,
    window: Window | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
    impl: Name = "auto",
) -> tuple[Tensor, Tensor | None]:
    r"""Attention of N queries to K slots, T exact tokens and the positions near each query, in one softmax.

    .. math::
        \mathrm{out}_i = \mathrm{softmax}\big([q_i \bar K^\top / \sqrt D + b;\; q_i K_T^\top / \sqrt D;\;
                         q_i K_{W_i}^\top / \sqrt D + a_{W_i - \mathrm{offset} - i}]\big)\,
        [\bar V;\; V_T;\; V_{W_i}], \quad
        W_i = \{j : |j - \mathrm{offset} - i| \le \mathrm{reach}\}

    A token that is in two of the parts counts twice: hide exact tokens from the window by its ``padding``. What stands
    at padding changes nothing, NaN neither. Time and memory are O(N·(K + T + reach)).

    Args:
        query: ``(B, H, N, D)``.
        slots: as :func:`segment_slots` and :func:`dynamic_slots` make them, or keys and values that
            :func:`project_sequence` has made, or those of all positions; b is their ``bias``.
        exact: tokens that every query sees themselves.
        window: the positions of which each query sees those near it; a, of the distance, is its ``bias``.
        dropout_p: probability of dropping an attention weight; as in SDPA it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        need_weights: also return the softmax before dropout.
        impl: see :func:`use_implementation`.

    Returns:
        ``(B, H, N, Dv)``, and None or the softmax ``(B, H, N, K + T + 2 reach + 1)``. A query that sees nothing but
        padding gets zeros, of output and of weights, and has no gradient: the same in every implementation.

    Raises:
        ValueError: if shapes or ``scale`` do not fit, there are no parts to attend to, or ``impl`` cannot compute it.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import Window, segment_slots, slot_attention
        >>> query, key, value = torch.randn(3, 2, 4, 1000, 16)  # (B, H, N, D) each
        >>> slots = segment_slots(key, value, k=32)  # means of 32 segments
        >>> slot_attention(query, slots, window=Window(key, value, reach=8))[0].shape
        torch.Size([2, 4, 1000, 16])
    """
    for name, part in (("slots", slots), ("exact", exact), ("window", window)):
        if part is not None:
            _check_part(name, query, part)
    num_heads = query.shape[1]
    if window is not None:
        width = 2 * window.reach + 1
        if window.reach < 0:
            raise ValueError(f"window.reach must be at least 0 positions, got {window.reach}")
        if window.bias is not None and window.bias.shape not in ((num_heads, width), (1, width)):
            shape = tuple(window.bias.shape)
            raise ValueError(f"window.bias must be (H or 1, 2 reach + 1) = ({num_heads} or 1, {width}), got {shape}")
    elif slots.keys.shape[2] == 0 and (exact is None or exact.keys.shape[2] == 0):
        raise ValueError("there is nothing to attend to: give a slot, an exact token or a window")
    if slots.bias is not None:
        rows, heads, num_slots = (*slots.bias.shape, 0, 0, 0)[:3]
        fits = slots.bias.dim() == 3 and rows in (1, query.shape[0]) and num_slots == slots.keys.shape[2]
        fits = fits and num_heads % max(heads, 1) == 0
        check_shapes(
            fits, "slots.bias must be (B or 1, H, K) beside query and slots.keys", slots.bias, query, slots.keys
        )
    check_scale(scale)
    check_implementation(impl)
    exact, window = None if exact is None else _clean(exact), None if window is None else _clean(window)
    return attend(query, _clean(slots), exact, window, SoftmaxCall(dropout_p, need_weights, scale, impl))


def _clean(part: Part) -> Part:
    mask = mask_of(part.padding)
    return part._replace(keys=zero_padding(part.keys, mask), values=zero_padding(part.values, mask))


def attend(
    query: Tensor,
    slots: Slots,
    exact: ExactTokens | None = None,
    window: Window | None = None,
    call: SoftmaxCall = SoftmaxCall(),
) -> Attended:
    """:func:`slot_attention`, unchecked: at padding stand numbers, of slots and exact tokens values of zeros.

    Returns the output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax before dropout; zeros in a row whose
    slots are all hidden.
    """
    slots = join(slots, exact)
    if window is not None:
        attended: Attended = compute(WINDOWED_ATTENTION, query, slots, window, call, impl=call.impl)
        return attended
    key, value, _, bias = for_heads(slots, query.shape[1])
    hidden = mask_of(slots.padding)
    width, allowed = value.shape[-1], allowed_at(hidden)
    if bias is not None and needs_graph(bias) and not call.need_weights:
        call = call._replace(scale=call.scale_for(query))
        query, key, value = bias_as_channel(query, key, value, bias, call.scale_for(query))
    elif bias is not None:
        added = bias.unsqueeze(2).to(query.dtype)
        allowed = added if allowed is None else added.masked_fill(~allowed, float("-inf"))
    output, weights = compute(ATTENTION, query, key, value, allowed, call, hidden, impl=call.impl)
    return output if value.shape[-1] == width else output[..., :width], weights


def _check_part(name: str, query: Tensor, part: Slots | ExactTokens | Window) -> None:
    keys, values, padding = part.keys, part.values, mask_of(part.padding)
    fits = query.dim() == keys.dim() == values.dim() == 4
    check_shapes(fits, f"query and {name} must be (B, H, ·, D) each", query, keys, values)
    fits = keys.shape[:3] == values.shape[:3] and (keys.shape[0], keys.shape[3]) == (query.shape[0], query.shape[3])
    expected = f"{name} must have keys (B, Hkv, ·, D) and values (B, Hkv, ·, Dv) beside a query (B, H, N, D)"
    check_shapes(fits, expected, keys, values, query)
    check_heads(query.shape[1], keys.shape[1])
    shapes = (keys.shape[0], keys.shape[2]), (1, keys.shape[2])
    if padding is not None and (padding.dtype is not torch.bool or padding.shape not in shapes):
        raise ValueError(
            f"{name}.padding must be bool (B or 1, {keys.shape[2]}), True at what is hidden, got {padding.dtype} "
            f"{tuple(padding.shape)}"
        )


def linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: Tensor,
    proj_v: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    length_scaling: bool = True,
    impl: Name = "auto",
) -> Tensor:
    r"""Attention of N queries over M positions compressed into K slots.

    .. math::
        \bar K = s E^\top (m \odot K), \quad \bar V = s F^\top (m \odot V), \quad
        \mathrm{out} = \mathrm{softmax}(Q \bar K^\top / \sqrt D)\, \bar V

    where m is 0 at padding and s is the length factor of :func:`project_sequence`. Time and memory are
    O(N·K + M·K) instead of O(N·M).

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, M, D)``; fewer heads than the query's (multi-query), dividing H, are allowed.
        value: ``(B, H, M, Dv)``, with the key's number of heads.
        proj_k: E, ``(max_len, K)`` or one matrix a key/value head, ``(H, max_len, K)``.
        proj_v: F, likewise.
        key_padding_mask: bool ``(B, M)``, True at padding.
        dropout_p: probability of dropping an attention weight; as in SDPA it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        length_scaling: False leaves s out.
        impl: ``"auto"``, ``"torch"`` or ``"onednn"``: see :func:`use_implementation`.

    Returns:
        ``(B, H, N, Dv)``.

    Raises:
        ValueError: if shapes or ``scale`` do not fit, M exceeds ``max_len``, or ``impl`` cannot compute it.

    Source: arXiv 2006.04768, equation 7.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import linformer_attention
        >>> sequence = torch.randn(2, 4, 3000, 16)  # (B, H, N, D)
        >>> proj = torch.randn(4096, 64) / 64  # E = F, for up to 4,096 positions, with variance 1 / max_len
        >>> linformer_attention(sequence, sequence, sequence, proj, proj).shape
        torch.Size([2, 4, 3000, 16])
    """
    fits = query.dim() == key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3]
    fits = fits and (query.shape[0], query.shape[3]) == (key.shape[0], key.shape[3])
    expected = "query, key and value must be (B, H, N, D), (B, H, M, D) and (B, H, M, Dv)"
    check_shapes(fits, expected, query, key, value)
    check_heads(query.shape[1], key.shape[1])
    for sequence, proj in ((key, proj_k), (value, proj_v)):
        check_dense(sequence, proj, key_padding_mask)
    check_scale(scale)
    check_implementation(impl)
    (key, value), padding = justify(key_padding_mask, key, value)
    slots_k = compress(key, proj_k, padding, length_scaling, impl=impl)
    slots_v = compress(value, proj_v, padding, length_scaling, impl=impl)
    return attend(query, Slots(slots_k, slots_v), call=SoftmaxCall(dropout_p, scale=scale, impl=impl))[0]


# The window: sequences cut into blocks of positions, each with those around it.


def blocks_of(length: int, block: int) -> int:
    """Blocks that hold ``length`` positions; in a recorded graph, enough for it to serve every length."""
    if records_a_graph():
        # One block and several would be two graphs; so would filling up by no position and by some.
        number: Any = length // block + 1  # a tensor in a trace
        two_at_least: int = number.clamp(min=2) if is_traced() else torch.sym_max(number, 2)  # type: ignore[no-untyped-call]
        return two_at_least
    return -(-length // block)


def first_positions(x: Tensor, length: int) -> Tensor:
    """``(B, H, ·, X)`` to ``(B, H, length, X)``."""
    if records_a_graph():
        # A slice is contiguous at some lengths only, on which a graph for all lengths must not depend.
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]


def local_parts(sequence: Tensor, block: int, span: int, sides: tuple[int, int] = (0, 0)) -> list[Tensor]:
    """Parts ``(…, n, ·, D)`` of the spans of n blocks, one after the other; a span begins where its block does.

    ``sides`` are positions to put before and after the sequence ``(…, M, D)``.
    """
    blocks = (sequence.shape[-2] + sum(sides) - span + block) // block
    if not records_a_graph() and blocks == 1:  # comparing a size would tie a graph to it
        return [put_around(sequence, *sides).unsqueeze(-3)]
    # By columns as wide as a block. Tensor.unfold would give them as one view, but its backward pass is slow.
    sequence = put_around(sequence, sides[0], sides[1] + -span % block)
    starts = range(0, span, block)
    if records_a_graph():  # a graph for all lengths cannot know that the whole is one column more
        shape = (*sequence.shape[:-2], blocks, block, sequence.shape[-1])
        columns = [sequence[..., start : start + blocks * block, :].reshape(shape) for start in starts]
    else:
        whole = torch.unflatten(sequence, -2, (-1, block))
        columns = [whole[..., i : i + blocks, :, :] for i in range(len(starts))]
    return [column[..., : span - start, :] for column, start in zip(columns, starts, strict=True)]


def local_mask(block: int, before: int, after: int, device: torch.device) -> Tensor:
    """Bool ``(c, s)``: True at positions at most ``before`` back and ``after`` ahead of a query."""
    positions = torch.ones(block, before + block + after, dtype=torch.bool, device=device)
    return positions.triu_().tril_(before + after)


def join_weights(softmax: Tensor, num_slots: int, before: int, after: int) -> Tensor:
    """``(B, H, n, c, K + s)`` to ``(B, H, n · c, K + before + 1 + after)``: of a span only the query's own window."""
    query = torch.arange(softmax.shape[-2], device=softmax.device).unsqueeze(-1)
    window_columns = num_slots + query + torch.arange(before + 1 + after, device=softmax.device)
    slot_columns = torch.arange(num_slots, device=softmax.device).expand(len(query), -1)
    index = torch.cat([slot_columns, window_columns], dim=-1)
    return softmax.gather(-1, index.expand(*softmax.shape[:-1], -1)).flatten(2, 3)


class SpanLayout(NamedTuple):
    """How queries are cut into blocks, and where the spans of positions that their windows reach lie among the keys."""

    block: int  # queries c in a block
    queries: int  # in all blocks, those that fill up the last one among them
    keys: int  # positions M
    reach: int  # of a window
    offset: int  # position of query 0
    device: torch.device  # of the masks

    @property
    def span(self) -> int:
        """Positions that the windows of a block reach."""
        return self.block + 2 * self.reach

    @property
    def sides(self) -> tuple[int, int]:
        """Positions that the first query sees before key 0, and the last one after key M − 1."""
        return self.reach - self.offset, self.offset + self.queries + self.reach - self.keys

    def parts(self, at_once: int) -> list[slice]:
        """A few blocks each, whose spans begin before the first key, lie among the keys, or end after the last one."""
        before, after = self.sides
        number = self.queries // self.block
        first = min(number, max(0, -(-before // self.block)))
        last = max(first, min(number, number - -(-after // self.block)))
        ends = pairwise((0, first, last, number))
        return [slice(i, min(i + at_once, stop)) for start, stop in ends for i in range(start, stop, at_once)]

    def of(self, part: slice) -> "SpanLayout":
        """That of a part of the blocks."""
        blocks = part.stop - part.start
        return self._replace(queries=blocks * self.block, offset=self.offset + part.start * self.block)

    def spans(self, sequence: Tensor, dtype: torch.dtype) -> Tensor:
        """Keys or values ``(n, H, s, D)`` of the spans, of ``(H, M, D)``: views, but where there are none on a side."""
        return put_around(sequence, *self.sides).to(dtype).unfold(1, self.span, self.block).permute(1, 0, 3, 2)

    def blocks(self, rows: Tensor, part: slice) -> Tensor:
        """A view ``(n, H, c, …)`` of a part of the blocks of queries ``(H, N, …)``."""
        return torch.unflatten(rows, 1, (-1, self.block)).transpose(0, 1)[part]

    def add_spans(self, rows: Tensor, spans: Tensor, part: slice) -> None:
        """Add ``(n, H, s, D)`` of the spans of a part to positions ``(H, ·, D)``, the first of which is span 0's."""
        for column in range(0, self.span, self.block):
            columns = spans[:, :, column : column + self.block]
            start = column + part.start * self.block
            places = self.blocks(rows[:, start : start + len(spans) * self.block], slice(None))
            places[:, :, : columns.shape[2]].add_(columns)

    def bias(self, window: Window) -> Tensor | None:
        """What the bias of a window adds to the scores of each span, ``(H or 1, c, s)``."""
        if window.bias is None:
            return None
        positions = torch.arange(-self.reach, self.block + self.reach, device=self.device)
        return bias_at(window.bias, positions - torch.arange(self.block, device=self.device).unsqueeze(-1))


@kept
def visible_positions(mask: Mask | None, layout: SpanLayout) -> Tensor:
    """Which positions of its span each query of a block sees, bool ``(B or 1, n, c, s)``."""
    real = torch.ones(1, layout.keys, dtype=torch.bool, device=layout.device) if mask is None else ~mask.mask
    if not records_a_graph() and layout.queries == 0:
        return real.new_ones(1, 0, layout.block, layout.span)
    spans = put_around(real.unsqueeze(-1), *layout.sides).squeeze(-1).unfold(1, layout.span, layout.block)
    if records_a_graph():  # the layout of a view of overlapping spans depends on their number
        spans = spans.clone(memory_format=torch.contiguous_format)
    return spans.unsqueeze(2) & local_mask(layout.block, layout.reach, layout.reach, layout.device)


@kept
def _visible_slots(mask: Mask | None, layout: SpanLayout, slot_mask: Mask | None) -> Tensor | None:
    """Bool ``(B or 1, n, c, K)``. A query that sees nothing sees the hidden slots, whose values are zeros: no NaN."""
    if slot_mask is None:
        return None
    sees_nothing = ~visible_positions(mask, layout).any(dim=-1) & slot_mask.mask.all(dim=-1)[:, None, None]
    return ~slot_mask.mask[:, None, None, :] | sees_nothing.unsqueeze(-1)


@kept
def _one_hidden_slot(mask: Mask | None, device: torch.device) -> Mask:
    return Mask(torch.ones(1, 1, dtype=torch.bool, device=device))


# One softmax over the slots and the span of each block.


def _attend_in_blocks(by_sdpa: bool, query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> Attended:
    (batch, num_heads, length, _), width = query.shape, window.values.shape[-1]
    scale, num_slots = call.scale_for(query), slots.keys.shape[2]
    slots, window, mask = for_heads(slots, num_heads), for_heads(window, num_heads), as_mask(window.padding)
    if num_slots == 0:
        keys, values = (F.pad(x, (0, 0, 0, 1)) for x in slots[:2])
        slots = Slots(keys, values, _one_hidden_slot(mask, query.device))
    if slots.bias is not None:
        query, keys, values = bias_as_channel(query, slots.keys, slots.values, slots.bias, scale)
        slots = slots._replace(keys=keys, values=values)
        window = window._replace(keys=F.pad(window.keys, (0, 1)), values=F.pad(window.values, (0, 1)))
    by_sdpa = by_sdpa and not call.need_weights and call.dropout_p == 0
    if window.bias is not None and needs_graph(window.bias):
        by_sdpa = False  # its mask would have a gradient, for which it keeps all scores beside copies of the slots

    # Sizes may be symbolic while compiling: one graph for every length has blocks of one size.
    largest = sizes_for(query.device).window_block
    block = largest if records_a_graph() else max(1, min(largest, length))
    # OpenVINO knows no maximum of sizes, and a sum of blocks would be no divisor of positions.
    number = (length + 2 * block - 1) // block if serves_any_length() else blocks_of(length, block)
    fill = number * block - length
    layout = SpanLayout(block, length + fill, window.keys.shape[2], window.reach, window.offset, query.device)
    queries = put_around(query, 0, fill).reshape(batch, num_heads, number, block, query.shape[-1])
    span_keys, span_values = (local_parts(x, block, layout.span, layout.sides) for x in (window.keys, window.values))
    slot_mask, bias = as_mask(slots.padding), layout.bias(window)
    visible, visible_slots = visible_positions(mask, layout), _visible_slots(mask, layout, slot_mask)
    # As many blocks at a time as the device takes scores; while compiling all.
    limit = sizes_for(query.device).window_scores
    scores = batch * num_heads * block * (slots.keys.shape[2] + layout.span)
    at_once = number if records_a_graph() or limit is None else max(1, limit // max(1, scores))
    is_whole = records_a_graph() or at_once >= number

    def split(x: Tensor, dim: int) -> Sequence[Tensor]:
        return [x] if is_whole else torch.split(x, at_once, dim)  # sliced, the gradient would be as long as the whole

    parts = list(zip(*(split(x, 2) for x in (queries, *span_keys, *span_values)), split(visible, 1), strict=True))
    slot_parts = [None] * len(parts) if visible_slots is None else split(visible_slots, 1)
    outputs: list[Tensor] = []
    softmaxes: list[Tensor] = []
    for (queries, *spans, visible), visible_slots in zip(parts, slot_parts, strict=True):
        block_keys, block_values = spans[: len(span_keys)], spans[len(span_keys) :]
        if by_sdpa:  # each block is a row of a batch, with a copy of the slots before its span
            # Masks of parts are made where they are needed: all at once they are larger than the caches.
            sizes = slots.keys.shape[2], batch, queries.dtype
            if is_whole and mask is not None:
                allowed = _allowed_in_blocks(mask, layout, slot_mask, *sizes)
            else:
                allowed = _allowed(visible, visible_slots, *sizes)
            if bias is not None:
                allowed = allowed + F.pad(bias.to(allowed.dtype), (slots.keys.shape[2], 0))
            blocks = queries.shape[2]
            joint = []
            for slots_BHKX, around in ((slots.keys, block_keys), (slots.values, block_values)):
                copies = slots_BHKX.unsqueeze(2).expand(-1, -1, blocks, -1, -1)
                joint.append(torch.cat([x.transpose(1, 2) for x in (copies, *around)], dim=-2).flatten(0, 1))
            rows = queries.transpose(1, 2).flatten(0, 1)
            output = F.scaled_dot_product_attention(rows, joint[0], joint[1], attn_mask=allowed, scale=scale)
            del joint, allowed  # before those of the next blocks
            output = output.view(batch, blocks, *output.shape[1:]).transpose(1, 2)
            # Where another program computes a graph's SDPA, its strides are other ones.
            outputs.append(output.clone(memory_format=torch.contiguous_format) if records_a_graph() else output)
            continue
        output, softmax = _attend_by_definition(
            queries * scale, block_keys, block_values, slots, visible, visible_slots, bias, call.dropout_p
        )
        outputs.append(output)
        if call.need_weights:
            softmaxes.append(join_weights(softmax, slots.keys.shape[2], window.reach, window.reach))
    output = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)
    output = first_positions(output.flatten(2, 3), length)[..., :width]
    if not call.need_weights:
        return output, None
    weights = first_positions(torch.cat(softmaxes, dim=2), length)
    if slot_mask is not None:
        weights = weights.masked_fill(F.pad(slot_mask.mask, (0, 2 * window.reach + 1))[:, None, None, :], 0.0)
    return output, weights[..., slots.keys.shape[2] - num_slots :]


def _attend_by_definition(
    queries_BHncD: Tensor,
    keys: list[Tensor],
    values: list[Tensor],
    slots: Slots,
    visible: Tensor,
    visible_slots: Tensor | None,
    bias: Tensor | None,
    dropout_p: float,
) -> tuple[Tensor, Tensor]:
    """Output and softmax of blocks; keys and values are parts ``(B, H, n, ·, D)`` of their spans."""
    shape, num_slots = queries_BHncD.shape[:-1], slots.keys.shape[2]
    keys_BHnsD, values_BHnsX = torch.cat(keys, dim=-2), torch.cat(values, dim=-2)
    # All blocks share the slots in one product: one that is broadcast over the blocks would copy the slots for each.
    slot_scores_BHncK = (queries_BHncD.flatten(2, 3) @ slots.keys.transpose(-2, -1)).view(*shape, num_slots)
    if visible_slots is not None:
        slot_scores_BHncK = slot_scores_BHncK + additive_mask(visible_slots.unsqueeze(1), slot_scores_BHncK.dtype)
    scores_BHncs = queries_BHncD @ keys_BHnsD.transpose(-2, -1)
    scores_BHncs = scores_BHncs + additive_mask(visible.unsqueeze(1), scores_BHncs.dtype)
    if bias is not None:
        scores_BHncs = scores_BHncs + bias.unsqueeze(1).to(scores_BHncs.dtype)
    softmax = torch.softmax(torch.cat([slot_scores_BHncK, scores_BHncs], dim=-1), dim=-1)
    weights = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    to_slots, to_window = torch.split(weights, [num_slots, keys_BHnsD.shape[3]], dim=-1)
    slot_output = (to_slots.flatten(2, 3) @ slots.values).view(*shape, slots.values.shape[3])
    return slot_output + to_window @ values_BHnsX, softmax


def _allowed(visible: Tensor, visible_slots: Tensor | None, num_slots: int, rows: int, dtype: torch.dtype) -> Tensor:
    """0 at the slots and the positions that each query sees, −∞ elsewhere: ``(B · n, 1, c, K + s)``."""
    seen = visible.new_ones(()) if visible_slots is None else visible_slots
    seen = seen.expand(rows, *visible.shape[1:3], num_slots)
    allowed = torch.cat([seen, visible.expand(rows, -1, -1, -1)], dim=-1)
    return additive_mask(allowed.flatten(0, 1).unsqueeze(1), dtype)


@kept
def _allowed_in_blocks(
    mask: Mask, layout: SpanLayout, slot_mask: Mask | None, num_slots: int, rows: int, dtype: torch.dtype
) -> Tensor:
    visible_slots = _visible_slots(mask, layout, slot_mask)
    return _allowed(visible_positions(mask, layout), visible_slots, num_slots, rows, dtype)


# Two softmaxes, joined: on a CPU, where no slot is then copied for each block.

BLOCK, TRAINED_BLOCK = 32, 64  # queries whose windows are computed together: more see more that is none of theirs
SCORES, GRADIENT_SCORES = 2**23, 2**21  # of windows at a time: the gradients of more would take fresh memory each time
LANES = 16  # slots that the CPU's SDPA computes together; what is beyond a multiple of them it takes one by one


def attend_joined(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> Attended:
    r"""Two softmaxes, over the slots and over the window, joined by the logarithms of their sums, ``(B, H, N, D)``.

    .. math:: \mathrm{out} = (1 - \sigma(l_w - l_s))\, o_s + \sigma(l_w - l_s)\, o_w

    No slot is copied for each block, which takes half the time in inference (docs/log.md).
    """
    scale, num_heads, length = call.scale_for(query), query.shape[1], query.shape[2]
    slots, window = for_heads(slots, num_heads), for_heads(window, num_heads)
    query, keys, values = (x.to(autocast_dtype(x)) for x in (query, *window[:2]))
    accurate = torch.promote_types(query.dtype, torch.float32)  # scores may be as low as anything in float16
    # Higher than the window's: a query that sees nothing gets the values of hidden slots, which are zeros.
    slot_keys, slot_values, bias = _in_lanes(slots, accurate, _lowest(accurate) / 2)
    block = TRAINED_BLOCK if needs_graph(*tensors_in((query, slots, window))) else BLOCK
    queries = blocks_of(length, block) * block
    layout = SpanLayout(block, queries, keys.shape[2], window.reach, window.offset, query.device)
    query = put_around(query, 0, queries - length)
    added = as_mask(window.padding), layout.bias(window)
    output: Tensor = JoinedSoftmaxes.apply(  # type: ignore[no-untyped-call]
        query, slot_keys, slot_values, bias, keys, values, added, layout, scale
    )
    return output[:, :, :length], None


class JoinedSoftmaxes(torch.autograd.Function):
    """The two softmaxes of :func:`attend_joined`, of a whole number of blocks of queries.

    With the output and the sums of both, the gradients of one softmax over the keys of both are those of each part.
    ``added`` is what hides positions of the window, and its bias.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        slot_keys: Tensor,
        slot_values: Tensor,
        bias: Tensor | None,
        keys: Tensor,
        values: Tensor,
        added: tuple[Mask | None, Tensor | None],
        layout: SpanLayout,
        scale: float,
    ) -> Tensor:
        output, log_sums = flash_attention(query, slot_keys, slot_values, mask=bias, scale=scale)
        scores = GRADIENT_SCORES if any(ctx.needs_input_grad) else SCORES  # the masks of both passes are then the same
        for row, part, span_keys, span_values, mask in _spans_of_rows(keys, values, added, layout, keys.dtype, scores):
            whole, whole_sums = (layout.blocks(x[row], part) for x in (output, log_sums))
            queries = layout.blocks(query[row], part)
            seen, sums = flash_attention(queries, span_keys, span_values, mask=mask, scale=scale)
            whole.lerp_(seen, torch.sigmoid(sums - whole_sums).unsqueeze(-1).to(seen.dtype))
            if any(ctx.needs_input_grad):
                whole_sums.copy_(torch.logaddexp(whole_sums, sums))
        ctx.added, ctx.layout, ctx.scale = added, layout, scale
        ctx.save_for_backward(query, slot_keys, slot_values, bias, keys, values, output, log_sums)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        query, slot_keys, slot_values, bias, keys, values, output, log_sums = ctx.saved_tensors
        layout, scale, learns_bias, grad_bias = ctx.layout, ctx.scale, ctx.needs_input_grad[3], None

        def widened(x: Tensor) -> Tensor:
            """With a channel that is 1 in queries and 0 in keys: the gradient there is that of the bias."""
            if not learns_bias:
                return x
            return torch.cat([x, x.new_full((*x.shape[:-1], 1), float(x is query))], dim=-1)

        heads = widened(query), widened(slot_keys), widened(slot_values)
        grads = flash_attention_backward(
            widened(grad_output), *heads, widened(output), log_sums, mask=bias, scale=scale
        )
        if learns_bias:
            grad_bias = (grads[1][..., -1:].transpose(-2, -1) / scale).sum_to_size(bias.shape).to(bias.dtype)
        grad_query, *grad_slots = (x[..., : query.shape[-1]] for x in grads)
        reached = layout.queries + -(-2 * layout.reach // layout.block) * layout.block  # whole blocks
        shape = query.shape[0], reached, *query.shape[1::2]  # the order in memory of the operator's gradients
        grad_rows = [query.new_zeros(shape, dtype=log_sums.dtype).transpose(1, 2) for _ in range(2)]
        # In bfloat16 the operator's products of small blocks take twice to three times as long as in float32.
        accurate = log_sums.dtype
        for row, part, span_keys, span_values, mask in _spans_of_rows(
            keys, values, ctx.added, layout, accurate, GRADIENT_SCORES
        ):
            grads_out, queries, outputs, sums = (
                layout.blocks(x[row], part).to(accurate) for x in (grad_output, query, output, log_sums)
            )
            grads = flash_attention_backward(
                grads_out, queries, span_keys, span_values, outputs, sums, mask=mask, scale=scale
            )
            layout.blocks(grad_query[row], part).add_(grads[0])
            for whole, share in zip(grad_rows, grads[1:], strict=True):
                layout.add_spans(whole[row], share, part)
        before, _ = layout.sides
        grad_keys, grad_values = (
            put_around(whole, -before, before + layout.keys - reached).to(keys.dtype) for whole in grad_rows
        )
        return grad_query, *grad_slots, grad_bias, grad_keys, grad_values, None, None, None


def _lowest(dtype: torch.dtype) -> float:
    """The score of what is hidden: a sum of nothing but −∞ would be NaN."""
    return torch.finfo(dtype).min / 2


def _spans_of_rows(
    keys: Tensor,
    values: Tensor,
    added: tuple[Mask | None, Tensor | None],
    layout: SpanLayout,
    dtype: torch.dtype,
    scores: int,
) -> Iterator[tuple[int, slice, Tensor, Tensor, Tensor]]:
    """Of each row and part of the blocks keys and values ``(n, H, s, D)`` of the spans, and what is added to scores.

    ``scores`` is how many a part has at most.
    """
    (hidden, window_bias), accurate, shares = added, torch.promote_types(dtype, torch.float32), []
    far = ~local_mask(layout.block, layout.reach, layout.reach, layout.device)
    inside = torch.zeros(far.shape, dtype=accurate).masked_fill_(far, _lowest(accurate))[None, None]
    for part in layout.parts(max(1, scores // (keys.shape[1] * layout.block * layout.span))):
        its = layout.of(part)
        before, after = its.sides
        shows_all = max(before, after) <= 0
        if shows_all and hidden is not None:
            shows_all = not hidden.mask[:, -before : layout.keys + after].any()
        masks = inside if shows_all else _window_scores(hidden, its, accurate, _lowest(accurate))
        masks = masks.unsqueeze(2) if window_bias is None else masks.unsqueeze(2) + window_bias.to(accurate)
        shares.append((part, its, masks.expand(len(keys), part.stop - part.start, -1, -1, -1)))
    for row in range(len(keys)):  # the blocks of one row are views
        for part, its, masks in shares:
            yield row, part, its.spans(keys[row], dtype), its.spans(values[row], dtype), masks[row]


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


@kept
def _window_scores(mask: Mask | None, layout: SpanLayout, dtype: torch.dtype, hidden: float) -> Tensor:
    visible = visible_positions(mask, layout)
    return torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, hidden)


def _why_not_joined(query: Tensor, slots: Slots, window: Window, call: SoftmaxCall) -> str | None:
    if call.need_weights or call.dropout_p > 0:
        return "it returns and drops no weights"
    if window.bias is not None and needs_graph(window.bias):
        return "it has no gradient of a window's bias"
    if query.shape[2] == 0 or slots.keys.shape[2] == 0 or slots.keys.shape[3] != window.values.shape[3]:
        return "it needs a query and a slot, and keys and values of one width"
    return None


WINDOWED_ATTENTION = register(
    "windowed attention",
    {
        "flex": Implementation(
            attend_by_flex,
            "cpu, cuda or xpu; no bias of a window, dropout, weights, trace or torch.func; on a CPU no gradient",
            why_not_flex,
            lambda *call: False,
            measured=UNMEASURED,
        ),
        "onednn": by_onednn(partial(_attend_in_blocks, False), (torch.bfloat16,)),
        "flash": by_flash(attend_joined, _why_not_joined),
        "torch": Implementation(partial(_attend_in_blocks, True)),
    },
)

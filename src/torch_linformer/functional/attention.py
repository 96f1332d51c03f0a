"""The operations: one softmax over slots, exact tokens and a window; and Linformer's, over slots made by E and F."""

from typing import TypeVar

import torch
from torch import Tensor

from torch_linformer.functional.implementations import Name, check_implementation, choose
from torch_linformer.functional.padding import justify, mask_of, zero_padding
from torch_linformer.functional.slots import Slots, check_dense, compress
from torch_linformer.functional.softmax import (
    Attended,
    ExactTokens,
    SoftmaxCall,
    Window,
    attend_to_slots,
    check_heads,
    check_scale,
    join,
)
from torch_linformer.functional.window import WINDOWED_ATTENTION


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
    if window is not None:
        num_heads, width = query.shape[1], 2 * window.reach + 1
        if window.reach < 0:
            raise ValueError(f"window.reach must be at least 0 positions, got {window.reach}")
        if window.bias is not None and window.bias.shape not in ((num_heads, width), (1, width)):
            shape = tuple(window.bias.shape)
            raise ValueError(f"window.bias must be (H or 1, 2 reach + 1) = ({num_heads} or 1, {width}), got {shape}")
    elif slots.keys.shape[2] == 0 and (exact is None or exact.keys.shape[2] == 0):
        raise ValueError("there is nothing to attend to: give a slot, an exact token or a window")
    if slots.bias is not None:
        rows, heads, number = (*slots.bias.shape, 0, 0, 0)[:3]
        batch, num_heads, num_slots = query.shape[0], query.shape[1], slots.keys.shape[2]
        if slots.bias.dim() != 3 or rows not in (1, batch) or number != num_slots or num_heads % max(heads, 1):
            raise ValueError(
                f"slots.bias must be (B or 1, H, K) for {batch} rows, {num_heads} heads and {num_slots} slots, got "
                f"{tuple(slots.bias.shape)}"
            )
    check_scale(scale)
    check_implementation(impl)
    exact, window = None if exact is None else _clean(exact), None if window is None else _clean(window)
    return attend(query, _clean(slots), exact, window, SoftmaxCall(dropout_p, need_weights, scale, impl))


Part = TypeVar("Part", Slots, ExactTokens, Window)


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
    """:func:`slot_attention`, unchecked: at padding stand numbers, of slots and exact tokens values of zeros."""
    joint = join(slots, exact)
    if window is None:
        return attend_to_slots(query, joint, call)
    attended: Attended = choose(WINDOWED_ATTENTION, query, joint, window, call, impl=call.impl)(
        query, joint, window, call
    )
    return attended


def _check_part(name: str, query: Tensor, part: Slots | ExactTokens | Window) -> None:
    keys, values, padding = part.keys, part.values, mask_of(part.padding)
    if query.dim() != 4 or keys.dim() != 4 or values.dim() != 4:
        shapes = tuple(tuple(x.shape) for x in (query, keys, values))
        raise ValueError(f"query and {name} must be (B, H, ·, D) each, got shapes {shapes}")
    if keys.shape[:3] != values.shape[:3] or (keys.shape[0], keys.shape[3]) != (query.shape[0], query.shape[3]):
        raise ValueError(
            f"{name} must have keys (B, Hkv, ·, D) and values (B, Hkv, ·, Dv) for a query {tuple(query.shape)}, got "
            f"{tuple(keys.shape)} and {tuple(values.shape)}"
        )
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
    shapes = [tuple(x.shape) for x in (query, key, value)]
    fits = query.dim() == key.dim() == value.dim() == 4 and shapes[1][:3] == shapes[2][:3]
    if not fits or (shapes[0][0], shapes[0][3]) != (shapes[1][0], shapes[1][3]):
        raise ValueError(
            f"query, key and value must be (B, H, N, D), (B, H, M, D) and (B, H, M, Dv), got {shapes[0]}, {shapes[1]} "
            f"and {shapes[2]}"
        )
    check_heads(query.shape[1], key.shape[1])
    for sequence, proj in ((key, proj_k), (value, proj_v)):
        check_dense(sequence, proj, key_padding_mask)
    check_scale(scale)
    check_implementation(impl)
    (key, value), padding = justify(key_padding_mask, key, value)
    slots_k = compress(key, proj_k, padding, length_scaling, impl=impl)
    slots_v = compress(value, proj_v, padding, length_scaling, impl=impl)
    return attend(query, Slots(slots_k, slots_v), call=SoftmaxCall(dropout_p, scale=scale, impl=impl))[0]

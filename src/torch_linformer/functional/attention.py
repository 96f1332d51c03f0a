"""Softmax attention over slots, and Linformer attention made of it."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.implementations import (
    ATTENTION,
    CAUSAL_ATTENTION,
    Implementation,
    autocast_dtype,
    check_implementation,
    choose,
    needs_graph,
    rows_at_once,
)
from torch_linformer.functional.padding import justify
from torch_linformer.functional.projection import check_dense, compress
from torch_linformer.functional.torch_state import is_traced


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
    impl: Implementation = "auto",
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
        ValueError: if shapes do not fit, M exceeds ``max_len``, or ``impl`` cannot compute it.

    Source: arXiv 2006.04768, equation 7.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import linformer_attention
        >>> sequence = torch.randn(2, 4, 3000, 16)  # (B, H, N, D)
        >>> proj = torch.randn(4096, 64) / 64  # E = F, for up to 4,096 positions, with variance 1 / max_len
        >>> linformer_attention(sequence, sequence, sequence, proj, proj).shape
        torch.Size([2, 4, 3000, 16])
    """
    _check_inputs(query, key, value)
    for sequence, proj in ((key, proj_k), (value, proj_v)):
        check_dense(sequence, proj, key_padding_mask)
    check_implementation(impl)
    (key, value), padding = justify(key_padding_mask, key, value)
    slots_k = compress(key, proj_k, padding, length_scaling, impl=impl)
    slots_v = compress(value, proj_v, padding, length_scaling, impl=impl)
    return attend(query, slots_k, slots_v, dropout_p=dropout_p, scale=scale, impl=impl)[0]


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    score_bias: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """Ordinary softmax attention, unchecked; ``key`` and ``value`` may be slots or the sequence itself.

    ``padding_mask`` is bool ``(B or 1, K)``, True at keys that get no weight, and ``score_bias``
    ``(B or 1, H or 1, K)`` is added to the scores of each key. A row in which every key is masked
    attends evenly to all of them: its values are zeros, so its output is finite. Returns the output
    ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax ``(B, H, N, K)`` before dropout.
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    allowed_B11K = None
    if padding_mask is not None:
        allowed_B11K = (~padding_mask | padding_mask.all(dim=-1, keepdim=True))[:, None, None, :]
    if score_bias is not None:
        score_bias = repeat_heads(score_bias, query.shape[1])
        if needs_graph(score_bias) and not need_weights:
            width, scale = value.shape[-1], 1 / math.sqrt(query.shape[-1]) if scale is None else scale
            query, key, value = bias_as_channel(query, key, value, score_bias, scale)
            output, _ = attend(
                query, key, value, padding_mask=padding_mask, dropout_p=dropout_p, scale=scale, impl=impl
            )
            return output[..., :width], None
        allowed_B11K = _biased(score_bias.unsqueeze(2), allowed_B11K, query.dtype)
    if choose(ATTENTION, query, key, value, impl=impl) == "onednn":
        return _attend_by_onednn(query, key, value, allowed_B11K, dropout_p, scale, need_weights)
    if need_weights:
        return _attend_by_definition(query, key, value, allowed_B11K, dropout_p, scale)
    output = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed_B11K, dropout_p=dropout_p, scale=scale)
    return output, None


def attend_to_past(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Ordinary causal attention: the queries are the last N of the M positions and see those up to their own.

    ``padding_mask`` is bool ``(B, M)``; a position of padding sees itself, so that its output is finite. Otherwise as
    :func:`attend`.
    """
    choose(CAUSAL_ATTENTION, query, key, value)
    length, positions = query.shape[2], key.shape[2]
    if padding_mask is None and not is_traced() and length in (1, positions) and not need_weights:
        # One query, the last, sees every position.
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=length > 1)
        return output, None
    offset = positions - length
    allowed = torch.ones(length, positions, dtype=torch.bool, device=query.device).tril(offset)
    if padding_mask is not None:
        itself = allowed & ~allowed.tril(offset - 1)
        allowed = (allowed & ~padding_mask[:, None, None, :]) | itself
    if need_weights:
        return _attend_by_definition(query, key, value, allowed, dropout_p, None)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout_p), None


def bias_as_channel(
    query: Tensor, key: Tensor, value: Tensor, score_bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with one more channel, whose product is ``score_bias`` ``(B or 1, H or 1, K)``.

    A bias that is learned would be a mask with a gradient, for which SDPA keeps all scores.
    """
    of_keys = (score_bias / scale).to(key.dtype).expand(*key.shape[:3]).unsqueeze(-1)
    # The kernels of SDPA take values as wide as keys.
    return F.pad(query, (0, 1), value=1.0), torch.cat([key, of_keys], dim=-1), F.pad(value, (0, 1))


def _biased(score_bias: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What is added to scores of a bias, and of a bool mask if there is one."""
    bias = score_bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a bool mask is True and -∞ elsewhere; adding it to scores of many heads is faster than filling them.

    What is no bool mask is one that is added already.
    """
    if allowed.dtype != torch.bool:
        return allowed.to(dtype)
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values ``(B, Hkv, M, D)`` for ``num_heads`` query heads, ``(B, H, M, D)``; a bias ``(B, Hkv, M)`` too."""
    check_heads(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise ``ValueError`` where query heads cannot share the key/value heads evenly."""
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} key/value heads")


def _attend_by_definition(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, dropout_p: float, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Output and softmax, which SDPA does not return."""
    scores_BHNK = (query @ key.transpose(-2, -1)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if allowed is not None:
        scores_BHNK = scores_BHNK + additive_mask(allowed, scores_BHNK.dtype)
    weights_BHNK = torch.softmax(scores_BHNK, dim=-1)
    return F.dropout(weights_BHNK, dropout_p) @ value, weights_BHNK


def _attend_by_onednn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    dropout_p: float,
    scale: float | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """By batched products, which PyTorch computes by oneDNN in bfloat16, but not inside SDPA.

    In inference a block of queries at a time, so small that its scores stay in the caches.
    """
    if need_weights or dropout_p > 0 or needs_graph(query, key, value):
        output, weights = _attend_by_definition(query, key, value, allowed, dropout_p, scale)
        return output, weights if need_weights else None
    query, key, value = (x.to(autocast_dtype(x)) for x in (query, key, value))
    batch, heads, length, width = query.shape
    scale = 1 / math.sqrt(width) if scale is None else scale
    keys, values = key.flatten(0, 1).transpose(-2, -1), value.flatten(0, 1)  # of all heads of the batch
    output_BHNX = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    blocks = max(1, -(-length // max(1, rows_at_once(query, key))))
    for queries, block in zip(torch.chunk(query, blocks, 2), torch.chunk(output_BHNX, blocks, 2), strict=True):
        scores = torch.baddbmm(queries.new_empty(()), queries.flatten(0, 1), keys, beta=0, alpha=scale)
        scores = scores.view(batch, heads, queries.shape[2], key.shape[2])
        if allowed is not None:
            scores += additive_mask(allowed, scores.dtype)
        block.copy_(torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values).view_as(block))
    return output_BHNX, None


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    fits = query.dim() == key.dim() == value.dim() == 4 and shapes[1][:3] == shapes[2][:3]
    if not fits or (shapes[0][0], shapes[0][3]) != (shapes[1][0], shapes[1][3]):
        raise ValueError(
            f"query, key and value must be (B, H, N, D), (B, H, M, D) and (B, H, M, Dv), got {shapes[0]}, {shapes[1]} "
            f"and {shapes[2]}"
        )
    check_heads(query.shape[1], key.shape[1])

"""Softmax attention over slots, and Linformer attention made of it."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.matmul import onednn_is_faster
from torch_linformer.functional.projection import project_sequence

FEWEST_ROWS = 64  # queries in a block; smaller ones are slower than SDPA
SCORES = 2**21  # attention scores at a time, where they are computed in blocks: a few megabytes, which caches hold


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

    Returns:
        ``(B, H, N, Dv)``.

    Raises:
        ValueError: if shapes do not fit, or M exceeds ``max_len``.

    Source: arXiv 2006.04768, equation 7.
    """
    slots_k = project_sequence(key, proj_k, key_padding_mask=key_padding_mask, length_scaling=length_scaling)
    slots_v = project_sequence(value, proj_v, key_padding_mask=key_padding_mask, length_scaling=length_scaling)
    output, _ = attend(query, slots_k, slots_v, dropout_p=dropout_p, scale=scale)
    return output


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Ordinary softmax attention; ``key`` and ``value`` may be slots or the sequence itself.

    ``padding_mask`` is bool ``(B or 1, K)``, True at keys that get no weight. A row in which every key is masked
    attends evenly to all of them: its values are zeros, so its output is finite. Returns the output
    ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax ``(B, H, N, K)`` before dropout.
    """
    key, value = repeat_heads(key, query.shape[1]), repeat_heads(value, query.shape[1])
    allowed = None
    if padding_mask is not None:
        allowed = ~padding_mask | padding_mask.all(dim=-1, keepdim=True)
        allowed = allowed[:, None, None, :]
    if not need_weights and dropout_p == 0.0 and _blocks_outrun_sdpa(query, key, value):
        return _attend_in_blocks(query, key, value, allowed, scale), None
    return _softmax_attention(query, key, value, allowed, dropout_p, scale, need_weights)


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
    length, positions = query.shape[2], key.shape[2]
    if padding_mask is None and length in (1, positions) and not need_weights:
        # One query sees all that there is.
        output = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout_p, is_causal=length > 1)
        return output, None
    offset = positions - length
    allowed = torch.ones(length, positions, dtype=torch.bool, device=query.device).tril(offset)
    if padding_mask is not None:
        itself = allowed & ~allowed.tril(offset - 1)
        allowed = (allowed & ~padding_mask[:, None, None, :]) | itself
    return _softmax_attention(query, key, value, allowed, dropout_p, None, need_weights)


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a bool mask is True and -∞ elsewhere; adding it to scores of many heads outruns filling them."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values ``(B, Hkv, M, D)`` for ``num_heads`` query heads, ``(B, H, M, D)``."""
    if num_heads % x.shape[1]:
        raise ValueError(f"{num_heads} query heads are not a multiple of {x.shape[1]} key/value heads")
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def _softmax_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    dropout_p: float,
    scale: float | None,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """By SDPA, or where the weights are wanted by its definition."""
    if not need_weights:
        output = F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout_p, scale=scale)
        return output, None
    scores = (query @ key.mT) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if allowed is not None:
        scores = scores + additive_mask(allowed, scores.dtype)
    weights = torch.softmax(scores, dim=-1)
    return F.dropout(weights, dropout_p) @ value, weights


def sdpa_is_held_back(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether SDPA multiplies by the slower library: bfloat16 where oneDNN outruns MKL."""
    return query.dtype == torch.bfloat16 and onednn_is_faster(query, key, value)


def _blocks_outrun_sdpa(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Inference with rows enough at once, where SDPA is held back."""
    wants_grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    return not wants_grad and sdpa_is_held_back(query, key, value) and _rows_at_once(query, key) >= FEWEST_ROWS


def _rows_at_once(query: Tensor, key: Tensor) -> int:
    return SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2])


def _attend_in_blocks(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, scale: float | None) -> Tensor:
    """The softmax of so many queries at a time that their scores stay in the caches."""
    batch, heads, length, width = query.shape
    scale = 1 / math.sqrt(width) if scale is None else scale
    keys, values = key.flatten(0, 1).mT, value.flatten(0, 1)
    output = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    blocks = max(1, -(-length // _rows_at_once(query, key)))
    for queries, block in zip(torch.chunk(query, blocks, 2), torch.chunk(output, blocks, 2), strict=True):
        scores = torch.baddbmm(queries.new_empty(()), queries.flatten(0, 1), keys, beta=0, alpha=scale)
        scores = scores.view(batch, heads, queries.shape[2], key.shape[2])
        if allowed is not None:
            scores += additive_mask(allowed, scores.dtype)
        block.copy_(torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values).view_as(block))
    return output

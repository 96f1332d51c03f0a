"""Softmax attention to slots, or to all positions: by SDPA, by its definition, and by oneDNN."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.scores import additive_mask, bias_as_channel
from torch_linformer.functional.attention.softmax_parts import Slots, for_heads
from torch_linformer.functional.kernels.graph import needs_graph
from torch_linformer.functional.kernels.implementations import Implementation, Name, Operation, choose, register
from torch_linformer.functional.kernels.onednn import autocast_dtype, by_onednn
from torch_linformer.functional.masks import mask_of

FEWEST_ROWS = 64  # queries in a block; smaller ones are slower than SDPA
SCORES = 2**21  # attention scores at a time, where they are computed in blocks: a few megabytes, which caches hold


def _rows_at_once(query: Tensor, key: Tensor) -> int:
    """Queries whose scores over all keys fit in the caches."""
    return SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2])


def _pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Only in inference, because training would keep all scores, and with enough queries at once."""
    return not needs_graph(query, key, value) and _rows_at_once(query, key) >= FEWEST_ROWS


ATTENTION = register(Operation("attention", (by_onednn((torch.bfloat16,), _pays), Implementation("torch"))))


def attend_to_slots(
    query: Tensor, slots: Slots, dropout_p: float, scale: float | None, need_weights: bool, impl: Name
) -> tuple[Tensor, Tensor | None]:
    """Softmax attention of ``(B, H, N, D)`` to slots, unchecked.

    A row in which every slot is masked attends evenly to all of them: its values are zeros, so its output is finite.
    Returns the output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax ``(B, H, N, K)`` before dropout.
    """
    key, value, _, bias = for_heads(slots, query.shape[1])
    padding, width = mask_of(slots.padding), value.shape[-1]
    allowed_B11K = None
    if padding is not None:
        allowed_B11K = (~padding | padding.all(dim=-1, keepdim=True))[:, None, None, :]
    if bias is not None and needs_graph(bias) and not need_weights:
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        query, key, value = bias_as_channel(query, key, value, bias, scale)
    elif bias is not None:
        allowed_B11K = _biased(bias.unsqueeze(2), allowed_B11K, query.dtype)
    if choose(ATTENTION, query, key, value, impl=impl) == "onednn":
        output, weights = _attend_by_onednn(query, key, value, allowed_B11K, dropout_p, scale, need_weights)
    elif need_weights:
        output, weights = attend_by_definition(query, key, value, allowed_B11K, dropout_p, scale)
    else:
        weights = None
        output = F.scaled_dot_product_attention(
            query, key, value, attn_mask=allowed_B11K, dropout_p=dropout_p, scale=scale
        )
    return output if value.shape[-1] == width else output[..., :width], weights


def _biased(score_bias: Tensor, allowed: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What is added to scores of a bias, and of a bool mask if there is one."""
    bias = score_bias.to(dtype)
    return bias if allowed is None else bias.masked_fill(~allowed, float("-inf"))


def attend_by_definition(
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
        output, weights = attend_by_definition(query, key, value, allowed, dropout_p, scale)
        return output, weights if need_weights else None
    query, key, value = (x.to(autocast_dtype(x)) for x in (query, key, value))
    batch, heads, length, width = query.shape
    scale = 1 / math.sqrt(width) if scale is None else scale
    keys, values = key.flatten(0, 1).transpose(-2, -1), value.flatten(0, 1)  # of all heads of the batch
    output_BHNX = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    blocks = max(1, -(-length // max(1, _rows_at_once(query, key))))
    for queries, block in zip(torch.chunk(query, blocks, 2), torch.chunk(output_BHNX, blocks, 2), strict=True):
        scores = torch.baddbmm(queries.new_empty(()), queries.flatten(0, 1), keys, beta=0, alpha=scale)
        scores = scores.view(batch, heads, queries.shape[2], key.shape[2])
        if allowed is not None:
            scores += additive_mask(allowed, scores.dtype)
        block.copy_(torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values).view_as(block))
    return output_BHNX, None

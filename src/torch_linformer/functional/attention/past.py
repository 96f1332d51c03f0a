"""Ordinary causal attention: every position up to the query's own."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.plain_softmax import attend_by_definition
from torch_linformer.functional.kernels.graph import is_traced
from torch_linformer.functional.kernels.implementations import Implementation, Operation, choose, register

CAUSAL_ATTENTION = register(Operation("full causal attention", (Implementation("torch"),)))


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

    ``padding_mask`` is bool ``(B, M)``; a position of padding sees itself, so that its output is finite. Returns the
    output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax ``(B, H, N, M)`` before dropout.
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
        return attend_by_definition(query, key, value, allowed, dropout_p, None)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed, dropout_p=dropout_p), None

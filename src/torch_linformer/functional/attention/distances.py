"""Ordinary attention whose scores depend on the distance too: every position, N × M scores."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.plain_softmax import attend_by_definition
from torch_linformer.functional.attention.scores import additive_mask, bias_at
from torch_linformer.functional.attention.softmax_parts import Slots, for_heads
from torch_linformer.functional.kernels.implementations import Implementation, Operation, choose, register
from torch_linformer.functional.masks import mask_of

ATTENTION_OF_DISTANCES = register(Operation("attention with a bias of distances", (Implementation("torch"),)))


def attend_by_distance(
    query: Tensor, positions: Slots, distance_bias: Tensor, dropout_p: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    r"""Softmax attention of ``(B, H, N, D)`` to M positions, of which query i stands at the i-th, unchecked.

    .. math:: \mathrm{out}_i = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt D + a_{j - i})\, v_j

    ``distance_bias`` is a, ``(H or 1, 2 R + 1)``, of the distances -R … R; farther ones have that of the ends. A row of
    padding attends evenly to all of it. Returns the output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax
    ``(B, H, N, M)`` before dropout.
    """
    choose(ATTENTION_OF_DISTANCES, query, positions.keys, positions.values)
    key, value, _, _ = for_heads(positions, query.shape[1])
    columns = torch.arange(key.shape[2], device=query.device)
    rows = torch.arange(query.shape[2], device=query.device)
    added_BHNM = bias_at(distance_bias, columns - rows.unsqueeze(-1)).to(query.dtype).unsqueeze(0)
    padding = mask_of(positions.padding)
    if padding is not None:
        allowed_B11M = (~padding | padding.all(dim=-1, keepdim=True))[:, None, None, :]
        added_BHNM = added_BHNM + additive_mask(allowed_B11M, query.dtype)
    if need_weights:
        return attend_by_definition(query, key, value, added_BHNM, dropout_p, None)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=added_BHNM, dropout_p=dropout_p), None

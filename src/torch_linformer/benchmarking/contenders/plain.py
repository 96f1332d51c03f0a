"""Attention the plain way, from a module's parameters: what the outputs of its fast path must be."""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.full_attention import FullAttention
from torch_linformer.nn.projection import SequenceProjection


def plain_linformer_attention(module: LinformerAttention, states: Tensor) -> Tensor:
    """Self-attention of ``(B, N, C)`` with N = ``max_len``: channels first, then Eᵀ and Fᵀ, then an eager softmax."""
    assert module.proj_k is not None
    proj_v = module.proj_k if module.proj_v is None else module.proj_v
    keys = _slots(module.proj_k, _heads(module.k_proj(states), module.num_kv_heads))
    values = _slots(proj_v, _heads(module.v_proj(states), module.num_kv_heads))
    return _attend(module, states, keys, values)


def plain_full_attention(module: FullAttention, states: Tensor) -> Tensor:
    """Self-attention of ``(B, N, C)`` with an eager softmax over all N positions."""
    keys, values = (_heads(linear(states), module.num_kv_heads) for linear in (module.k_proj, module.v_proj))
    return _attend(module, states, keys, values)


def _attend(module: FullAttention, states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = torch.einsum("bhnd,bhkd->bhnk", _heads(module.q_proj(states), module.num_heads), keys)
    weights = torch.softmax(scores / math.sqrt(module.head_dim), dim=-1)
    mixed = torch.einsum("bhnk,bhkd->bnhd", weights, values)
    output: Tensor = module.out_proj(mixed.flatten(2))
    return output


def _heads(channels: Tensor, heads: int) -> Tensor:
    return channels.unflatten(-1, (heads, -1)).transpose(1, 2)


def _slots(projection: SequenceProjection, sequence: Tensor) -> Tensor:
    """``(B, H, N, D)`` to ``(B, H, K, D)``, less the slots that no position belongs to."""
    if projection.projection == "max":
        length, window = sequence.shape[-2], projection.window
        filled = F.pad(sequence, (0, 0, 0, -length % window), value=float("-inf"))
        return filled.unflatten(-2, (-1, window)).amax(dim=-2)
    matrix = _matrix(projection, sequence)
    return torch.einsum("bhnd,hnk->bhkd" if matrix.dim() == 3 else "bhnd,nk->bhkd", sequence, matrix)


def _matrix(projection: SequenceProjection, like: Tensor) -> Tensor:
    """E, ``(N, K)`` or one a head; a window's column holds the kernel, or the share of each position in the mean."""
    if projection.projection in ("linear", "random"):
        assert projection.weight is not None
        return projection.weight
    length, window = like.shape[-2], projection.window
    positions = torch.arange(length, device=like.device)
    bands = F.one_hot(positions // window).to(like.dtype)
    if projection.projection == "mean":
        return bands / bands.sum(dim=0)
    assert projection.weight is not None
    return bands * projection.weight[positions % window, None]

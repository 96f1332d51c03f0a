"""The literal definitions, written to be obviously right: one row, one head, one slot at a time.

Every fast path is tested against these in float64, forward and every gradient. They drop padded tokens
instead of masking them, so they cannot share a masking mistake with the code they check.
"""

import math

import torch
from torch import Tensor


def real_positions(key_padding_mask: Tensor | None, row: int, length: int) -> list[int]:
    """Positions of the real tokens of one row."""
    if key_padding_mask is None:
        return list(range(length))
    return [position for position in range(length) if not key_padding_mask[row, position]]


def project_row(sequence: Tensor, proj: Tensor, real: list[int], length_scaling: bool) -> Tensor:
    """``s Σ_i E[i] ⊗ x[i]`` over the real positions of one row: ``(M, D)`` and ``(max_len, K)`` to ``(K, D)``."""
    slots = sequence.new_zeros(proj.shape[-1], sequence.shape[-1])
    for position in real:
        slots = slots + torch.outer(proj[position], sequence[position])
    return slots * math.sqrt(proj.shape[0] / max(len(real), 1)) if length_scaling else slots


def banded_matrix(kernel: Tensor, max_len: int, num_slots: int) -> Tensor:
    """The ``(max_len, K)`` matrix a convolution kernel of w weights stands for."""
    window = kernel.shape[0]
    rows = []
    for position in range(max_len):
        row = kernel.new_zeros(num_slots)
        row[position // window] = 1.0
        rows.append(row * kernel[position % window])
    return torch.stack(rows)


def pool_row(sequence: Tensor, window: int, num_slots: int, real: list[int], kind: str) -> Tensor:
    """Mean or max of the real tokens in each window of one row, zero where a window holds none."""
    slots = []
    for slot in range(num_slots):
        members = [p for p in real if p // window == slot]
        if not members:
            slots.append(sequence.new_zeros(sequence.shape[-1]))
        elif kind == "mean":
            slots.append(sequence[members].mean(dim=0))
        else:
            slots.append(sequence[members].amax(dim=0))
    return torch.stack(slots)


def softmax_row(query: Tensor, slots_k: Tensor, slots_v: Tensor, allowed: list[int]) -> Tensor:
    """``softmax(q K̄ᵀ / √D) V̄`` of one head over the allowed slots; zeros where no slot is allowed."""
    if not allowed:
        return query.new_zeros(query.shape[0], slots_v.shape[-1])
    scores = query @ slots_k[allowed].T / math.sqrt(query.shape[-1])
    return torch.softmax(scores, dim=-1) @ slots_v[allowed]


def linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: Tensor,
    proj_v: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    length_scaling: bool = True,
) -> Tensor:
    """Equation 7 of the paper for dense E and F, shapes as in the fast function of the same name."""
    batch, heads = query.shape[:2]
    groups = heads // key.shape[1]
    everything = list(range(proj_k.shape[-1]))
    rows = []
    for row in range(batch):
        real = real_positions(key_padding_mask, row, key.shape[2])
        outputs = []
        for head in range(heads):
            kv = head // groups
            matrix_k = proj_k if proj_k.dim() == 2 else proj_k[kv]
            matrix_v = proj_v if proj_v.dim() == 2 else proj_v[kv]
            slots_k = project_row(key[row, kv], matrix_k, real, length_scaling)
            slots_v = project_row(value[row, kv], matrix_v, real, length_scaling)
            outputs.append(softmax_row(query[row, head], slots_k, slots_v, everything))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)

"""Plain attention from a module's parameters, which the outputs of its fast path must equal."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.nn.attention import Attention, LinformerAttention
from torch_linformer.nn.attention.causal_context import CausalSlotContext
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import SequenceMap
from torch_linformer.nn.dynamic_projection import CONTRAST, FASTEST, DynamicProjection
from torch_linformer.nn.options import DENSE
from torch_linformer.nn.projection import SequenceProjection


def plain_linformer_attention(module: LinformerAttention, states: Tensor) -> Tensor:
    """Self-attention of ``(B, N, C)`` with N = ``max_len``: channels first, then Eᵀ and Fᵀ, then an eager softmax."""
    context = module.context
    assert isinstance(context, SlotContext) and context.proj_k is not None
    keys, values = (_heads(linear(states), module.num_kv_heads) for linear in (module.k_proj, module.v_proj))
    proj_v, scored_v = (context.proj_k, keys) if context.proj_v is None else (context.proj_v, values)
    slots_k, slots_v = _slots(context.proj_k, keys, keys, states), _slots(proj_v, values, scored_v, states)
    return _attend(module, states, slots_k, slots_v)


def plain_full_attention(module: Attention, states: Tensor) -> Tensor:
    """Self-attention of ``(B, N, C)`` with an eager softmax over all N positions."""
    keys, values = (_heads(linear(states), module.num_kv_heads) for linear in (module.k_proj, module.v_proj))
    return _attend(module, states, keys, values)


def plain_causal_attention(module: LinformerAttention, states: Tensor) -> Tensor:
    """Causal self-attention of ``(B, N, C)``, position by position; every slot is a decaying sum, float32 at least."""
    assert module.window is not None
    dtype = torch.promote_types(states.dtype, torch.float32)
    linears = (module.q_proj, module.k_proj, module.v_proj)
    queries, keys, values = (_heads(linear(states), module.num_heads).to(dtype) for linear in linears)
    entering, fading, bias = _running_weights(module, keys)
    sums_k = sums_v = mass = torch.zeros((), dtype=dtype, device=states.device)
    rows = []
    for position in range(states.shape[1]):
        entry = entering[:, :, position].unsqueeze(-1)
        sums_k = sums_k * fading + entry * keys[:, :, position, None]
        sums_v = sums_v * fading + entry * values[:, :, position, None]
        mass = mass * fading + entry
        near = slice(max(0, position + 1 - module.window), position + 1)
        seen_k = torch.cat([sums_k / mass, keys[:, :, near]], dim=2)
        seen_v = torch.cat([sums_v / mass, values[:, :, near]], dim=2)
        scores = (seen_k @ queries[:, :, position, :, None]).squeeze(-1) / math.sqrt(module.head_dim)
        weights = torch.softmax(scores + F.pad(bias, (0, scores.shape[-1] - bias.shape[-1])), dim=-1)
        rows.append((weights.unsqueeze(-2) @ seen_v).flatten(1))
    output: Tensor = module.out_proj(torch.stack(rows, dim=1).to(states.dtype))
    return output


def plain_leaking_attention(module: nn.Module, states: Tensor) -> Tensor:
    """What linformer-pytorch computes with causal=True: position t attends to slots 0 to t.

    It is not causal attention: each slot mixes all N positions, later ones included.
    """
    parts: Any = zip(module.heads, module.to_q, module.to_k, module.to_v, strict=True)  # type: ignore[arg-type]
    outputs = []
    for head, to_q, to_k, to_v in parts:
        queries, keys, values = to_q(states), to_k(states), to_v(states)
        slots_k = torch.einsum("bnd,kn->bkd", keys, head.E.weight) + head.E.bias[:, None]
        slots_v = torch.einsum("bnd,kn->bkd", values, head.F.weight) + head.F.bias[:, None]
        scores = queries @ slots_k.mT / math.sqrt(queries.shape[-1])
        hidden = torch.ones_like(scores[0], dtype=torch.bool).triu(1)
        outputs.append(torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1) @ slots_v)
    output: Tensor = module.w_o(torch.cat(outputs, dim=-1))  # type: ignore[operator]
    return output


def _running_weights(module: LinformerAttention, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weight of each token in the slots ``(B, H, N, K)``, the decay of the sums per token, and the bias."""
    context = module.context
    assert isinstance(context, CausalSlotContext)
    running = context.running
    if running is None:
        return keys[..., :0], keys.new_ones(0, 1), keys[0, :, 0, :0]
    logits = torch.einsum("bhnd,hdk->bhnk", keys, running.address.to(keys.dtype))
    decay = (-running.log_time.to(keys.dtype)).exp().clamp(max=FASTEST)
    entering = torch.exp(CONTRAST * torch.tanh(logits / CONTRAST))
    return entering, torch.exp(-decay).unsqueeze(-1), running.score_bias.to(keys.dtype)


def _attend(module: Attention, states: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = torch.einsum("bhnd,bhkd->bhnk", _heads(module.q_proj(states), module.num_heads), keys)
    if module.causal:
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        scores = scores.masked_fill(later, float("-inf"))
    weights = torch.softmax(scores / math.sqrt(module.head_dim), dim=-1)
    mixed = torch.einsum("bhnk,bhkd->bnhd", weights, values)
    output: Tensor = module.out_proj(mixed.flatten(2))
    return output


def _heads(channels: Tensor, heads: int) -> Tensor:
    return channels.view(*channels.shape[:-1], heads, -1).transpose(1, 2)


def _slots(projection: SequenceMap, sequence: Tensor, scored: Tensor, states: Tensor) -> Tensor:
    """``(B, H, N, D)`` to ``(B, H, K, D)``, without the slots that no position belongs to.

    A map that depends on the input scores ``scored`` ``(B, H, N, D)`` in each head, or once ``states`` ``(B, N, C)``.
    """
    if isinstance(projection, DynamicProjection):
        chosen = _chosen(projection, states.unsqueeze(1) if projection.num_heads is None else scored)
        return torch.einsum("bhnk,bhnd->bhkd", chosen, sequence)
    if projection.projection == "max":
        length, window = sequence.shape[-2], projection.window
        filled = F.pad(sequence, (0, 0, 0, -length % window), value=float("-inf"))
        return filled.view(*filled.shape[:-2], -1, window, filled.shape[-1]).amax(dim=-2)
    matrix = _matrix(projection, sequence)
    return torch.einsum("bhnd,hnk->bhkd" if matrix.dim() == 3 else "bhnd,nk->bhkd", sequence, matrix)


def _chosen(projection: DynamicProjection, scored: Tensor) -> Tensor:
    """P, ``(B, H, N, K)``: the softmax over the N positions, each at its place among K segments."""
    dtype, device = torch.promote_types(scored.dtype, torch.float32), scored.device
    length, slots = scored.shape[-2], projection.k
    places = (torch.arange(length, dtype=dtype, device=device) + 0.5) * slots / length
    centers = torch.arange(slots, dtype=dtype, device=device) + 0.5 + projection.shift
    prior = -2 * projection.log_steepness.exp() * (places.unsqueeze(-1) - centers) ** 2
    return torch.softmax((scored @ projection.weight.mT).to(dtype) + prior, dim=-2).to(scored.dtype)


def _matrix(projection: SequenceProjection, like: Tensor) -> Tensor:
    """E, ``(N, K)`` or one a head; the column of a window holds the kernel, or each position's share in the mean."""
    if projection.projection in DENSE:
        assert projection.weight is not None
        return projection.weight
    length, window = like.shape[-2], projection.window
    positions = torch.arange(length, device=like.device)
    bands = F.one_hot(positions // window).to(like.dtype)
    if projection.projection == "mean":
        return bands / bands.sum(dim=0)
    assert projection.weight is not None
    return bands * projection.weight[positions % window, None]

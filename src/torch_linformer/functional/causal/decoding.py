"""Causal attention of one more token: what decoding does at every step."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.causal.running_means import SlotWeights
from torch_linformer.functional.causal.state import CausalInput, CausalState


def attend_next(
    token: CausalInput, score_bias: Tensor | None, state: CausalState, window: int | None, dropout_p: float
) -> tuple[Tensor, Tensor, CausalState]:
    """One token in each row, without chunks: output, softmax and the state after it."""
    query, key, value, padding, weights_k, weights_v = token
    scores, outputs = [], []
    keys, mass_k, values, mass_v = state.keys, state.mass_k, state.values, state.mass_v
    if weights_k is not None:
        keys, mass_k = _add_token(keys, mass_k, weights_k, key, padding)
        values, mass_v = _add_token(values, mass_v, weights_v or weights_k, value, padding)
        scores_BH1K = ((query @ keys.transpose(-2, -1).to(query.dtype)) / _not_0(mass_k)).to(query.dtype)
        if score_bias is not None:
            scores_BH1K = scores_BH1K + score_bias.unsqueeze(-2).to(scores_BH1K.dtype)
        scores.append(scores_BH1K)
    num_slots, num_first = mass_k.shape[-1], state.first_keys.shape[2]
    if num_first > 0:
        seen = state.sees_first(state.tokens.unsqueeze(-1), window)
        scores.append((query @ state.first_keys.transpose(-2, -1).to(query.dtype)).masked_fill(~seen, float("-inf")))
    recent_keys = torch.cat([state.recent_keys.to(key.dtype), key], dim=2)
    recent_values = torch.cat([state.recent_values.to(value.dtype), value], dim=2)
    if window is not None:
        missing = torch.arange(window - 1, -1, -1, device=key.device) > state.tokens.unsqueeze(-1)
        scores.append((query @ recent_keys.transpose(-2, -1)).masked_fill(missing[:, None, None], float("-inf")))
    softmax = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    sizes = [num_slots, num_first, kept.shape[-1] - num_slots - num_first]
    to_slots, to_first, to_window = torch.split(kept, sizes, dim=-1)
    if weights_k is not None:
        outputs.append((to_slots / _not_0(mass_v)).to(value.dtype) @ values.to(value.dtype))
    if num_first > 0:
        outputs.append(to_first @ state.first_values.to(value.dtype))
    if window is not None:
        outputs.append(to_window @ recent_values)
    tokens = state.tokens + 1
    # Copies: a view would keep the token that has left the window.
    recent_keys, recent_values = recent_keys[:, :, 1:].clone(), recent_values[:, :, 1:].clone()
    if padding is not None:
        absent = padding[:, :, None, None]
        tokens = state.tokens + ~padding[:, 0]
        recent_keys = torch.where(absent, state.recent_keys, recent_keys)
        recent_values = torch.where(absent, state.recent_values, recent_values)
    first = state.first_keys, state.first_values
    after = CausalState(tokens, keys, mass_k, values, mass_v, recent_keys, recent_values, *first)
    return sum(outputs[1:], start=outputs[0]), softmax, after


def _add_token(
    sums: Tensor, mass: Tensor, proj: SlotWeights, token: Tensor, padding: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Sums and masses after one more token ``(B, H, 1, X)``; padding ``(B, 1)`` adds nothing and lets nothing fade."""
    fade = torch.exp(-proj.decay.to(sums.dtype)).expand_as(mass)
    weight = torch.ones_like(fade) if proj.weights is None else proj.weights[..., 0, :].to(sums.dtype).expand_as(mass)
    if padding is not None:
        absent = padding.unsqueeze(-1)
        fade, weight = fade.masked_fill(absent, 1.0), weight.masked_fill(absent, 0.0)
    return sums * fade.unsqueeze(-1) + weight.unsqueeze(-1) * token, mass * fade + weight


def _not_0(mass: Tensor) -> Tensor:
    """Masses ``(B, H, 1, K)`` to divide by: before the first token all sums, and so the means, are 0."""
    return mass.masked_fill(mass == 0, 1.0).unsqueeze(2)

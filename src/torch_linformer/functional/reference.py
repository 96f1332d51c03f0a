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
    """``s Σ_i E[i] ⊗ x_i`` over the real tokens of one row: ``(M, D)`` and ``(max_len, K)`` to ``(K, D)``."""
    slots = sequence.new_zeros(proj.shape[-1], sequence.shape[-1])
    for token, position in enumerate(real):
        slots = slots + torch.outer(proj[token], sequence[position])
    return slots * math.sqrt(proj.shape[0] / max(len(real), 1)) if length_scaling else slots


def banded_matrix(kernel: Tensor, max_len: int, num_slots: int) -> Tensor:
    """The ``(max_len, K)`` matrix that a convolution kernel of w weights is equivalent to."""
    window = kernel.shape[0]
    rows = []
    for position in range(max_len):
        row = kernel.new_zeros(num_slots)
        row[position // window] = 1.0
        rows.append(row * kernel[position % window])
    return torch.stack(rows)


def pool_row(sequence: Tensor, window: int, num_slots: int, real: list[int], kind: str) -> Tensor:
    """Mean or max of each w real tokens of one row, one after another; zero where a window holds none."""
    slots = []
    for slot in range(num_slots):
        members = real[slot * window : (slot + 1) * window]
        if not members:
            slots.append(sequence.new_zeros(sequence.shape[-1]))
        elif kind == "mean":
            slots.append(sequence[members].mean(dim=0))
        else:
            slots.append(sequence[members].amax(dim=0))
    return torch.stack(slots)


def dynamic_row(
    scored: Tensor, sequence: Tensor, weight: Tensor, shift: Tensor, log_steepness: Tensor, real: list[int]
) -> Tensor:
    """Slots ``(K, X)`` that one row chooses: ``(M, D)`` is scored, ``(M, X)`` is pooled; zeros without a real token."""
    slots = []
    for slot in range(len(shift)):
        scores = []
        for token, position in enumerate(real):
            distance = (token + 0.5) * len(shift) / len(real) - (slot + 0.5) - shift[slot]
            scores.append(weight[slot] @ scored[position] - 2 * torch.exp(log_steepness[slot]) * distance**2)
        weights = torch.softmax(torch.stack(scores), dim=0) if real else sequence.new_zeros(0)
        slots.append(weights @ sequence[real])
    return torch.stack(slots)


def exact_positions(real: list[int], first: int, last: int) -> list[int | None]:
    """Positions of the first and of the last real tokens; None for one that there is not, or that is a first one."""
    ahead = [real[token] if token < len(real) else None for token in range(first)]
    behind = [real[token] if token >= first else None for token in range(len(real) - last, len(real))]
    return ahead + behind


def attend_beside_slots(
    queries: Tensor,
    slots: tuple[Tensor, Tensor],
    tokens: tuple[Tensor, Tensor],
    real: list[int],
    *,
    allowed: list[int],
    log_mass: Tensor | None = None,
    exact: list[int | None],
    reach: int | None = None,
    window_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """One head of one row: output, and weights of ``[slots K; exact tokens; window 2 reach + 1]``, query by query.

    ``queries`` ``(N, D)`` stand at the row's real tokens in turn; ``slots`` and ``tokens`` are keys and values;
    ``window_bias`` ``(2 reach + 1)`` goes to the scores of the window.
    """
    num_slots, width = len(slots[0]), 0 if reach is None else 2 * reach + 1
    output = queries.new_zeros(len(queries), tokens[1].shape[-1])
    weights = queries.new_zeros(len(queries), num_slots + len(exact) + width)
    for place, query in enumerate(queries):
        columns, keys, values = list(allowed), [slots[0][allowed]], [slots[1][allowed]]
        bias = query.new_zeros(weights.shape[1])
        if log_mass is not None:
            bias = torch.cat([log_mass, bias[num_slots:]])
        if window_bias is not None:
            bias = torch.cat([bias[: len(bias) - width], window_bias])
        for column, position in enumerate(exact, start=num_slots):
            if position is not None:
                columns.append(column)
                keys.append(tokens[0][[position]])
                values.append(tokens[1][[position]])
        for step in range(width):
            token = place + step - width // 2
            if 0 <= token < len(real) and real[token] not in exact:
                columns.append(num_slots + len(exact) + step)
                keys.append(tokens[0][[real[token]]])
                values.append(tokens[1][[real[token]]])
        scores = torch.cat(keys) @ query / math.sqrt(query.shape[-1]) + bias[columns]
        weights[place, columns] = torch.softmax(scores, dim=0)
        output[place] = weights[place, columns] @ torch.cat(values)
    return output, weights


def softmax_row(
    query: Tensor, slots_k: Tensor, slots_v: Tensor, allowed: list[int], bias: Tensor | None = None
) -> Tensor:
    """``softmax(q K̄ᵀ / √D + b) V̄`` of one head over the allowed slots; zeros where no slot is allowed."""
    if not allowed:
        return query.new_zeros(query.shape[0], slots_v.shape[-1])
    scores = query @ slots_k[allowed].T / math.sqrt(query.shape[-1])
    return torch.softmax(scores if bias is None else scores + bias[allowed], dim=-1) @ slots_v[allowed]


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


def running_mean(sequence: Tensor, weights: Tensor, decay: Tensor, real: list[int]) -> Tensor:
    """Slots ``(K, D)`` of one row's real positions: ``Σ_i e_i exp(−λ age_i) x_i / Σ_i e_i exp(−λ age_i)``."""
    if not real:
        return sequence.new_zeros(decay.shape[-1], sequence.shape[-1])
    total = sequence.new_zeros(decay.shape[-1], sequence.shape[-1])
    mass = torch.zeros_like(decay)
    for age, position in enumerate(reversed(real)):
        weight = weights[position] * torch.exp(-decay * age)
        total = total + torch.outer(weight, sequence[position])
        mass = mass + weight
    return total / mass.unsqueeze(-1)


def causal_linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj: tuple[Tensor, Tensor],
    *,
    score_bias: Tensor | None = None,
    window: int | None = None,
    exact_first: int = 0,
    key_padding_mask: Tensor | None = None,
) -> Tensor:
    """Causal attention, one position at a time; ``proj``: decays ``(H, K)`` and weights ``(H, N, K)``."""
    output = torch.zeros_like(value)
    for row in range(query.shape[0]):
        real = real_positions(key_padding_mask, row, query.shape[2])
        for head in range(query.shape[1]):
            for position in real:
                past = [p for p in real if p <= position]
                decay, weights = (x[head] for x in proj)
                slots_k, slots_v = (running_mean(x[row, head], weights, decay, past) for x in (key, value))
                recent = past[-window:] if window else []
                exact = [p for p in past[:exact_first] if p not in recent]
                keys = torch.cat([slots_k, key[row, head, exact + recent]])
                values = torch.cat([slots_v, value[row, head, exact + recent]])
                scores = keys @ query[row, head, position] / math.sqrt(query.shape[-1])
                if score_bias is not None:
                    scores = torch.cat([scores[: len(slots_k)] + score_bias[head], scores[len(slots_k) :]])
                output[row, head, position] = torch.softmax(scores, dim=-1) @ values
    return output


def windowed_attention(
    query: Tensor,
    slots_k: Tensor,
    slots_v: Tensor,
    key: Tensor,
    value: Tensor,
    reach: int,
    *,
    slot_padding: Tensor | None = None,
    key_padding: Tensor | None = None,
    offset: int = 0,
    biases: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Tensor:
    """Attention over slots and the positions near each query, one at a time; zeros where there is nothing.

    Of the biases the first, ``[b, h]``, is added to the scores of the slots, the second, ``[h, d + reach]``, to that of
    the position d after the query; one row or one head may stand for all.
    """
    slot_bias, window_bias = biases
    output = query.new_zeros(*query.shape[:3], value.shape[-1])
    for row in range(query.shape[0]):
        real = real_positions(key_padding, row, key.shape[2])
        slots = real_positions(slot_padding, row, slots_k.shape[2])
        for head in range(query.shape[1]):
            for position in range(query.shape[2]):
                seen = [p for p in real if abs(p - offset - position) <= reach]
                keys = torch.cat([slots_k[row, head, slots], key[row, head, seen]])
                values = torch.cat([slots_v[row, head, slots], value[row, head, seen]])
                bias = query.new_zeros(len(keys))
                if slot_bias is not None:
                    bias_of_head = slot_bias[row % slot_bias.shape[0], head % slot_bias.shape[1]]
                    bias = torch.cat([bias_of_head[slots], bias[len(slots) :]])
                if window_bias is not None:
                    steps = [p - offset - position + reach for p in seen]
                    bias = torch.cat([bias[: len(slots)], window_bias[head % len(window_bias), steps]])
                everything = list(range(len(keys)))
                output[row, head, position] = softmax_row(query[row, head, [position]], keys, values, everything, bias)
    return output

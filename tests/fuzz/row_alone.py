"""The definitions, for one row of a batch without its padding: no batch, no mask, and arithmetic of torch alone.

Modules are read for their parameters and settings and never called. ``n`` is the number of real tokens, and tensors are
``(n, C)``, or ``(n, D)`` for one head.
"""

import math

import torch
from torch import Tensor

from torch_linformer.nn import DynamicProjection


def linear(x, module):
    mapped = x @ module.weight.T
    return mapped if module.bias is None else mapped + module.bias


def layer_norm(x, norm):
    centred = x - x.mean(dim=-1, keepdim=True)
    normed = centred / torch.sqrt(centred.square().mean(dim=-1, keepdim=True) + norm.eps) * norm.weight
    return normed if norm.bias is None else normed + norm.bias


def heads_of(x, module, heads):
    """The mapped channels of each head, ``(n, D)``: head h owns those from h·D to (h + 1)·D."""
    return linear(x, module).split(module.weight.shape[0] // heads, dim=-1)


def compress(sequence, matrix, length_scaling=True):
    """``s Σ_i E[i] ⊗ x[i]`` with s = √(max_len / n): ``(K, D)``."""
    scale = math.sqrt(len(matrix) / max(len(sequence), 1)) if length_scaling else 1.0
    return scale * (matrix[: len(sequence)].T @ sequence)


def slots_of_head(projection, sequence, head, scored):
    """What a map makes of a sequence: those of the K slots that have a token. A ``dynamic`` one looks at ``scored``."""
    weight = projection.weight
    if isinstance(projection, DynamicProjection):
        weight = weight if projection.num_heads is None else weight[head]
        exact = torch.promote_types(sequence.dtype, torch.float32)  # of the places, and of a softmax
        places = (torch.arange(len(sequence), dtype=exact) + 0.5) * projection.k / max(len(sequence), 1)
        distances = places[:, None] - (torch.arange(projection.k) + 0.5) - projection.shift
        scores = scored @ weight.T - 2 * torch.exp(projection.log_steepness.to(exact)) * distances**2
        return torch.softmax(scores, dim=0).T.to(sequence.dtype) @ sequence
    if projection.projection in ("linear", "random"):
        return compress(sequence, weight[head] if weight.dim() == 3 else weight, projection.length_scaling)
    window = math.ceil(projection.max_len / projection.k)
    slots = []
    for start in range(0, len(sequence), window):
        tokens = sequence[start : start + window]
        if projection.projection == "mean":
            slots.append(tokens.mean(dim=0))
        elif projection.projection == "max":
            slots.append(tokens.amax(dim=0))
        else:
            kernel = weight[head] if weight.dim() == 2 else weight
            slots.append(kernel[: len(tokens)] @ tokens)
    return torch.stack(slots) if slots else sequence


def log_mass_of(module, projection, head, length):
    """What is added to the scores of the slots that have a token: the log of how many they stand for."""
    if module.context.mass == "none":
        return module.q_proj.weight.new_zeros(())
    if isinstance(projection, DynamicProjection):
        tokens = [max(length, 1) / projection.k] * projection.k
    else:
        window = math.ceil(projection.max_len / projection.k)
        tokens = [min(window, length - start) for start in range(0, length, window)]
    mass = torch.log(torch.tensor(tokens, dtype=torch.float64)).to(module.q_proj.weight.dtype)
    return mass + module.context.slot_terms.mass[head, : len(mass)] if module.context.mass == "learned" else mass


def exact_of(context, length):
    """The positions that every query sees itself."""
    first, last = context.exact_first, context.exact_last
    return [*range(min(first, length)), *range(max(first, length - last), length)]


def softmax_of(scores, values):
    """One query's output and its weights; zeros where there is nothing to attend to."""
    weights = torch.softmax(scores, dim=-1)
    return weights @ values, weights


def attention(module, query, key, value, shared=None):
    """``LinformerAttention`` that is not causal: the output, and the weights of the slots for each head and query."""
    proj_k = shared if module.context.proj_k is None else module.context.proj_k
    proj_v = proj_k if module.context.proj_v is None else module.context.proj_v
    exact, no_slots = exact_of(module.context, len(key)), module.context.k == 0
    queries = heads_of(query, module.q_proj, module.num_heads)
    all_keys = heads_of(key, module.k_proj, module.num_kv_heads)
    all_values = heads_of(value, module.v_proj, module.num_kv_heads)
    outputs, weights = [], []
    for head in range(module.num_heads):
        of = head // (module.num_heads // module.num_kv_heads)
        keys, values = all_keys[of], all_values[of]
        if no_slots:
            slots_k, slots_v, log_mass = keys[:0], values[:0], 0.0
        else:
            scored = (keys, values) if proj_k.num_heads is not None else (key, value)
            slots_k = slots_of_head(proj_k, keys, of, scored[0])
            slots_v = slots_of_head(proj_v, values, of, scored[proj_v is not proj_k])
            log_mass = log_mass_of(module, proj_k, of, len(keys))
        terms = module.context.slot_terms
        if terms is not None and terms.bias_k is not None:
            slots_k = slots_k + terms.bias_k[of, : len(slots_k)]
            slots_v = slots_v + terms.bias_v[of, : len(slots_v)]
        for position, one in enumerate(queries[head]):
            near = [*exact, *(p for p in near_of(position, module.window, len(keys)) if p not in exact)]
            scale = 1 / math.sqrt(module.head_dim)
            scores = torch.cat([slots_k @ one * scale + log_mass, keys[near] @ one * scale])
            output, each = softmax_of(scores, torch.cat([slots_v, values[near]]))
            outputs.append(output)
            weights.append(each[: len(slots_k)])
    return join_heads(module, outputs, query), weights


def near_of(position, window, length):
    """The positions at most ``window // 2`` away."""
    if window is None:
        return range(0)
    return range(max(0, position - window // 2), min(length, position + window // 2 + 1))


def join_heads(module, outputs, query):
    """The outputs of all positions of the first head, then of the second …, mixed: ``(N, C)``."""
    if not outputs:
        return query.new_zeros(0, module.out_proj.weight.shape[0])
    heads = torch.stack(outputs).view(module.num_heads, len(query), -1)
    return linear(torch.cat(list(heads), dim=-1), module.out_proj)


def running_means(sequence, decay, weights):
    """Slots ``(K, D)`` after the last position: ``Σ_i e_i exp(−λ age_i) x_i / Σ_i e_i exp(−λ age_i)``."""
    age = torch.arange(len(sequence) - 1, -1, -1, dtype=sequence.dtype)
    faded = weights * torch.exp(-decay * age[:, None])
    return (faded.T @ sequence) / faded.sum(dim=0)[:, None]


def causal_head(query, key, value, decay, weights, score_bias, window, exact_first, scale):
    """Outputs of one head's positions, and what they give to its slots, of decays ``(K,)`` and weights ``(n, K)``."""
    outputs, weights_of_slots = [], []
    for position, one in enumerate(query):
        past, near = slice(0, position + 1), range(max(0, position + 1 - (window or 0)), position + 1)
        near = [*range(min(exact_first, near.start)), *near]
        slots_k, slots_v = (running_means(x[past], decay, weights[past]) for x in (key, value))
        scores = slots_k @ one * scale + score_bias
        scores = torch.cat([scores, key[near] @ one * scale])
        output, each = softmax_of(scores, torch.cat([slots_v, value[near]]))
        outputs.append(output)
        weights_of_slots.append(each[: len(slots_k)])
    return outputs, weights_of_slots


def rotate(x, width, theta=10000.0):
    """Position p turns channels i and i + width / 2 by p · theta^(−2i / width)."""
    turned = list(x.unbind(dim=-1))
    positions = torch.arange(len(x), dtype=torch.float64)
    for i in range(width // 2):
        angle = positions * theta ** (-2 * i / width)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        first, second = x[:, i], x[:, i + width // 2]
        turned[i], turned[i + width // 2] = first * cos - second * sin, first * sin + second * cos
    return torch.stack(turned, dim=-1)


def causal_attention(module, query, key, value):
    """``LinformerAttention`` with ``causal=True``: the output, and the weights of the slots for each head and query."""
    queries = heads_of(query, module.q_proj, module.num_heads)
    all_keys = heads_of(key, module.k_proj, module.num_kv_heads)
    all_values = heads_of(value, module.v_proj, module.num_kv_heads)
    outputs, weights_of_slots = [], []
    for head in range(module.num_heads):
        of = head // (module.num_heads // module.num_kv_heads)
        one, keys = (rotate(x, module.context.rotary_dim) for x in (queries[head], all_keys[of]))
        decay, weights, bias = keys.new_zeros(0), keys.new_zeros(len(keys), 0), keys.new_zeros(0)
        if module.context.running is not None:
            decay = torch.exp(-module.context.running.log_time[head]).clamp(max=0.5)
            weights = torch.exp(8 * torch.tanh(keys @ module.context.running.address[head] / 8))
            bias = module.context.running.score_bias[head]
        scale = 1 / math.sqrt(module.head_dim)
        seen = module.window, module.context.exact_first
        found = causal_head(one, keys, all_values[of], decay, weights, bias, *seen, scale)
        outputs += found[0]
        weights_of_slots += found[1]
    return join_heads(module, outputs, query), weights_of_slots


def self_attention(module, x, shared=None):
    return (causal_attention(module, x, x, x) if module.causal else attention(module, x, x, x, shared))[0]


def feed_forward(layer, x):
    hidden = layer.activation(linear(x, layer.linear1))
    if layer.linear_gate is not None:
        hidden = hidden * linear(x, layer.linear_gate)
    return linear(hidden, layer.linear2)


def encoder_layer(layer, x, shared=None):
    if layer.norm_first:
        x = x + self_attention(layer.self_attn, layer_norm(x, layer.norm1), shared)
        return x + feed_forward(layer, layer_norm(x, layer.norm2))
    x = layer_norm(x + self_attention(layer.self_attn, x, shared), layer.norm1)
    return layer_norm(x + feed_forward(layer, x), layer.norm2)


def encoder(model, x):
    if model.activation_memory == "reversible":
        first = second = x
        for layer in model.layers:
            first = first + self_attention(layer.self_attn, layer_norm(second, layer.norm1), model.shared_projection)
            second = second + feed_forward(layer, layer_norm(first, layer.norm2))
        x = (first + second) / 2
    else:
        for layer in model.layers:
            x = encoder_layer(layer, x, model.shared_projection)
    return x if model.norm is None else layer_norm(x, model.norm)


def decoder_layer(layer, x, memory, shared=None):
    def attend(x: Tensor) -> Tensor:
        return attention(layer.multihead_attn, x, memory, memory, shared)[0]

    if layer.norm_first:
        x = x + self_attention(layer.self_attn, layer_norm(x, layer.norm1))
        x = x + attend(layer_norm(x, layer.norm2))
        return x + feed_forward(layer, layer_norm(x, layer.norm3))
    x = layer_norm(x + self_attention(layer.self_attn, x), layer.norm1)
    x = layer_norm(x + attend(x), layer.norm2)
    return layer_norm(x + feed_forward(layer, x), layer.norm3)


def decoder(model, x, memory):
    for layer in model.layers:
        x = decoder_layer(layer, x, memory, model.shared_projection)
    return x if model.norm is None else layer_norm(x, model.norm)

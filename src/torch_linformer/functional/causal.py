"""Causal Linformer attention: every slot is a running mean, so that no query sees what comes after it.

Position i enters slot j with weight :math:`w_{tij} = e_{ij} \\exp(-\\lambda_j (p_t - p_i))`, where p counts the real
tokens. In a chunk that begins after :math:`p_0` tokens the mean is the same with the weights
:math:`g_{ij} = e_{ij} \\exp(\\lambda_j (p_i - p_0))`, because :math:`\\exp(-\\lambda_j (p_t - p_0))` appears in both
its numerator and its denominator; what came before the chunk enters as two sums. The definition: docs/causal.md.

With :math:`E_t = \\sum_{i \\le t} w_{ti}` the scores of slots and the output are two causal linear attentions, with a
softmax P between them:

.. math::
    s_{tj} = \\sum_{i \\le t} (q_t \\cdot k_i) \\, w_{tij} / E_{tj}, \\qquad
    o_t = \\sum_{i \\le t} \\Big(\\sum_j P_{tj} \\, w_{tij} / E_{tj}\\Big) v_i

For the whole sequence tril(Q Kᵀ) and tril(P wᵀ) would be N × N. In a chunk
:math:`w_{tij} / E_{tj} = g_{ij} / G_{tj}`, where :math:`G_{tj} = G^0_j + \\sum_{i \\le t} g_{ij}`, and :math:`G^0`
and :math:`S^0 = \\sum g_{ij} k_i` summarize what came before, decayed to its start. So it has the scores
:math:`(\\mathrm{tril}(Q K^\\top) g + Q S^{0 \\top}) / G`, the output
:math:`\\mathrm{tril}((P / G) g^\\top) V + (P / G) S^0_v`, and with its n real tokens the next chunk has
:math:`S^0 = e^{-\\lambda n} (S^0 + g^\\top K)`. The states of all chunks of a segment are made by one product with a
triangular matrix of :math:`e^{-\\lambda (\\text{tokens between})}`; the scores of the window come from blocks of c
queries and c + w − 1 keys. λ is at most 1/2 and c is 64, so :math:`e^{\\lambda (p_i - p_0)}` is at most
:math:`e^{32}`; e lies between :math:`e^{-8}` and :math:`e^8`.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.attention import blocks_of, first_positions, join_weights, local_mask, local_parts
from torch_linformer.functional.cpu import sizes_for
from torch_linformer.functional.padding import Padding, check_padding_mask, check_shapes, reorder, zero_padding
from torch_linformer.functional.pytorch import assert_async, is_compiling, is_traced, is_transformed, records_a_graph
from torch_linformer.functional.softmax import SoftmaxCall, additive_mask, check_scale

CHUNK = 64  # positions in a chunk
GROUP = 8  # chunks in a group, in a graph
STEEPEST = 64.0  # nats that a weight may fade in one chunk: float32 has room for them and for the weights


class SlotWeights(NamedTuple):
    r"""How positions enter the slots: E, and F, of causal attention.

    Attributes:
        decay: :math:`\lambda \ge 0`: every real token multiplies earlier weights by :math:`e^{-\lambda}`; ``(K,)`` or
            ``(H, K)``.
        weights: :math:`e > 0`, ``(N, K)``, ``(H, N, K)`` or ``(B, H, N, K)``; None where all positions count alike.
    """

    decay: Tensor
    weights: Tensor | None = None


class CausalSlots(NamedTuple):
    """The slots of causal attention.

    Attributes:
        weights: the weights of positions in the slots, the same for keys and values.
        bias: added to the scores of slots, ``(K,)`` or ``(H, K)``.
        chunk_size: positions computed at once; changes only rounding, and bounds how fast weights may fade.
    """

    weights: SlotWeights
    bias: Tensor | None = None
    chunk_size: int = CHUNK

    def map_weights(self, function: Callable[[Tensor], Tensor]) -> "CausalSlots":
        """The slots with ``function`` of the weights of positions, where there are any."""
        decay, weights = self.weights
        return self if weights is None else self._replace(weights=SlotWeights(decay, function(weights)))


class CausalInput(NamedTuple):
    """Consecutive positions: scaled queries ``(B, H, N, D)``; keys and values with zeros at padding, bool ``(B, N)``.

    Without ``slots`` they attend to nothing but the window, of ``window`` positions, and the first tokens.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    padding: Tensor | None
    slots: CausalSlots | None
    window: int | None

    def map(self, function: Callable[[Any, int], Any]) -> Self:
        """``function`` of all that has something for each position, and of the dimension of the positions."""
        query, key, value = (function(x, -2) for x in self[:3])
        padding = None if self.padding is None else function(self.padding, -1)
        slots = None if self.slots is None else self.slots.map_weights(lambda weights: function(weights, -2))
        return type(self)(query, key, value, padding, slots, self.window)


@dataclass
class CausalState:
    """What causal attention keeps of the past: tensors whose sizes do not depend on its length."""

    tokens: Tensor  # real ones so far, (B,)
    keys: Tensor  # sums of weighted keys, (B, H, K, D)
    values: Tensor  # sums of weighted values, (B, H, K, Dv)
    mass: Tensor  # sums of the weights, (B, H, K)
    recent_keys: Tensor  # of the last w − 1 real tokens, (B, H, w − 1, D); fewer are at the end
    recent_values: Tensor  # theirs, (B, H, w − 1, Dv)
    first_keys: Tensor  # of the first T real tokens, (B, H, T, D), zeros where there are fewer yet
    first_values: Tensor  # theirs, (B, H, T, Dv)

    @classmethod
    def empty(cls, key: Tensor, value: Tensor, num_slots: int, window: int | None, exact_first: int = 0) -> Self:
        """The state before the first token of sequences like ``key`` and ``value``."""
        (batch, heads, _, width), recent = key.shape, (window or 1) - 1
        sums = torch.promote_types(key.dtype, torch.float32)
        return cls(
            tokens=torch.zeros(batch, dtype=torch.long, device=key.device),
            keys=key.new_zeros(batch, heads, num_slots, width, dtype=sums),
            values=value.new_zeros(batch, heads, num_slots, value.shape[-1], dtype=sums),
            mass=key.new_zeros(batch, heads, num_slots, dtype=sums),
            recent_keys=key.new_zeros(batch, heads, recent, width),
            recent_values=value.new_zeros(batch, heads, recent, value.shape[-1]),
            first_keys=key.new_zeros(batch, heads, exact_first, width),
            first_values=value.new_zeros(batch, heads, exact_first, value.shape[-1]),
        )

    def with_first(self, key: Tensor, value: Tensor, padding: Tensor | None) -> Self:
        """The state with those of the first T tokens that stand in the next positions, whose real tokens come first."""
        places = torch.arange(self.first_keys.shape[2], device=key.device) - self.tokens.unsqueeze(-1)
        number = key.shape[2] if padding is None else (~padding).sum(dim=-1, keepdim=True)
        is_here = (places >= 0) & (places < number)
        index = places.masked_fill(~is_here, 0)[:, None, :, None]
        is_here = is_here[:, None, :, None]

        def taken(sequence: Tensor, before: Tensor) -> Tensor:
            return torch.where(is_here, sequence.gather(2, index.expand_as(before)), before)

        first_keys, first_values = taken(key, self.first_keys), taken(value, self.first_values)
        return replace(self, first_keys=first_keys, first_values=first_values)

    def sees_first(self, positions: Tensor, window: int | None) -> Tensor:
        """Bool ``(B, 1, N, T)``: the first tokens up to tokens of these numbers ``(B, N)`` that no window holds."""
        ages = positions.unsqueeze(-1) - torch.arange(self.first_keys.shape[2], device=positions.device)
        return (ages >= (window or 0)).unsqueeze(1)

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        return type(self)(*(x.index_select(0, index) for x in self.tensors()))

    def tensors(self) -> list[Tensor]:
        return [getattr(self, field.name) for field in fields(self)]


def carry(tokens_Bn: Tensor, decay_HK: Tensor, added_BHnKX: Tensor, start_BHKX: Tensor) -> tuple[Tensor, Tensor]:
    """Sums ``(B, H, n, K, X)`` before each of n chunks, and those after the last one, ``(B, H, K, X)``.

    They decay by ``decay_HK`` nats a token (H may be 1) from ``start_BHKX``, to which each chunk adds, relative to its
    beginning, ``added_BHnKX``.
    """
    if records_a_graph():
        return carry_by_groups(tokens_Bn, decay_HK, added_BHnKX, start_BHKX)
    elapsed = F.pad(tokens_Bn.cumsum(dim=-1), (1, 0)).unsqueeze(1)
    sums = _faded_sums(decay_HK, elapsed, elapsed[..., :-1], added_BHnKX, start_BHKX)
    return sums[:, :, :-1], sums[:, :, -1]


def carry_by_groups(
    tokens_Bn: Tensor, decay_HK: Tensor, added_BHnKX: Tensor, start_BHKX: Tensor
) -> tuple[Tensor, Tensor]:
    """From group to group, and in each from chunk to chunk: a graph has all chunks, and n² factors are too many."""
    chunks = added_BHnKX.shape[2]
    groups = blocks_of(chunks, GROUP)
    fill = groups * GROUP - chunks
    added = torch.unflatten(F.pad(added_BHnKX, (0, 0, 0, 0, 0, fill)), 2, (groups, GROUP))
    tokens = torch.unflatten(F.pad(tokens_Bn, (0, fill)), 1, (groups, GROUP))
    # Tokens before each chunk of a group and, last, in the group, (B, 1, groups, GROUP + 1).
    elapsed = F.pad(tokens.cumsum(dim=-1), (1, 0)).unsqueeze(1)
    decay, rest = decay_HK.unsqueeze(1), elapsed[..., -1:] - elapsed[..., :-1]
    # Relative to the end of a group, because growth from its beginning would leave the range of float32.
    group_sums = (torch.exp(-decay.unsqueeze(2) * rest.unsqueeze(-1)).unsqueeze(-1) * added).sum(dim=3)
    before_groups = F.pad(elapsed[:, 0, :, -1].cumsum(dim=-1), (1, 0)).unsqueeze(1)
    sums = _faded_sums(decay_HK, before_groups, before_groups[..., 1:], group_sums, start_BHKX)
    in_groups = _faded_sums(decay, elapsed, elapsed[..., :-1], added, sums[:, :, :-1])
    return first_positions(in_groups[:, :, :, :-1].flatten(2, 3), chunks), sums[:, :, -1]


def _faded_sums(decay: Tensor, elapsed: Tensor, seen_from: Tensor, added: Tensor, start: Tensor) -> Tensor:
    """Sums ``(…, n + 1, K, X)`` before each of n parts of a sequence, and last after them all.

    They decay by ``(…, K)`` nats a token from ``start`` ``(…, K, X)``. Before each part and, last, in all there are
    ``elapsed`` tokens ``(…, n + 1)``; what each adds ``(…, n, K, X)`` is relative to ``seen_from`` ``(…, n)``.
    """
    gaps = (elapsed.unsqueeze(-1) - seen_from.unsqueeze(-2)).unsqueeze(-3)
    later = torch.ones(gaps.shape[-2:], dtype=torch.bool, device=gaps.device).triu()
    fade = (-decay[..., None, None] * gaps).masked_fill(later, float("-inf")).exp()
    faded_start = torch.exp(-decay[..., None] * elapsed.unsqueeze(-2)).unsqueeze(-1) * start.unsqueeze(-2)
    sums: Tensor = fade @ added.transpose(-3, -2) + faded_start
    return sums.transpose(-3, -2)


class RunningMeans:
    """Means of keys and values in K slots at every position: products with them, without the means themselves.

    Keys and values ``(B, H, n, c, X)`` have zeros at padding; ``real`` is bool ``(B, n, c)``, or None where all are.
    Weights are relative to the beginning of their chunk.
    """

    def __init__(
        self, proj: SlotWeights, state: CausalState, keys: Tensor, values: Tensor, real: Tensor | None
    ) -> None:
        (number, size), dtype = keys.shape[2:4], state.mass.dtype
        if real is None:  # real tokens of the chunk up to each position, and of each chunk
            ticks = torch.arange(1, size + 1, device=keys.device, dtype=dtype)[None, None]
            tokens = state.mass.new_full((1, number), size)
        else:
            ticks = real.to(dtype).cumsum(dim=-1)
            tokens = ticks[..., -1]
        decay = proj.decay.to(dtype)
        decay_HK = decay if decay.dim() == 2 else decay.unsqueeze(0)
        grown = torch.exp(decay_HK[:, None, None] * ticks[:, None, :, :, None]).expand(-1, -1, number, -1, -1)
        weights = None if proj.weights is None else proj.weights.to(dtype)
        if real is not None:
            absent = ~real[:, None, :, :, None]
            if weights is None:
                grown = grown.masked_fill(absent, 0.0)
            else:  # masked before the product: the gradient of 0 · NaN is NaN
                weights = weights.masked_fill(absent, 0.0)
        grown = grown if weights is None else grown * weights
        self.grown_BHncK, self.values = grown.to(values.dtype), values
        # What each chunk adds to the sums of keys, of values and of their weights. Carried side by side they would be
        # 129 channels wide, which costs copies at every product (docs/log.md).
        mass = grown.cumsum(dim=-2)
        added_keys, added_values = ((self.grown_BHncK.transpose(-2, -1) @ x).to(dtype) for x in (keys, values))
        added_mass = mass[..., -1, :, None].expand(*added_keys.shape[:-1], 1)
        before_keys, keys_after = carry(tokens, decay_HK, added_keys, state.keys)
        before_values, values_after = carry(tokens, decay_HK, added_values, state.values)
        before_mass, mass_after = carry(tokens, decay_HK, added_mass, state.mass.unsqueeze(-1))
        self.before_keys, self.before_values = before_keys.to(keys.dtype), before_values.to(values.dtype)
        self.mass = mass + before_mass.transpose(-2, -1)
        if real is not None:
            # No token yet: the sums are zeros too, and so is their mean.
            self.mass = self.mass.masked_fill(self.mass == 0, 1.0)
        self.after = {"keys": keys_after, "values": values_after, "mass": mass_after.squeeze(-1)}

    def products(self, queries_BHncX: Tensor, own_BHncc: Tensor) -> Tensor:
        """``q · mean`` of every position and slot, ``(B, H, n, c, K)``, from ``own``, q · k within the chunks."""
        sums_BHncK = own_BHncc.tril() @ self.grown_BHncK + queries_BHncX @ self.before_keys.transpose(-2, -1)
        return (sums_BHncK / self.mass).to(queries_BHncX.dtype)

    def mix(self, shares_BHncK: Tensor) -> Tensor:
        """The means of values, weighted with each position's shares: ``(B, H, n, c, X)``."""
        shares = (shares_BHncK / self.mass).to(shares_BHncK.dtype)
        return (shares @ self.grown_BHncK.transpose(-2, -1)).tril() @ self.values + shares @ self.before_values


def _attend(scores: list[Tensor], mixes: list[Callable[[Tensor], Tensor]], dropout_p: float) -> tuple[Tensor, Tensor]:
    """Output and softmax over parts together: each has its scores, and what mixes its values by their weights."""
    sizes, softmax = [x.shape[-1] for x in scores], torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    scores.clear()  # so that what follows is computed in the same memory
    weights = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    outputs = [mix(x) for mix, x in zip(mixes, torch.split(weights, sizes, dim=-1), strict=True)]
    return sum(outputs[1:], start=outputs[0]), softmax


def attend_segment(
    inputs: CausalInput, state: CausalState, chunk: int, dtype: torch.dtype, call: SoftmaxCall
) -> tuple[Tensor, Tensor | None, CausalState]:
    """A whole number of chunks, of ``chunk`` positions each, that follow those of ``state``, computed side by side.

    Returns the output; with ``need_weights`` the softmax (slots, exact tokens, window); and the state after them.
    """
    query, key, value = (x.to(dtype) for x in inputs[:3])
    padding, slots, window = inputs[3:]
    length, before, device = query.shape[2], (window or 1) - 1, query.device
    num_slots, num_first = state.mass.shape[-1], state.first_keys.shape[2]
    real = None if padding is None else ~padding

    def chunks(x: Tensor, dim: int) -> Tensor:
        return x.reshape(*x.shape[:dim], x.shape[dim] // chunk, chunk, *x.shape[dim + 1 :])

    def spans(sequence: Tensor) -> Tensor:
        """Each chunk after the positions that its first window reaches back to, ``(…, n, w − 1 + c, X)``."""
        parts = local_parts(sequence, chunk, before + chunk)
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)

    keys = torch.cat([state.recent_keys.to(dtype), key], dim=2)
    values = torch.cat([state.recent_values.to(dtype), value], dim=2)
    queries, keys_BHnsD, values_BHnsX = chunks(query, 2).contiguous(), spans(keys), spans(values)
    products_BHncs = queries @ keys_BHnsD.transpose(-2, -1)
    scores: list[Tensor] = []
    mixes: list[Callable[[Tensor], Tensor]] = []
    after: dict[str, Tensor] = {}
    if slots is not None:
        proj = slots.map_weights(lambda x: chunks(x, x.dim() - 2)).weights
        real_Bnc = None if real is None else chunks(real, 1)
        means = RunningMeans(proj, state, keys_BHnsD[..., before:, :], values_BHnsX[..., before:, :], real_Bnc)
        after = means.after
        scores.append(means.products(queries, products_BHncs[..., before:]))
        mixes.append(means.mix)
        if slots.bias is not None:
            bias = slots.bias if slots.bias.dim() == 1 else slots.bias[:, None, None]
            scores[0] = scores[0] + bias.to(dtype)
    if num_first > 0:
        numbers = torch.arange(length, device=device) if real is None else real.cumsum(dim=-1) - 1
        seen = state.sees_first(state.tokens.unsqueeze(-1) + numbers, window)
        # All chunks share these keys in one product: broadcast over the chunks it would copy them for each.
        scores_BHNT = query @ state.first_keys.to(dtype).transpose(-2, -1)
        scores.append(chunks(scores_BHNT + additive_mask(seen, dtype), 2))
        mixes.append(lambda weights: chunks(weights.flatten(2, 3) @ state.first_values.to(dtype), 2))
    if window is not None:
        tokens = state.tokens.unsqueeze(-1)
        is_recent = torch.arange(before, 0, -1, device=device) <= tokens
        is_real = torch.ones_like(tokens, dtype=torch.bool).expand(-1, length) if real is None else real
        is_real = spans(torch.cat([is_recent, is_real], dim=1).unsqueeze(-1)).squeeze(-1)
        in_window = local_mask(chunk, before, 0, device)
        itself = torch.ones_like(in_window).tril(before) & torch.ones_like(in_window).triu(before)  # at padding
        visible = ((is_real.unsqueeze(-2) & in_window) | itself).unsqueeze(1)
        scores.append(products_BHncs + additive_mask(visible, dtype))
        mixes.append(lambda weights: weights @ values_BHnsX)
    output, softmax = _attend(scores, mixes, call.dropout_p)
    weights = None
    if call.need_weights:
        has_spans = window is not None
        weights = join_weights(softmax, num_slots + num_first, before, 0) if has_spans else softmax.flatten(2, 3)
    after |= {"recent_keys": _last_tokens(keys, before, real), "recent_values": _last_tokens(values, before, real)}
    tokens = state.tokens + (length if real is None else real.sum(dim=-1))
    # Copies: a view would keep the memory of the whole segment.
    state = replace(state, tokens=tokens, **{name: x.clone() for name, x in after.items()})
    return zero_padding(output.flatten(2, 3).to(inputs.value.dtype), padding), weights, state


def _last_tokens(sequence: Tensor, number: int, real: Tensor | None) -> Tensor:
    """The last real tokens ``(B, H, number, X)`` of a sequence; ``number`` of its positions stand before ``real``."""
    if real is None:
        return sequence[:, :, sequence.shape[2] - number :]
    # Where fewer tokens came before, zeros stand first in their place; they count as real here.
    tokens_from = real.flip(-1).cumsum(dim=-1).flip(-1)
    count = F.pad(tokens_from, (number, 0))
    count[:, :number] = tokens_from[:, :1] + torch.arange(number, 0, -1, device=tokens_from.device)
    real = F.pad(real, (number, 0), value=True)
    target = torch.where(real & (count <= number), number - count, number)
    last = sequence.new_zeros(*sequence.shape[:2], number + 1, sequence.shape[-1])
    last = last.scatter(2, target[:, None, :, None].expand_as(sequence), sequence)
    return last[:, :, :number]


def attend_next(
    token: CausalInput, state: CausalState, dtype: torch.dtype, dropout_p: float
) -> tuple[Tensor, Tensor, CausalState]:
    """One token in each row, without chunks: output, softmax and the state after it."""
    query, key, value = (x.to(dtype) for x in token[:3])
    padding, slots, window = token[3:]
    scores: list[Tensor] = []
    mixes: list[Callable[[Tensor], Tensor]] = []
    keys, values, mass = state.keys, state.values, state.mass
    if slots is not None:
        fade = torch.exp(-slots.weights.decay.to(mass.dtype)).expand_as(mass)
        weights = slots.weights.weights
        weight = torch.ones_like(fade) if weights is None else weights[..., 0, :].to(mass.dtype).expand_as(mass)
        if padding is not None:  # adds nothing, and lets nothing fade
            absent = padding.unsqueeze(-1)
            fade, weight = fade.masked_fill(absent, 1.0), weight.masked_fill(absent, 0.0)
        keys = keys * fade.unsqueeze(-1) + weight.unsqueeze(-1) * key
        values = values * fade.unsqueeze(-1) + weight.unsqueeze(-1) * value
        mass = mass * fade + weight
        # Before the first token all sums, and so the means, are 0.
        mass_BH1K = mass.masked_fill(mass == 0, 1.0).unsqueeze(2)
        scores_BH1K = ((query @ keys.transpose(-2, -1).to(dtype)) / mass_BH1K).to(dtype)
        scores.append(scores_BH1K if slots.bias is None else scores_BH1K + slots.bias.unsqueeze(-2).to(dtype))
        mixes.append(lambda weights: (weights / mass_BH1K).to(dtype) @ values.to(dtype))
    if state.first_keys.shape[2] > 0:
        unseen = ~state.sees_first(state.tokens.unsqueeze(-1), window)
        scores.append((query @ state.first_keys.transpose(-2, -1).to(dtype)).masked_fill(unseen, float("-inf")))
        mixes.append(lambda weights: weights @ state.first_values.to(dtype))
    recent_keys = torch.cat([state.recent_keys.to(dtype), key], dim=2)
    recent_values = torch.cat([state.recent_values.to(dtype), value], dim=2)
    if window is not None:
        missing = torch.arange(window - 1, -1, -1, device=key.device) > state.tokens.unsqueeze(-1)
        scores.append((query @ recent_keys.transpose(-2, -1)).masked_fill(missing[:, None, None], float("-inf")))
        mixes.append(lambda weights: weights @ recent_values)
    (output, softmax), tokens = _attend(scores, mixes, dropout_p), state.tokens + 1
    # Copies: a view would keep the token that has left the window.
    recent_keys, recent_values = recent_keys[:, :, 1:].clone(), recent_values[:, :, 1:].clone()
    if padding is not None:
        absent = padding[:, :, None, None]
        tokens = state.tokens + ~padding[:, 0]
        recent_keys = torch.where(absent, state.recent_keys, recent_keys)
        recent_values = torch.where(absent, state.recent_values, recent_values)
    first = state.first_keys, state.first_values
    state = CausalState(tokens, keys, values, mass, recent_keys, recent_values, *first)
    return zero_padding(output.to(token.value.dtype), padding), softmax, state


def causal_linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: CausalSlots,
    *,
    window: int | None = None,
    exact_first: int = 0,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    r"""Attention of every position over K slots of what came before it, and over some tokens themselves.

    These are the last ``window`` ones, and the first ``exact_first`` ones up to the position (attention sinks).

    .. math::
        \bar K_{tj} = \frac{\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)} k_i}
                           {\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)}}, \quad
        \mathrm{out}_t = \mathrm{softmax}([q_t \bar K_t^\top / \sqrt D + b,\; q_t K_{A_t}^\top / \sqrt D])\,
                         [\bar V_t;\; V_{A_t}], \quad
        A_t = \{i \le t : p_i < T \text{ or } p_i > p_t - w\}

    where :math:`p_i` counts real tokens from 0, T is ``exact_first``, w is ``window`` (0 without one), and
    :math:`\bar V` is made as :math:`\bar K`. Tokens of :math:`A_t` are in the slots too,
    and one that is both a first and a last one counts once. Time is O(N·(c·(D + K) + K·D + (w + T)·D)) for chunks of c,
    and the output at t does not depend on anything after t.

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, N, D)``.
        value: ``(B, H, N, Dv)``.
        slots: the weights e and decays λ with which positions enter the slots, and b, the bias on their scores.
        window: also attend to the last w tokens, the query's own among them.
        exact_first: also attend to the first T tokens.
        key_padding_mask: bool ``(B, N)``, True at padding, on any side and between tokens: positions, the window and
            the first tokens count real tokens.
        dropout_p: probability of dropping an attention weight; it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.

    Returns:
        ``(B, H, N, Dv)``; zeros at padding. A CPU computes half precision in float32, other devices only float16: in
        bfloat16 they err up to three times as much as ordinary attention, whose scores are not rounded.

    Raises:
        ValueError: if shapes or ``scale`` do not fit, a weight would fade by more than exp(64) in a chunk, or a real
            token's weight is not positive and finite. A compiled or exported graph checks these numbers where it runs,
            and raises ``RuntimeError``.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import CausalSlots, SlotWeights, causal_linformer_attention
        >>> query, key, value = torch.randn(3, 1, 4, 1000, 16)  # (B, H, N, D) each
        >>> slots = CausalSlots(SlotWeights(decay=1 / torch.tensor([16.0, 64.0, 256.0])))  # three time scales
        >>> causal_linformer_attention(query, key, value, slots, window=8).shape
        torch.Size([1, 4, 1000, 16])
    """
    fits = query.dim() == 4 and query.shape == key.shape and query.shape[:3] == value.shape[:3]
    expected = "query, key and value must be (B, H, N, D), (B, H, N, D) and (B, H, N, Dv)"
    check_shapes(fits, expected, query, key, value)
    check_window(window)
    if exact_first < 0:
        raise ValueError(f"exact_first must be at least 0 tokens, got {exact_first}")
    check_scale(scale)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    _check_weights(slots.weights, key, key_padding_mask, slots.chunk_size)
    attend = partial(attend_causally, window=window, exact_first=exact_first, call=SoftmaxCall(dropout_p, scale=scale))
    if key_padding_mask is None:
        return attend(query, key, value, slots)[0]
    # Means count the real tokens themselves; a window counts positions, and so do the first tokens.
    padding = Padding(key_padding_mask, in_order=window is None and exact_first == 0)
    query, key, value = (padding.justify(x) for x in (query, key, value))
    order = padding.order
    if order is not None:
        slots = slots.map_weights(lambda weights: reorder(weights[(None,) * (4 - weights.dim())], order, dim=2))
    output, _, _ = attend(query, key, value, slots, padding_mask=padding.trailing)
    return padding.restore(output)


def attend_causally(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: CausalSlots | None,
    *,
    window: int | None = None,
    exact_first: int = 0,
    padding_mask: Tensor | None = None,
    state: CausalState | None = None,
    call: SoftmaxCall = SoftmaxCall(),
) -> tuple[Tensor, Tensor | None, CausalState]:
    """:func:`causal_linformer_attention`, unchecked, of positions that follow those in ``state``, if it is given.

    With a window or exact tokens, padding follows the real tokens
    (:class:`torch_linformer.functional.padding.Padding`). ``slots`` may be None where there is a window: no slots then.
    Returns the output ``(B, H, N, Dv)``, zeros at padding; with ``need_weights`` the softmax ``(B, H, N, K + T + w)``
    before dropout, first slots, then the first T tokens (0 where the window holds one), then the window, the query's
    own position last; and the state after the last position.
    """
    device, length = query.device.type, query.shape[2]
    if state is None:
        num_slots = 0 if slots is None else slots.weights.decay.shape[-1]
        state = CausalState.empty(key, value, num_slots, window, exact_first)
    query = query * call.scale_for(query)
    query, key, value = (zero_padding(x, padding_mask) for x in (query, key, value))
    # Sums exceed the range of float16. Scores in bfloat16 err three times as much as SDPA's; the cost of float32 was
    # measured only on a CPU, where it is small (docs/log.md).
    dtype = torch.promote_types(query.dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    if length == 0:
        num_weights = state.mass.shape[-1] + exact_first + (window or 0)
        return value, query.new_zeros(*query.shape[:3], num_weights) if call.need_weights else None, state
    if exact_first > 0:
        state = state.with_first(key, value, padding_mask)
    inputs = CausalInput(query, key, value, padding_mask, slots, window)
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        if not is_traced() and length == 1:
            output, softmax, state = attend_next(inputs, state, dtype, call.dropout_p)
            return output, softmax if call.need_weights else None, state
        return _attend_in_segments(inputs, state, dtype, call)


def _attend_in_segments(
    inputs: CausalInput, state: CausalState, dtype: torch.dtype, call: SoftmaxCall
) -> tuple[Tensor, Tensor | None, CausalState]:
    """A segment of whole chunks at a time; a rest of a chunk is a segment of its own."""
    length, chunk = inputs.query.shape[2], CHUNK if inputs.slots is None else inputs.slots.chunk_size
    if records_a_graph():  # sizes are symbolic: one segment, filled up with padding, serves every length
        padding, fill = inputs.padding, blocks_of(length, chunk) * chunk - length
        if padding is None:
            padding = inputs.query.new_zeros(inputs.query.shape[0], length, dtype=torch.bool)
        inputs = inputs._replace(padding=None).map(lambda x, dim: F.pad(x, (0, 0, 0, fill)))
        inputs = inputs._replace(padding=F.pad(padding, (0, fill), value=True))
        output, weights, state = attend_segment(inputs, state, chunk, dtype, call)
        return first_positions(output, length), None if weights is None else first_positions(weights, length), state
    whole, longest = length - length % chunk, sizes_for(inputs.query.device).segment
    size = max(chunk, longest - longest % chunk)
    sizes = [size for size in [size] * (whole // size) + [whole % size, length - whole] if size > 0]
    attend: Callable[..., Any] = attend_segment
    # A segment keeps only its inputs for the backward pass; the transforms of torch.func allow no hooks for that.
    if torch.is_grad_enabled() and not is_transformed():
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=call.dropout_p > 0)
    # Split, not sliced: the gradient of a slice is as long as the whole.
    segments, outputs, all_weights = inputs.map(lambda x, dim: torch.split(x, sizes, dim)), [], []

    def segment(number: int) -> CausalInput:
        return segments.map(lambda parts, dim: parts[number])

    for number, size in enumerate(sizes):
        output, weights, state = attend(segment(number), state, min(chunk, size), dtype, call)
        outputs.append(output)
        all_weights.append(weights)
    return torch.cat(outputs, dim=2), torch.cat(all_weights, dim=2) if call.need_weights else None, state


def check_window(window: int | None) -> None:
    """Raise ``ValueError`` for a window of no tokens."""
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 token, or None for no window, got {window}")


def _check_weights(proj: SlotWeights, key: Tensor, padding: Tensor | None, chunk_size: int) -> None:
    (batch, heads, length, _), (decay, weights) = key.shape, proj
    fits = decay.dim() == 1 or (decay.dim() == 2 and decay.shape[0] in (1, heads))
    check_shapes(fits, "weights.decay must be (K,) or (H, K) beside a key (B, H, N, D)", decay, key)
    if weights is not None:
        shape, num_slots = tuple(weights.shape), decay.shape[-1]
        lead = (batch, heads)[4 - len(shape) :]
        fits = 2 <= len(shape) <= 4 and shape[-2:] == (length, num_slots)
        fits = fits and all(size in (1, fitting) for size, fitting in zip(shape[:-2], lead, strict=True))
        expected = (
            "weights.weights must be (N, K), (H, N, K) or (B, H, N, K) beside a key (B, H, N, D) and a decay (…, K)"
        )
        check_shapes(fits, expected, weights, key, decay)
        valid = ((weights > 0) & (weights < math.inf)).all(dim=-1)
        valid = valid if padding is None else valid | padding[:, None]
        _require(valid.all(), "weights.weights must be positive and finite at every real token")
    if decay.numel() > 0:
        limits = "0 and the limit of its chunks"
        if not is_compiling():  # where a message is one constant string
            limits = (
                f"0 and {STEEPEST:g} / chunk_size = {STEEPEST / chunk_size:g} nats a token, got up to "
                f"{float(decay.detach().amax()):g}"
            )
        _require(
            ((decay >= 0) & (chunk_size * decay <= STEEPEST)).all(),
            f"weights.decay must lie between {limits}: a weight that fades faster belongs to the window, or take "
            "smaller chunks",
        )


def _require(condition: Tensor, message: str) -> None:
    """Raise ``ValueError`` where it is False; a compiled graph checks it where it runs."""
    if is_compiling():
        assert_async(condition, message)
    elif not condition:
        raise ValueError(message)

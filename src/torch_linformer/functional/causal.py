"""Causal Linformer attention: every slot is a running mean, so that no query sees what comes after it."""

import math
from contextlib import nullcontext
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.projection import check_padding_mask, zero_padding
from torch_linformer.functional.running_means import Clock, RunningMeans, SlotWeights
from torch_linformer.functional.window import join_weights, local_blocks, local_mask

CHUNK = 64  # positions in a chunk
SEGMENT = 4096  # positions whose chunks are worked on side by side
STEEPEST = 64.0  # nats that a weight may fade in one chunk: float32 has room for them and for the weights themselves


@dataclass
class CausalState:
    """What causal attention keeps of the past: tensors whose sizes do not depend on how long that was.

    Attributes:
        tokens: real tokens so far, ``(B,)``.
        keys: sums of weighted keys, ``(B, H, K, D)``.
        mass_k: sums of their weights, ``(B, H, K)``.
        values: sums of weighted values, ``(B, H, K, Dv)``.
        mass_v: sums of their weights, ``(B, H, K)``.
        recent_keys: keys of the last w − 1 real tokens, ``(B, H, w − 1, D)``; fewer stand at the end.
        recent_values: their values, ``(B, H, w − 1, Dv)``.
    """

    tokens: Tensor
    keys: Tensor
    mass_k: Tensor
    values: Tensor
    mass_v: Tensor
    recent_keys: Tensor
    recent_values: Tensor

    @classmethod
    def empty(cls, key: Tensor, value: Tensor, num_slots: int, window: int | None) -> Self:
        """The state before the first token of sequences like ``key`` and ``value``."""
        (batch, heads, _, width), recent = key.shape, (window or 1) - 1
        sums = torch.promote_types(key.dtype, torch.float32)
        return cls(
            tokens=torch.zeros(batch, dtype=torch.long, device=key.device),
            keys=key.new_zeros(batch, heads, num_slots, width, dtype=sums),
            mass_k=key.new_zeros(batch, heads, num_slots, dtype=sums),
            values=value.new_zeros(batch, heads, num_slots, value.shape[-1], dtype=sums),
            mass_v=key.new_zeros(batch, heads, num_slots, dtype=sums),
            recent_keys=key.new_zeros(batch, heads, recent, width),
            recent_values=value.new_zeros(batch, heads, recent, value.shape[-1]),
        )

    def unless(self, padding: Tensor, before: Self) -> Self:
        """This state in the rows that had a token; ``before`` in those that had padding, ``(B,)``."""
        pairs = ((getattr(self, field.name), getattr(before, field.name)) for field in fields(self))
        return type(self)(*(torch.where(padding.view(-1, *[1] * (now.dim() - 1)), then, now) for now, then in pairs))

    def rows(self, index: Tensor) -> Self:
        """The rows of the batch that ``index`` names, in its order."""
        return type(self)(*(getattr(self, field.name).index_select(0, index) for field in fields(self)))


def causal_linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: SlotWeights,
    proj_v: SlotWeights | None = None,
    *,
    score_bias: Tensor | None = None,
    window: int | None = None,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    chunk_size: int = CHUNK,
) -> Tensor:
    r"""Attention of every position over K slots of what came before it, and over the last ``window`` tokens.

    .. math::
        \bar K_{tj} = \frac{\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)} k_i}
                           {\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)}}, \quad
        \mathrm{out}_t = \mathrm{softmax}([q_t \bar K_t^\top / \sqrt D + b,\; q_t K_{t-w+1:t}^\top / \sqrt D])\,
                         [\bar V_t;\; V_{t-w+1:t}]

    where :math:`p_i` counts real tokens, and :math:`\bar V` is made in the same way with the weights of ``proj_v``.
    Time is O(N·(c·(D + K) + K·D + w·D)) for chunks of c, and the output at t does not depend on anything after t.

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, N, D)``.
        value: ``(B, H, N, Dv)``.
        proj_k: the weights with which positions enter the slots of keys.
        proj_v: those of values; None for the same.
        score_bias: b on the scores of slots, ``(K,)`` or ``(H, K)``; 0 by default.
        window: also attend to the last w tokens, the query's own among them.
        key_padding_mask: bool ``(B, N)``, True at padding, which may stand at either end; a window counts columns,
            so padding between real tokens would shorten it.
        dropout_p: probability of dropping an attention weight; it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        chunk_size: positions worked on at once; changes rounding alone.

    Returns:
        ``(B, H, N, Dv)``; zeros before the first real token.

    Raises:
        ValueError: if shapes do not fit, or a weight would fade more than 64 nats in a chunk.
    """
    _check_inputs(query, key, value, window)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    for name, proj in (("proj_k", proj_k), ("proj_v", proj_v or proj_k)):
        _check_weights(name, proj, key, chunk_size)
    output, _, _ = attend_causally(
        query,
        key,
        value,
        proj_k,
        proj_v,
        score_bias=score_bias,
        window=window,
        padding_mask=key_padding_mask,
        dropout_p=dropout_p,
        scale=scale,
        chunk_size=chunk_size,
    )
    return output


def attend_causally(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: SlotWeights | None,
    proj_v: SlotWeights | None = None,
    *,
    score_bias: Tensor | None = None,
    window: int | None = None,
    padding_mask: Tensor | None = None,
    state: CausalState | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None, CausalState]:
    """:func:`causal_linformer_attention`, unchecked, of positions that follow those in ``state``.

    ``proj_k`` may be None where there is a window: no slots then. Returns the output ``(B, H, N, Dv)``, with
    ``need_weights`` the softmax ``(B, H, N, K + w)`` before dropout, slots first and the query's own position last,
    and the state behind the last position.
    """
    if state is None:
        state = CausalState.empty(key, value, 0 if proj_k is None else proj_k.decay.shape[-1], window)
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    key, value = (zero_padding(x, padding_mask) for x in (key, value))
    dtype = torch.promote_types(query.dtype, torch.bfloat16)  # the sums exceed the range of half precision
    chunk_size = max(1, min(chunk_size, query.shape[2]))
    outputs, all_weights = [], []
    device = query.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        if query.shape[2] == 1:
            q, k, v = (x.to(dtype) for x in (query, key, value))
            proj = None if proj_k is None else (proj_k, proj_v or proj_k)
            output, softmax, state = _attend_next(q, k, v, proj, score_bias, window, padding_mask, state, dropout_p)
            return output.to(value.dtype), softmax if need_weights else None, state
        for start in range(0, max(query.shape[2], 1), SEGMENT):
            part = slice(start, start + SEGMENT)
            queries, keys, values = (x[:, :, part].to(dtype) for x in (query, key, value))
            padding = None if padding_mask is None else padding_mask[:, part]
            segment = _Segment(queries, keys, values, padding, state, window, chunk_size)
            slots = None if proj_k is None else (proj_k.part(part), (proj_v or proj_k).part(part))
            output, weights, state = segment.attend(slots, score_bias, dropout_p, need_weights)
            outputs.append(output.to(value.dtype))
            if weights is not None:
                all_weights.append(weights)
    return torch.cat(outputs, dim=2), torch.cat(all_weights, dim=2) if all_weights else None, state


def _attend_next(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj: tuple[SlotWeights, SlotWeights] | None,
    score_bias: Tensor | None,
    window: int | None,
    padding: Tensor | None,
    state: CausalState,
    dropout_p: float,
) -> tuple[Tensor, Tensor, CausalState]:
    """One token in each row, ``(B, H, 1, D)``: what decoding does, without chunks."""
    scores, outputs = [], []
    keys, mass_k, values, mass_v = state.keys, state.mass_k, state.values, state.mass_v
    if proj is not None:
        keys, mass_k = _add_token(keys, mass_k, proj[0], key)
        values, mass_v = _add_token(values, mass_v, proj[1], value)
        of_slots = ((query @ keys.mT.to(query.dtype)) / mass_k.unsqueeze(2)).to(query.dtype)
        scores.append(of_slots if score_bias is None else of_slots + score_bias.unsqueeze(-2).to(of_slots.dtype))
    recent_keys = torch.cat([state.recent_keys.to(key.dtype), key], dim=2)
    recent_values = torch.cat([state.recent_values.to(value.dtype), value], dim=2)
    if window is not None:
        missing = torch.arange(window - 1, -1, -1, device=key.device) > state.tokens.unsqueeze(-1)
        scores.append((query @ recent_keys.mT).masked_fill(missing[:, None, None], float("-inf")))
    softmax = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
    kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
    of_slots, of_window = kept.tensor_split([mass_k.shape[-1]], dim=-1)
    if proj is not None:
        outputs.append((of_slots / mass_v.unsqueeze(2)).to(value.dtype) @ values.to(value.dtype))
    if window is not None:
        outputs.append(of_window @ recent_values)
    after = CausalState(state.tokens + 1, keys, mass_k, values, mass_v, recent_keys[:, :, 1:], recent_values[:, :, 1:])
    if padding is not None:
        after = after.unless(padding[:, 0], state)
    return sum(outputs[1:], start=outputs[0]), softmax, after


def _add_token(sums: Tensor, mass: Tensor, proj: SlotWeights, token: Tensor) -> tuple[Tensor, Tensor]:
    """Sums and masses one token ``(B, H, 1, X)`` on."""
    fade = torch.exp(-proj.decay.to(sums.dtype))
    weight = torch.ones_like(fade) if proj.weights is None else proj.weights[..., 0, :].to(sums.dtype)
    return sums * fade.unsqueeze(-1) + weight.unsqueeze(-1) * token, mass * fade + weight


class _Segment:
    """Positions whose chunks are worked on side by side.

    Args:
        query: scaled, ``(B, H, N, D)``.
        key: zeros at padding, as ``value``.
        value: likewise.
        padding: bool ``(B, N)`` or None.
        state: what came before.
        window: w or None.
        chunk: positions in a chunk.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        state: CausalState,
        window: int | None,
        chunk: int,
    ) -> None:
        self.state, self.window, self.chunk = state, window, chunk
        self.length, self.before = query.shape[2], (window or 1) - 1
        ones = torch.ones(1, self.length, dtype=torch.bool, device=query.device)
        self.real = ones if padding is None else ~padding
        self.has_padding = padding is not None
        # With the tokens that the first windows reach back to.
        self.keys = torch.cat([state.recent_keys.to(key.dtype), key], dim=2)
        self.values = torch.cat([state.recent_values.to(value.dtype), value], dim=2)
        self.queries = self._chunks(query, 2)

    def attend(
        self,
        proj: tuple[SlotWeights, SlotWeights] | None,
        score_bias: Tensor | None,
        dropout_p: float,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None, CausalState]:
        """Output, softmax (slots first, then the window) if it is wanted, and the state behind the segment."""
        keys, values = (local_blocks(self._fill(x, 2), self.chunk, self.before) for x in (self.keys, self.values))
        products = self.queries @ keys.mT
        means = None if proj is None else self._means(proj, keys, values)
        scores = []
        if means is not None:
            of_slots = means[0].products(self.queries, products[..., self.before :])
            if score_bias is not None:
                bias = score_bias if score_bias.dim() == 1 else score_bias[:, None, None]
                of_slots = of_slots + bias.to(of_slots.dtype)
            scores.append(of_slots)
        if self.window is not None:
            scores.append(products.masked_fill(~self._visible(), float("-inf")))
        softmax = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
        num_slots = self.state.mass_k.shape[-1]
        outputs = []
        if means is not None:
            outputs.append(means[1].mix(kept[..., :num_slots]))
        if self.window is not None:
            outputs.append(kept[..., num_slots:] @ values)
        output = sum(outputs[1:], start=outputs[0])
        weights = None
        if need_weights:
            weights = softmax.flatten(2, 3) if self.window is None else join_weights(softmax, num_slots, self.before, 0)
            weights = weights[:, :, : self.length]
        return output.flatten(2, 3)[:, :, : self.length], weights, self._state_behind(means)

    def _means(
        self, proj: tuple[SlotWeights, SlotWeights], keys: Tensor, values: Tensor
    ) -> tuple[RunningMeans, RunningMeans]:
        clock = Clock(self._chunks(self.real, 1), self.state.keys.dtype)
        sums = ((self.state.keys, self.state.mass_k), (self.state.values, self.state.mass_v))
        of_keys, of_values = (
            RunningMeans(clock, self._chunks_of_weights(each), blocks[..., self.before :, :], *before)
            for each, blocks, before in zip(proj, (keys, values), sums, strict=True)
        )
        return of_keys, of_values

    def _visible(self) -> Tensor:
        """Bool ``(B or 1, 1, n, c, span)``: the real tokens of each window, and at padding the position itself."""
        recent = torch.arange(self.before, 0, -1, device=self.real.device) <= self.state.tokens.unsqueeze(-1)
        real = torch.cat([recent, self.real.expand(recent.shape[0], -1)], dim=1)
        real = local_blocks(self._fill(real, 1).unsqueeze(-1), self.chunk, self.before).squeeze(-1)
        near = local_mask(self.chunk, self.before, 0, self.real.device)
        itself = torch.ones_like(near).tril(self.before) & torch.ones_like(near).triu(self.before)
        return ((real.unsqueeze(-2) & near) | itself).unsqueeze(1)

    def _state_behind(self, means: tuple[RunningMeans, RunningMeans] | None) -> CausalState:
        tokens = self.state.tokens + self.real.sum(dim=-1)
        recent_keys, recent_values = self._recent(self.keys), self._recent(self.values)
        # Copies: a view would keep the memory of the whole segment.
        recent_keys, recent_values = recent_keys.clone(), recent_values.clone()
        if means is None:
            return replace(self.state, tokens=tokens, recent_keys=recent_keys, recent_values=recent_values)
        (keys, mass_k), (values, mass_v) = ((each.sums.clone(), each.mass_behind.clone()) for each in means)
        return CausalState(tokens, keys, mass_k, values, mass_v, recent_keys, recent_values)

    def _recent(self, sequence: Tensor) -> Tensor:
        """The last w − 1 real tokens of recent and own ones, ``(B, H, w − 1, D)``."""
        if not self.has_padding:
            return sequence[:, :, sequence.shape[2] - self.before :]
        # Recent tokens that there were not come first and stay first, whatever they are called here.
        own = self.real.flip(-1).cumsum(dim=-1).flip(-1)
        count = F.pad(own, (self.before, 0))
        recent = torch.arange(self.before, 0, -1, device=own.device)
        count[:, : self.before] = own[:, :1] + recent if self.length else recent
        real = F.pad(self.real, (self.before, 0), value=True)
        target = torch.where(real & (count <= self.before), self.before - count, self.before)
        last = sequence.new_zeros(*sequence.shape[:2], self.before + 1, sequence.shape[-1])
        last = last.scatter(2, target[:, None, :, None].expand_as(sequence), sequence)
        return last[:, :, : self.before]

    def _fill(self, x: Tensor, dim: int) -> Tensor:
        """``x`` up to whole chunks along ``dim``, one at least, with zeros (False)."""
        behind = [0, 0] * (x.dim() - dim - 1)
        return F.pad(x, (*behind, 0, -self.length % self.chunk if self.length else self.chunk))

    def _chunks(self, x: Tensor, dim: int) -> Tensor:
        return self._fill(x, dim).reshape(*x.shape[:dim], -1, self.chunk, *x.shape[dim + 1 :])

    def _chunks_of_weights(self, proj: SlotWeights) -> SlotWeights:
        if proj.weights is None:
            return proj
        return SlotWeights(proj.decay, self._chunks(proj.weights, proj.weights.dim() - 2))


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, window: int | None) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if query.dim() != 4 or shapes[0] != shapes[1] or shapes[0][:3] != shapes[2][:3]:
        raise ValueError(
            f"query, key and value must be (B, H, N, D), (B, H, N, D) and (B, H, N, Dv), got {shapes[0]}, {shapes[1]} "
            f"and {shapes[2]}"
        )
    check_window(window)


def check_window(window: int | None) -> None:
    """Raise ``ValueError`` for a window of no tokens."""
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 token, or None for no window, got {window}")


def _check_weights(name: str, proj: SlotWeights, key: Tensor, chunk_size: int) -> None:
    (heads, length), decay = key.shape[1:3], proj.decay
    if decay.dim() not in (1, 2) or (decay.dim() == 2 and decay.shape[0] not in (1, heads)):
        raise ValueError(f"{name}.decay must be (K,) or (H, K) for {heads} heads, got {tuple(decay.shape)}")
    if proj.weights is not None:
        shape = tuple(proj.weights.shape)
        wanted = (*key.shape[:2], length, decay.shape[-1])[-len(shape) :]
        fits = 2 <= len(shape) <= 4 and shape[-2:] == wanted[-2:]
        if not fits or any(given not in (1, size) for given, size in zip(shape[:-2], wanted[:-2], strict=True)):
            raise ValueError(
                f"{name}.weights must be (N, K), (H, N, K) or (B, H, N, K) with N = {length} and "
                f"K = {decay.shape[-1]}, got {shape}"
            )
    steepest = float(decay.detach().amax()) if decay.numel() else 0.0
    if chunk_size * steepest > STEEPEST or (decay < 0).any():
        raise ValueError(
            f"{name}.decay must lie between 0 and {STEEPEST:g} / chunk_size = {STEEPEST / chunk_size:g} nats a token, "
            f"got up to {steepest:g}: a weight that fades faster belongs to the window, or take smaller chunks"
        )

"""Causal attention of many positions: segments, one after the other, of chunks that are computed side by side."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.attention.plain_softmax import additive_mask
from torch_linformer.functional.attention.spans import (
    blocks_of,
    first_positions,
    join_weights,
    local_blocks,
    local_mask,
)
from torch_linformer.functional.causal.running_means import CausalSlots, Clock, RunningMeans, WeightsOfChunks
from torch_linformer.functional.causal.state import CausalInput, CausalState
from torch_linformer.functional.kernels.device_sizes import sizes_for
from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.torch_private import is_transformed
from torch_linformer.functional.padding import zero_padding


class CausalRun(NamedTuple):
    """How all segments of a sequence are computed.

    Attributes:
        chunk_size: positions in a chunk.
        dtype: of scores and sums.
        dropout_p: probability of dropping an attention weight.
        need_weights: also return the softmax.
    """

    chunk_size: int
    dtype: torch.dtype
    dropout_p: float
    need_weights: bool


def attend_in_segments(
    inputs: CausalInput, state: CausalState, run: CausalRun
) -> tuple[Tensor, Tensor | None, CausalState]:
    """Attention of positions that follow those of ``state``, a segment of whole chunks at a time.

    A rest of a chunk is a segment of its own. While compiling, sizes are symbolic: one segment, filled up with padding,
    serves every length.
    """
    length = inputs.query.shape[2]
    if records_a_graph():
        filled = inputs.pad(blocks_of(length, run.chunk_size) * run.chunk_size - length)
        output, weights, state = attend_segment(filled, state, run.chunk_size, run)
        return first_positions(output, length), None if weights is None else first_positions(weights, length), state
    sizes = _segment_sizes(length, run.chunk_size, sizes_for(inputs.query.device).segment)
    attend: Callable[..., Any] = attend_segment
    # A segment keeps only its inputs for the backward pass; the transforms of torch.func allow no hooks for that.
    if torch.is_grad_enabled() and not is_transformed():
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=run.dropout_p > 0)
    outputs, all_weights = [], []
    for segment in inputs.split(sizes):
        output, weights, state = attend(segment, state, min(run.chunk_size, segment.query.shape[2]), run)
        outputs.append(output)
        all_weights.append(weights)
    return torch.cat(outputs, dim=2), torch.cat(all_weights, dim=2) if run.need_weights else None, state


def _segment_sizes(length: int, chunk: int, longest: int) -> list[int]:
    """Positions of segments of whole chunks, at most ``longest`` or one chunk, and of the rest."""
    whole = length - length % chunk
    size = max(chunk, longest - longest % chunk)
    sizes = [size] * (whole // size) + [whole % size, length - whole]
    return [size for size in sizes if size > 0]


def attend_segment(
    inputs: CausalInput, state: CausalState, chunk: int, run: CausalRun
) -> tuple[Tensor, Tensor | None, CausalState]:
    """A whole number of chunks, of ``chunk`` positions each, that follow those of ``state``."""
    segment = Segment(inputs.to(run.dtype), state, chunk)
    output, weights, state = segment.attend(run.dropout_p, run.need_weights)
    return zero_padding(output.to(inputs.value.dtype), inputs.padding), weights, state


class Segment:
    """The chunks of :func:`attend_segment`, computed side by side."""

    def __init__(self, inputs: CausalInput, state: CausalState, chunk: int) -> None:
        self.inputs, self.state, self.window, self.chunk = inputs, state, inputs.window, chunk
        self.slots = inputs.slots
        self.length, self.before = inputs.query.shape[2], (inputs.window or 1) - 1
        self.real = None if inputs.padding is None else ~inputs.padding
        # Together with the tokens that the first windows reach back to.
        self.keys = torch.cat([state.recent_keys.to(inputs.key.dtype), inputs.key], dim=2)
        self.values = torch.cat([state.recent_values.to(inputs.value.dtype), inputs.value], dim=2)
        self.queries = self._chunks(inputs.query, 2).contiguous()

    def attend(self, dropout_p: float, need_weights: bool) -> tuple[Tensor, Tensor | None, CausalState]:
        """Output, with ``need_weights`` the softmax (slots, exact tokens, window), and the state after the segment."""
        keys_BHnsD, values_BHnsX = (local_blocks(x, self.chunk, self.before) for x in (self.keys, self.values))
        products_BHncs = self.queries @ keys_BHnsD.transpose(-2, -1)
        means = None if self.slots is None else self._means(self.slots, keys_BHnsD, values_BHnsX)
        softmax = torch.softmax(torch.cat(self._scores(means, products_BHncs), dim=-1), dim=-1)
        kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
        num_slots, num_first = self.state.mass_k.shape[-1], self.state.first_keys.shape[2]
        sizes = [num_slots, num_first, kept.shape[-1] - num_slots - num_first]
        to_slots, to_first, to_window = torch.split(kept, sizes, dim=-1)
        outputs = []
        if means is not None:
            outputs.append(means.values.mix(to_slots))
        if num_first > 0:
            outputs.append(self._chunks(to_first.flatten(2, 3) @ self.state.first_values.to(self.values.dtype), 2))
        if self.window is not None:
            outputs.append(to_window @ values_BHnsX)
        output = sum(outputs[1:], start=outputs[0])
        weights = None
        if need_weights:
            weights = softmax.flatten(2, 3)
            if self.window is not None:
                weights = join_weights(softmax, num_slots + num_first, self.before, 0)
        return output.flatten(2, 3), weights, self._state_after(means)

    def _scores(self, means: "_Means | None", products_BHncs: Tensor) -> list[Tensor]:
        """Scores ``(B, H, n, c, ·)`` of slots, exact tokens and window, those of them that there are."""
        scores = []
        if means is not None:
            scores_BHncK = means.keys.products(self.queries, products_BHncs[..., self.before :])
            bias = None if self.slots is None else self.slots.bias
            if bias is not None:
                bias = bias if bias.dim() == 1 else bias[:, None, None]
                scores_BHncK = scores_BHncK + bias.to(scores_BHncK.dtype)
            scores.append(scores_BHncK)
        if self.state.first_keys.shape[2] > 0:
            # All chunks share these keys in one product: broadcast over the chunks it would copy them for each.
            scores_BHNT = self.inputs.query @ self.state.first_keys.to(self.keys.dtype).transpose(-2, -1)
            scores_BHNT = scores_BHNT + additive_mask(self._sees_first(), scores_BHNT.dtype)
            scores.append(self._chunks(scores_BHNT, 2))
        if self.window is not None:
            scores.append(products_BHncs + additive_mask(self._visible(), products_BHncs.dtype))
        return scores

    def _means(self, slots: CausalSlots, keys: Tensor, values: Tensor) -> "_Means":
        real = None if self.real is None else self._chunks(self.real, 1)
        clock = Clock(real, (keys.shape[2], self.chunk), keys.device, self.state.keys.dtype)
        slots = slots.map_weights(lambda weights: self._chunks(weights, weights.dim() - 2))
        key_weights = WeightsOfChunks(clock, slots.weights_k, self.state.mass_k)
        value_weights = key_weights
        if slots.weights_v is not None:
            value_weights = WeightsOfChunks(clock, slots.weights_v, self.state.mass_v)
        return _Means(
            RunningMeans(key_weights, keys[..., self.before :, :], self.state.keys),
            RunningMeans(value_weights, values[..., self.before :, :], self.state.values),
        )

    def _sees_first(self) -> Tensor:
        """Bool ``(B, 1, N, T)``: the first tokens that each position attends to."""
        if self.real is None:
            before = torch.arange(self.length, device=self.keys.device)
        else:
            before = self.real.cumsum(dim=-1) - 1
        return self.state.sees_first(self.state.tokens.unsqueeze(-1) + before, self.window)

    def _visible(self) -> Tensor:
        """Bool ``(B, 1, n, c, s)``: the real tokens of each window, and at padding the position itself."""
        tokens, device = self.state.tokens.unsqueeze(-1), self.keys.device
        recent = torch.arange(self.before, 0, -1, device=device) <= tokens
        real = torch.ones_like(tokens, dtype=torch.bool).expand(-1, self.length) if self.real is None else self.real
        real = torch.cat([recent, real], dim=1)
        real = local_blocks(real.unsqueeze(-1), self.chunk, self.before).squeeze(-1)
        window = local_mask(self.chunk, self.before, 0, device)
        itself = torch.ones_like(window).tril(self.before) & torch.ones_like(window).triu(self.before)
        return ((real.unsqueeze(-2) & window) | itself).unsqueeze(1)

    def _state_after(self, means: "_Means | None") -> CausalState:
        tokens = self.state.tokens + (self.length if self.real is None else self.real.sum(dim=-1))
        after = {"recent_keys": self._recent(self.keys), "recent_values": self._recent(self.values)}
        if means is not None:
            after |= {"keys": means.keys.sums, "mass_k": means.keys.weights.mass_after}
            after |= {"values": means.values.sums, "mass_v": means.values.weights.mass_after}
        # Copies: a view would keep the memory of the whole segment.
        return replace(self.state, tokens=tokens, **{name: x.clone() for name, x in after.items()})

    def _recent(self, sequence: Tensor) -> Tensor:
        """The last w − 1 real tokens, recent ones included, ``(B, H, w − 1, X)``."""
        if self.real is None:
            return sequence[:, :, sequence.shape[2] - self.before :]
        # Where fewer tokens came before, zeros stand first in their place; they count as real here.
        tokens_from = self.real.flip(-1).cumsum(dim=-1).flip(-1)
        count = F.pad(tokens_from, (self.before, 0))
        count[:, : self.before] = tokens_from[:, :1] + torch.arange(self.before, 0, -1, device=tokens_from.device)
        real = F.pad(self.real, (self.before, 0), value=True)
        target = torch.where(real & (count <= self.before), self.before - count, self.before)
        last = sequence.new_zeros(*sequence.shape[:2], self.before + 1, sequence.shape[-1])
        last = last.scatter(2, target[:, None, :, None].expand_as(sequence), sequence)
        return last[:, :, : self.before]

    def _chunks(self, x: Tensor, dim: int) -> Tensor:
        return x.reshape(*x.shape[:dim], x.shape[dim] // self.chunk, self.chunk, *x.shape[dim + 1 :])


class _Means(NamedTuple):
    keys: RunningMeans
    values: RunningMeans

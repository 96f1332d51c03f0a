"""Slots chosen by the input: each pools the positions by a softmax of scores, begun at the means of segments."""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_linformer.functional.torch_state import is_transformed

STEEPNESS = 2.0  # of the prior at first: −2 at a distance of one segment
HIDDEN = -1e30  # the score of padding, below any other, whose weight is then 0; −∞ less −∞ would be NaN
LEAST = -50.0  # nats below the largest, where a weight is nothing: numbers near the smallest ones are ten times as slow
MOST = 256  # that the weights of a block sum to, times a value within what float16 holds
TINY = 1e-30  # the sum of no weights
SCORES = 2**20  # at a time on a CPU, whose caches hold them: 2**18 and 2**22 take half as long again (docs/log.md)
GPU_SCORES = 2**27  # on other devices; not measured


class SegmentPrior(NamedTuple):
    r"""Where in its row each slot looks at first: :math:`p_{ij} = -2 e^{a_j} (t_i - c_j - d_j)^2`.

    :math:`t_i = (i + ½) K / n` is the place of the i-th of a row's n real tokens, counted in segments, and
    :math:`c_j = j + ½` the center of segment j.

    Attributes:
        shift: d, ``(K,)``, in segments.
        log_steepness: a, ``(K,)``.
    """

    shift: Tensor
    log_steepness: Tensor

    def distances(self, positions: slice, tokens: Tensor) -> Tensor:
        """:math:`t_i - c_j - d_j`, ``(B or 1, K, m)``, for rows of ``tokens`` ``(B or 1,)`` real tokens."""
        num_slots, device = self.shift.shape[0], tokens.device
        dtype = torch.promote_types(self.shift.dtype, torch.float32)
        index = torch.arange(positions.start, positions.stop, device=device, dtype=dtype)
        places_Bm = (index + 0.5) * (num_slots / tokens.clamp(min=1).to(dtype).unsqueeze(-1))
        centers_K = torch.arange(num_slots, device=device, dtype=dtype) + 0.5 + self.shift.to(dtype)
        return places_Bm.unsqueeze(1) - centers_K.unsqueeze(-1)

    @property
    def steepness(self) -> Tensor:
        """``(K, 1)``."""
        exponents = self.log_steepness.to(torch.promote_types(self.log_steepness.dtype, torch.float32))
        return STEEPNESS * exponents.exp().unsqueeze(-1)

    def scores(self, distances: Tensor) -> Tensor:
        """p, ``(B or 1, K, m)``."""
        return -self.steepness * distances.square()

    def gradients(self, of_scores: Tensor, distances: Tensor) -> tuple[Tensor, Tensor]:
        """Those of d and a, from those of p ``(B, K, m)``."""
        of_shift = (of_scores * distances).sum(dim=(0, 2)) * 2 * self.steepness.squeeze(-1)
        return of_shift, (of_scores * self.scores(distances)).sum(dim=(0, 2))


class Pooled(NamedTuple):
    """Slots ``(B, H, K, X)`` of each sequence, at least float32, and the log of their weights' sum, ``(B, H, K, 1)``.

    By these sums the slots of parts can be joined: a softmax over all positions is a mean of those over the parts.
    """

    slots: tuple[Tensor, ...]
    log_mass: Tensor

    def joined(self, other: "Pooled") -> "Pooled":
        """Slots of the positions of both."""
        log_mass = torch.logaddexp(self.log_mass, other.log_mass)
        own, others = (self.log_mass - log_mass).exp(), (other.log_mass - log_mass).exp()
        return Pooled(tuple(x * own + y * others for x, y in zip(self.slots, other.slots, strict=True)), log_mass)


def pool(
    queries: Tensor,
    prior: SegmentPrior,
    scored: Tensor,
    pooled: Sequence[Tensor],
    tokens: Tensor,
    *,
    first: int = 0,
    padding_mask: Tensor | None = None,
) -> Pooled:
    r"""K slots :math:`P^\top X` of M positions, :math:`P_{ij} = \mathrm{softmax}_i(w_j \cdot k_i + p_{ij})`, unchecked.

    It is one attention of K learned queries to the positions. Scores are computed in blocks, and again in the backward
    pass, for which nothing else is kept than inputs and result. There is no gradient of the sums of weights, and, as
    for SDPA, none of the gradient; compiled graphs and the transforms of ``torch.func`` compute all scores at once.

    Args:
        queries: w, ``(H, K, D)``, or ``(K, D)`` for one head.
        prior: p.
        scored: k, ``(B, H, M, D)``.
        pooled: sequences ``(B, H, M, X)``.
        tokens: real tokens of each whole row, ``(B or 1,)``; they stand before the padding.
        first: the place of position 0 in its row, of which these M positions may be a part.
        padding_mask: bool ``(B, M)``, True at padding, which gets no weight.

    Source: arXiv 2107.02192 (dynamic projection, there without a prior).
    """
    device = scored.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    if has_autocast and torch.is_autocast_enabled(device) and scored.dtype != torch.float64:
        # The backward pass, which computes the scores again, is not under autocast.
        dtype = torch.get_autocast_dtype(device)
        queries, scored, pooled = queries.to(dtype), scored.to(dtype), [x.to(dtype) for x in pooled]
    queries = queries if queries.dim() == 3 else queries.unsqueeze(0)
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        place = _Place(tokens, first, padding_mask)
        if torch.compiler.is_compiling() or is_transformed():
            scores = _scores(queries, prior, scored, place)
            weights = _softmax(scores, place)
            return Pooled(tuple(_mix(weights, x) for x in pooled), torch.logsumexp(scores, dim=-1, keepdim=True))
        *slots, log_mass = _Pool.apply(queries, *prior, scored, place, *pooled)  # type: ignore[no-untyped-call]
    return Pooled(tuple(slots), log_mass)


def pooling_weights(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, tokens: Tensor, padding_mask: Tensor | None
) -> Tensor:
    """P of :func:`pool` itself, ``(B, H, K, M)``, to look at."""
    place = _Place(tokens, 0, padding_mask)
    return _softmax(_scores(queries, prior, scored, place), place)


class _Place(NamedTuple):
    """Where positions stand: see :func:`pool`."""

    tokens: Tensor
    first: int
    padding: Tensor | None

    def part(self, rows: slice, positions: slice) -> "_Place":
        tokens = self.tokens if len(self.tokens) == 1 else self.tokens[rows]
        padding = None if self.padding is None else self.padding[rows, positions]
        return _Place(tokens, self.first + positions.start, padding)

    def hide_(self, scores: Tensor, value: float) -> Tensor:
        """``scores`` ``(B, H, K, m)`` with ``value`` at padding, in place."""
        return scores if self.padding is None else scores.masked_fill_(self.padding[:, None, None, :], value)

    def distances(self, prior: SegmentPrior, length: int) -> Tensor:
        return prior.distances(slice(self.first, self.first + length), self.tokens)


def _scores(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: _Place) -> Tensor:
    """The scores ``(B, H, K, M)``, at least float32."""
    products = queries @ scored.mT
    scores = products.to(torch.promote_types(products.dtype, torch.float32))
    scores = scores + prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1)
    return scores if place.padding is None else scores.masked_fill(place.padding[:, None, None, :], HIDDEN)


def _softmax(scores: Tensor, place: _Place) -> Tensor:
    """P ``(B, H, K, M)``; zeros in rows of nothing but padding."""
    weights = torch.softmax(scores, dim=-1)
    return weights if place.padding is None else weights.masked_fill(place.padding[:, None, None, :], 0.0)


def _mix(weights: Tensor, sequence: Tensor) -> Tensor:
    return (weights.to(sequence.dtype) @ sequence).to(weights.dtype)


class _Block(NamedTuple):
    rows: slice
    positions: slice

    def of(self, sequence: Tensor) -> Tensor:
        return sequence[self.rows, :, self.positions]


def _blocks(queries: Tensor, scored: Tensor) -> Iterator[_Block]:
    """Rows at once whose scores the caches hold, or else positions of one row."""
    batch, _, length, _ = scored.shape
    at_once = SCORES if scored.device.type == "cpu" else GPU_SCORES
    size = max(1, at_once // (scored.shape[1] * queries.shape[1]))
    rows = max(1, size // max(length, 1))
    for row in range(0, batch, rows):
        for position in range(0, length, size):
            yield _Block(slice(row, row + rows), slice(position, min(position + size, length)))


class _Pool(torch.autograd.Function):
    """:func:`pool` in blocks of scores that are not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        shift: Tensor,
        log_steepness: Tensor,
        scored: Tensor,
        place: _Place,
        *pooled: Tensor,
    ) -> tuple[Tensor, ...]:
        prior, parts = SegmentPrior(shift, log_steepness), dict[int, Pooled]()
        for block in _blocks(queries, scored):
            there = place.part(*block)
            scores = _scores_in_place(queries, prior, block.of(scored), there)
            peaks = scores.amax(dim=-1, keepdim=True).add_(math.log(max(1.0, scores.shape[-1] / MOST)))
            weights = there.hide_(scores.sub_(peaks).clamp_(min=LEAST).exp_(), 0.0)
            mass = weights.sum(dim=-1, keepdim=True).clamp_(min=TINY)
            part = Pooled(tuple(_mix(weights, block.of(x)).div_(mass) for x in pooled), mass.log_().add_(peaks))
            row = block.rows.start
            parts[row] = parts[row].joined(part) if row in parts else part
        if not parts:
            whole = _no_slots(queries, scored, pooled)
        elif len(parts) == 1:
            whole = next(iter(parts.values()))
        else:
            of_rows = [*zip(*(part.slots for part in parts.values()), strict=True)]
            log_mass = torch.cat([part.log_mass for part in parts.values()])
            whole = Pooled(tuple(torch.cat(each) for each in of_rows), log_mass)
        ctx.place = place
        ctx.save_for_backward(queries, shift, log_steepness, scored, *pooled, *whole.slots, whole.log_mass)
        ctx.mark_non_differentiable(whole.log_mass)
        return (*whole.slots, whole.log_mass)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, shift, log_steepness, scored, *others, log_mass = ctx.saved_tensors
        prior, number, place = SegmentPrior(shift, log_steepness), len(others) // 2, ctx.place
        pooled, slots = others[:number], others[number:]
        # The gradient of a softmax is P ⊙ (∂P − Σ P ∂P), and that sum is the result times its gradient.
        mean = sum((x * y).sum(dim=-1, keepdim=True) for x, y in zip(slots, of_outputs[:-1], strict=True))
        of_slots = [x.to(y.dtype) for x, y in zip(of_outputs[:-1], pooled, strict=True)]
        sums = {"dtype": log_mass.dtype, "device": log_mass.device}
        of_queries = torch.zeros(queries.shape, **sums)
        of_shift, of_steepness = torch.zeros(shift.shape, **sums), torch.zeros(shift.shape, **sums)
        of_scored, of_pooled = torch.empty_like(scored), [torch.empty_like(x) for x in pooled]
        for block in _blocks(queries, scored):
            keys, there = block.of(scored), place.part(*block)
            scores = _scores_in_place(queries, prior, keys, there)
            weights = there.hide_(scores.sub_(log_mass[block.rows]).clamp_(min=LEAST).exp_(), 0.0)
            of_weights = -mean[block.rows]
            for sequence, of_sequence, of_slot in zip(pooled, of_pooled, of_slots, strict=True):
                of_slot = of_slot[block.rows]
                of_weights = (of_slot @ block.of(sequence).mT).to(weights.dtype).add_(of_weights)
                block.of(of_sequence).copy_(weights.mT.to(of_slot.dtype) @ of_slot)
            of_scores = of_weights.mul_(weights)
            shifts, steepnesses = prior.gradients(of_scores.sum(dim=1), there.distances(prior, keys.shape[2]))
            of_shift += shifts
            of_steepness += steepnesses
            of_scores = of_scores.to(keys.dtype)
            of_queries += (of_scores @ keys).sum(dim=0)
            block.of(of_scored).copy_(of_scores.mT @ queries)
        found = (of_queries, queries), (of_shift, shift), (of_steepness, log_steepness)
        return (*(gradient.to(x.dtype) for gradient, x in found), of_scored, None, *of_pooled)


def _scores_in_place(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: _Place) -> Tensor:
    """The scores ``(B, H, K, m)``, at least float32, outside of autograd.

    Fresh memory for each step would cost more than the step.
    """
    products = queries @ scored.mT
    scores = products.to(torch.promote_types(products.dtype, torch.float32))
    scores.add_(prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1))
    return place.hide_(scores, HIDDEN)


def _no_slots(queries: Tensor, scored: Tensor, pooled: Sequence[Tensor]) -> Pooled:
    """Slots of no positions: zeros, without weight."""
    shape, dtype = (*scored.shape[:2], queries.shape[1]), torch.promote_types(scored.dtype, torch.float32)
    slots = tuple(x.new_zeros(*shape, x.shape[-1], dtype=dtype) for x in pooled)
    return Pooled(slots, scored.new_full((*shape, 1), HIDDEN, dtype=dtype))

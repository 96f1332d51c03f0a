"""Slots chosen by the input, computed in blocks of scores that nobody keeps."""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_linformer.functional.kernels.torch_private import flash_attention
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots.reach import LOWEST_SCORE, Block, Reach, SegmentPrior, blocks_of_slots

HIDDEN = -1e30  # the score of padding, below any other, whose weight is then 0; −∞ less −∞ would be NaN
LARGEST_SUM = 256  # that the weights of a block sum to, times a value within what float16 holds
TINY = 1e-30  # the sum of no weights


class Pooled(NamedTuple):
    """Slots ``(B, H, K, X)`` of each sequence, at least float32, and the log of their weights' sum, ``(B, H, K, 1)``.

    By these sums the slots of parts can be joined: a softmax over all positions is a mean of those over the parts.
    """

    slots: tuple[Tensor, ...]
    log_mass: Tensor

    def part(self, rows: slice, slots: slice) -> "Pooled":
        """A view of some of them."""
        return Pooled(tuple(x[rows, :, slots] for x in self.slots), self.log_mass[rows, :, slots])

    def copy_(self, other: "Pooled") -> None:
        """Take the numbers of another one."""
        for target, source in zip((*self.slots, self.log_mass), (*other.slots, other.log_mass), strict=True):
            target.copy_(source)

    def whole_rows(self, padding: Padding) -> "Pooled":
        """Slots of whole rows, where these are of a piece of them."""
        peak = padding.highest(self.log_mass.detach())
        share = (self.log_mass - peak).exp()
        joined = padding.total(torch.cat([*(x * share for x in self.slots), share], dim=-1))
        *sums, mass = torch.split(joined, [*(x.shape[-1] for x in self.slots), 1], dim=-1)
        return Pooled(tuple(x / mass for x in sums), peak + mass.log())

    def joined(self, other: "Pooled") -> "Pooled":
        """Slots of the positions of both."""
        log_mass = torch.logaddexp(self.log_mass, other.log_mass)
        share, rest = (self.log_mass - log_mass).exp(), (other.log_mass - log_mass).exp()
        return Pooled(tuple(x * share + y * rest for x, y in zip(self.slots, other.slots, strict=True)), log_mass)


class Place(NamedTuple):
    """Where positions stand: see :func:`pool`."""

    tokens: Tensor
    first: int
    padding: Tensor | None

    def part(self, rows: slice, positions: slice, is_real: bool) -> "Place":
        tokens = self.tokens if len(self.tokens) == 1 else self.tokens[rows]
        padding = None if self.padding is None or is_real else self.padding[rows, positions]
        return Place(tokens, self.first + positions.start, padding)

    def hide_(self, scores: Tensor, value: float) -> Tensor:
        """``scores`` ``(B, H, K, m)`` with ``value`` at padding, in place."""
        return scores if self.padding is None else scores.masked_fill_(self.padding[:, None, None, :], value)

    def distances(self, prior: SegmentPrior, length: int) -> Tensor:
        return prior.distances(slice(self.first, self.first + length), self.tokens)


def pooling_scores(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: Place) -> Tensor:
    """The scores ``(B, H, K, M)``, at least float32."""
    products = queries @ scored.transpose(-2, -1)
    scores = products.to(torch.promote_types(products.dtype, torch.float32))
    scores = scores + prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1)
    return scores if place.padding is None else scores.masked_fill(place.padding[:, None, None, :], HIDDEN)


def pooling_softmax(scores: Tensor, place: Place) -> Tensor:
    """P ``(B, H, K, M)``; zeros in rows of nothing but padding."""
    weights = torch.softmax(scores, dim=-1)
    return weights if place.padding is None else weights.masked_fill(place.padding[:, None, None, :], 0.0)


def mix(weights: Tensor, sequences: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rounded = {x.dtype: weights.to(x.dtype) for x in sequences}  # once for all of a kind
    return tuple((rounded[x.dtype] @ x).to(weights.dtype) for x in sequences)


class Pool(torch.autograd.Function):
    """:func:`pool` in blocks of scores that are not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        shift: Tensor,
        log_steepness: Tensor,
        scored: Tensor,
        place: Place,
        by_flash: bool,
        *pooled: Tensor,
    ) -> tuple[Tensor, ...]:
        prior = SegmentPrior(shift, log_steepness)
        slots = _no_slots(queries, scored, pooled)
        reach = Reach(queries, prior, scored, place.tokens, place.first)
        pool_block = _pool_by_flash if by_flash else _pool_in_place
        for block in blocks_of_slots(reach, queries, scored):
            block_place = place.part(block.rows, block.positions, reach.is_real(block.rows, block.positions))
            block_slots = pool_block(
                queries[:, block.slots],
                prior.part(block.slots),
                block.take(scored),
                [block.take(x) for x in pooled],
                block_place,
            )
            slots.part(block.rows, block.slots).copy_(block_slots)
        ctx.place, ctx.reach = place, reach
        ctx.save_for_backward(queries, shift, log_steepness, scored, *pooled)
        return (*slots.slots, slots.log_mass)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, shift, log_steepness, scored, *pooled = ctx.saved_tensors
        prior, place, reach = SegmentPrior(shift, log_steepness), ctx.place, ctx.reach
        grad_log_mass = grad_outputs[-1]
        grad_slots = [grad.to(x.dtype) for grad, x in zip(grad_outputs[:-1], pooled, strict=True)]
        grad_queries = grad_log_mass.new_zeros(queries.shape)
        grad_shift, grad_log_steepness = grad_log_mass.new_zeros(2, *shift.shape)
        blocks = list(blocks_of_slots(reach, queries, scored))
        grad_sequences = _SequenceGradients([scored, *pooled], reach.are_whole(blocks), grad_log_mass.dtype)
        for block in blocks:
            rows, slots = block.rows, block.slots
            block_prior = prior.part(slots)
            block_place = place.part(rows, block.positions, reach.is_real(rows, block.positions))
            keys = block.take(scored)
            # Normalised by their own sum: the forward pass has rounded its scores, and so its sum, in another way.
            scores = _scores_in_place(queries[:, slots], block_prior, keys, block_place)
            weights, mass, _ = _weights_in_place(scores, block_place)
            weights.div_(mass)
            products = []
            for index, (sequence, grad) in enumerate(zip(pooled, grad_slots, strict=True), start=1):
                grad = grad[rows, :, slots]
                products.append((grad @ block.take(sequence).transpose(-2, -1)).to(weights.dtype))
                grad_sequences.add(index, block, weights.transpose(-2, -1).to(grad.dtype) @ grad)
            grad_weights = functools.reduce(Tensor.add_, products)
            # The gradient of a softmax is P ⊙ (∂P − Σ P ∂P); that of the logarithm of its sum is P.
            grad_scores = grad_weights.mul_(weights)
            mean = grad_scores.sum(dim=-1, keepdim=True) - grad_log_mass[rows, :, slots]
            grad_scores.addcmul_(weights, mean, value=-1.0)
            distances = block_place.distances(block_prior, keys.shape[2])
            block_shift, block_log_steepness = block_prior.gradients(grad_scores.sum(dim=1), distances)
            grad_shift[slots] += block_shift
            grad_log_steepness[slots] += block_log_steepness
            grad_scores = grad_scores.to(keys.dtype)
            grad_queries[:, slots] += (grad_scores @ keys).sum(dim=0)
            grad_sequences.add(0, block, grad_scores.transpose(-2, -1) @ queries[:, slots])
        grad_scored, *grad_pooled = grad_sequences.total()
        return (
            grad_queries.to(queries.dtype),
            grad_shift.to(shift.dtype),
            grad_log_steepness.to(log_steepness.dtype),
            grad_scored,
            None,
            None,
            *grad_pooled,
        )


class _SequenceGradients:
    """Gradients of sequences ``(B, H, M, X)``, of which each block of slots has a share, summed in ``dtype``.

    Where a block has all slots of its rows, its share is all there is.
    """

    def __init__(self, sequences: Sequence[Tensor], is_whole: bool, dtype: torch.dtype) -> None:
        self.is_whole, self.dtypes = is_whole, [x.dtype for x in sequences]
        make = torch.empty_like if is_whole else torch.zeros_like
        self.sums = [make(x, dtype=None if is_whole else dtype) for x in sequences]

    def add(self, index: int, block: Block, share: Tensor) -> None:
        part = block.take(self.sums[index])
        part.copy_(share) if self.is_whole else part.add_(share)

    def total(self) -> list[Tensor]:
        return [x.to(dtype) for x, dtype in zip(self.sums, self.dtypes, strict=True)]


def _pool_in_place(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, pooled: Sequence[Tensor], place: Place
) -> Pooled:
    """Of all positions, by one product after the other."""
    weights, mass, peaks = _weights_in_place(_scores_in_place(queries, prior, scored, place), place)
    return Pooled(tuple(x.div_(mass) for x in mix(weights, pooled)), mass.log().add_(peaks))


def _weights_in_place(scores: Tensor, place: Place) -> tuple[Tensor, Tensor, Tensor]:
    """Weights in the memory of their scores; what they sum to; and the logarithm of what they are divided by."""
    peaks = scores.amax(dim=-1, keepdim=True).add_(math.log(max(1.0, scores.shape[-1] / LARGEST_SUM)))
    weights = place.hide_(scores.sub_(peaks).clamp_(min=LOWEST_SCORE).exp_(), 0.0)
    return weights, weights.sum(dim=-1, keepdim=True).clamp_(min=TINY), peaks


def _pool_by_flash(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, pooled: Sequence[Tensor], place: Place
) -> Pooled:
    """The same by the operator below SDPA: its scores never leave the caches."""
    bias = prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1)
    bias = bias.to(torch.promote_types(scored.dtype, torch.float32))
    if place.padding is not None:
        bias = bias.masked_fill(place.padding[:, None, None, :], -math.inf)
    queries = queries.expand(len(scored), *queries.shape)
    slots = []
    for sequence in pooled:
        means, log_mass = flash_attention(queries, scored, sequence, mask=bias, scale=1.0)
        slots.append(means)
    result = Pooled(tuple(slots), log_mass.unsqueeze(-1))
    if place.padding is not None:  # a mean of nothing but padding is no number
        empty = place.padding.all(dim=-1)[:, None, None, None]
        result.log_mass.masked_fill_(empty, HIDDEN)
        for means in slots:
            means.masked_fill_(empty, 0.0)
    return result


def _scores_in_place(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: Place) -> Tensor:
    """The scores ``(B, H, K, m)``, at least float32, outside of autograd.

    Fresh memory for each step would cost more than the step.
    """
    products = queries @ scored.transpose(-2, -1)
    scores = products.to(torch.promote_types(products.dtype, torch.float32))
    scores.add_(prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1))
    return place.hide_(scores, HIDDEN)


def _no_slots(queries: Tensor, scored: Tensor, pooled: Sequence[Tensor]) -> Pooled:
    """Slots of no positions: zeros, without weight."""
    shape, dtype = (*scored.shape[:2], queries.shape[1]), torch.promote_types(scored.dtype, torch.float32)
    slots = tuple(x.new_zeros(*shape, x.shape[-1], dtype=dtype) for x in pooled)
    return Pooled(slots, scored.new_full((*shape, 1), HIDDEN, dtype=dtype))

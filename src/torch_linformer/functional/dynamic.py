"""Slots chosen by the input: each pools the positions by a softmax of scores, begun at the means of segments."""

import functools
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_linformer.functional.cpu_flash import can_flash, flash
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.reach import LEAST, Block, Reach, blocks_of_slots
from torch_linformer.functional.segment_prior import SegmentPrior
from torch_linformer.functional.torch_state import is_transformed, records_a_graph

HIDDEN = -1e30  # the score of padding, below any other, whose weight is then 0; −∞ less −∞ would be NaN
MOST = 256  # that the weights of a block sum to, times a value within what float16 holds
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

    def of_all_pieces(self, padding: Padding) -> "Pooled":
        """Slots of whole rows, where these are of a piece of them."""
        peak = padding.highest(self.log_mass.detach())
        share = (self.log_mass - peak).exp()
        joined = padding.total(torch.cat([*(x * share for x in self.slots), share], dim=-1))
        *sums, mass = torch.split(joined, [*(x.shape[-1] for x in self.slots), 1], dim=-1)
        return Pooled(tuple(x / mass for x in sums), peak + mass.log())

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
    pass, for which nothing else is kept than inputs and result; on a CPU a block leaves out the positions, or the
    slots, that are so far away that there is no weight between them, whatever is scored. As for SDPA there is no
    gradient of the gradient; compiled graphs and the transforms of ``torch.func`` compute all scores at once.

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
        if records_a_graph() or is_transformed():
            scores = _scores(queries, prior, scored, place)
            weights = _softmax(scores, place)
            return Pooled(_mix(weights, pooled), torch.logsumexp(scores, dim=-1, keepdim=True))
        of_prior = prior.shift, prior.log_steepness
        *slots, log_mass = _Pool.apply(queries, *of_prior, scored, place, *pooled)  # type: ignore[no-untyped-call]
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

    def part(self, rows: slice, positions: slice, is_real: bool) -> "_Place":
        tokens = self.tokens if len(self.tokens) == 1 else self.tokens[rows]
        padding = None if self.padding is None or is_real else self.padding[rows, positions]
        return _Place(tokens, self.first + positions.start, padding)

    def hide_(self, scores: Tensor, value: float) -> Tensor:
        """``scores`` ``(B, H, K, m)`` with ``value`` at padding, in place."""
        return scores if self.padding is None else scores.masked_fill_(self.padding[:, None, None, :], value)

    def distances(self, prior: SegmentPrior, length: int) -> Tensor:
        return prior.distances(slice(self.first, self.first + length), self.tokens)


def _scores(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: _Place) -> Tensor:
    """The scores ``(B, H, K, M)``, at least float32."""
    products = queries @ scored.transpose(-2, -1)
    scores = products.to(torch.promote_types(products.dtype, torch.float32))
    scores = scores + prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1)
    return scores if place.padding is None else scores.masked_fill(place.padding[:, None, None, :], HIDDEN)


def _softmax(scores: Tensor, place: _Place) -> Tensor:
    """P ``(B, H, K, M)``; zeros in rows of nothing but padding."""
    weights = torch.softmax(scores, dim=-1)
    return weights if place.padding is None else weights.masked_fill(place.padding[:, None, None, :], 0.0)


def _mix(weights: Tensor, sequences: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rounded = {x.dtype: weights.to(x.dtype) for x in sequences}  # once for all of a kind
    return tuple((rounded[x.dtype] @ x).to(weights.dtype) for x in sequences)


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
        prior, whole = SegmentPrior(shift, log_steepness), _no_slots(queries, scored, pooled)
        reach = Reach(queries, prior, scored, place.tokens, place.first)
        pool_block = _pool_by_sdpa if _sdpa_can(scored, pooled) else _pool_in_place
        for block in blocks_of_slots(reach, queries, scored):
            rows, slots, positions = block
            some, there = prior.part(slots), place.part(rows, positions, reach.is_real(rows, positions))
            found = pool_block(queries[:, slots], some, block.of(scored), [block.of(x) for x in pooled], there)
            known = whole.part(rows, slots)
            for sequence, of_slots in zip((*known.slots, known.log_mass), (*found.slots, found.log_mass), strict=True):
                sequence.copy_(of_slots)
        ctx.place, ctx.reach = place, reach
        ctx.save_for_backward(queries, shift, log_steepness, scored, *pooled)
        return (*whole.slots, whole.log_mass)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, shift, log_steepness, scored, *pooled = ctx.saved_tensors
        prior, place, reach = SegmentPrior(shift, log_steepness), ctx.place, ctx.reach
        of_log_mass = of_outputs[-1]
        of_slots = [x.to(y.dtype) for x, y in zip(of_outputs[:-1], pooled, strict=True)]
        of_queries, of_shift, of_steepness = (of_log_mass.new_zeros(x.shape) for x in (queries, shift, shift))
        blocks = list(blocks_of_slots(reach, queries, scored))
        of_sequences = _GradientsOfBlocks([scored, *pooled], reach.are_whole(blocks), of_log_mass.dtype)
        for block in blocks:
            rows, near, positions = block
            some, there = prior.part(near), place.part(rows, positions, reach.is_real(rows, positions))
            asked, keys = queries[:, near], block.of(scored)
            # Normalised by their own sum: the forward pass has rounded its scores, and so its sum, in another way.
            weights, mass, _ = _weights_in_place(_scores_in_place(asked, some, keys, there), there)
            weights.div_(mass)
            products = []
            for index, (sequence, of_slot) in enumerate(zip(pooled, of_slots, strict=True), start=1):
                of_slot = of_slot[rows, :, near]
                products.append((of_slot @ block.of(sequence).transpose(-2, -1)).to(weights.dtype))
                of_sequences.add(index, block, weights.transpose(-2, -1).to(of_slot.dtype) @ of_slot)
            of_weights = functools.reduce(Tensor.add_, products)
            # The gradient of a softmax is P ⊙ (∂P − Σ P ∂P); that of the logarithm of its sum is P.
            of_scores = of_weights.mul_(weights)
            mean = of_scores.sum(dim=-1, keepdim=True) - of_log_mass[rows, :, near]
            of_scores.addcmul_(weights, mean, value=-1.0)
            shifts, steepnesses = some.gradients(of_scores.sum(dim=1), there.distances(some, keys.shape[2]))
            of_shift[near] += shifts
            of_steepness[near] += steepnesses
            of_scores = of_scores.to(keys.dtype)
            of_queries[:, near] += (of_scores @ keys).sum(dim=0)
            of_sequences.add(0, block, of_scores.transpose(-2, -1) @ asked)
        found = (of_queries, queries), (of_shift, shift), (of_steepness, log_steepness)
        of_scored, *of_pooled = of_sequences.total()
        return (*(gradient.to(x.dtype) for gradient, x in found), of_scored, None, *of_pooled)


class _GradientsOfBlocks:
    """Gradients of sequences ``(B, H, M, X)``, of which each block of slots has a share, summed in ``dtype``.

    Where a block has all slots of its rows, its share is all there is.
    """

    def __init__(self, sequences: Sequence[Tensor], is_whole: bool, dtype: torch.dtype) -> None:
        self.is_whole, self.dtypes = is_whole, [x.dtype for x in sequences]
        make = torch.empty_like if is_whole else torch.zeros_like
        self.sums = [make(x, dtype=None if is_whole else dtype) for x in sequences]

    def add(self, index: int, block: Block, share: Tensor) -> None:
        part = block.of(self.sums[index])
        part.copy_(share) if self.is_whole else part.add_(share)

    def total(self) -> list[Tensor]:
        return [x.to(dtype) for x, dtype in zip(self.sums, self.dtypes, strict=True)]


def _pool_in_place(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, pooled: Sequence[Tensor], place: _Place
) -> Pooled:
    """Of all positions, by one product after the other."""
    weights, mass, peaks = _weights_in_place(_scores_in_place(queries, prior, scored, place), place)
    return Pooled(tuple(x.div_(mass) for x in _mix(weights, pooled)), mass.log().add_(peaks))


def _weights_in_place(scores: Tensor, place: _Place) -> tuple[Tensor, Tensor, Tensor]:
    """Weights in the memory of their scores; what they sum to; and the logarithm of what they are divided by."""
    peaks = scores.amax(dim=-1, keepdim=True).add_(math.log(max(1.0, scores.shape[-1] / MOST)))
    weights = place.hide_(scores.sub_(peaks).clamp_(min=LEAST).exp_(), 0.0)
    return weights, weights.sum(dim=-1, keepdim=True).clamp_(min=TINY), peaks


def _sdpa_can(scored: Tensor, pooled: Sequence[Tensor]) -> bool:
    """Whether :func:`_pool_by_sdpa` can compute it: on a CPU, and of one width."""
    return can_flash(scored, *pooled) and all(x.shape == scored.shape for x in pooled) and scored.numel() > 0


def _pool_by_sdpa(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, pooled: Sequence[Tensor], place: _Place
) -> Pooled:
    """The same by the operator below SDPA: its scores never leave the caches."""
    bias = prior.scores(place.distances(prior, scored.shape[2])).unsqueeze(1)
    bias = bias.to(torch.promote_types(scored.dtype, torch.float32))
    if place.padding is not None:
        bias = bias.masked_fill(place.padding[:, None, None, :], -math.inf)
    queries, slots = queries.expand(len(scored), *queries.shape), []
    for each in pooled:
        of_slots, log_mass = flash(queries, scored, each, mask=bias, scale=1.0)
        slots.append(of_slots)
    found = Pooled(tuple(slots), log_mass.unsqueeze(-1))
    if place.padding is not None:  # a mean of nothing but padding is no number
        nothing = place.padding.all(dim=-1)[:, None, None, None]
        found.log_mass.masked_fill_(nothing, HIDDEN)
        for of_slots in slots:
            of_slots.masked_fill_(nothing, 0.0)
    return found


def _scores_in_place(queries: Tensor, prior: SegmentPrior, scored: Tensor, place: _Place) -> Tensor:
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

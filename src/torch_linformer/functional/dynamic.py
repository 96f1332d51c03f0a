"""Slots chosen by the input: each pools the positions by a softmax of scores, begun at the means of segments.

Scores are computed in blocks that nobody keeps. On a CPU a block leaves out the positions, or the slots, that are so
far away that there is no weight between them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial, reduce
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from torch_linformer.functional.cpu import by_flash, sizes_for
from torch_linformer.functional.implementations import Implementation, compute, register
from torch_linformer.functional.padding import Collective, check_padding_mask, check_shapes, justify, mask_of
from torch_linformer.functional.pytorch import flash_attention, is_transformed, records_a_graph
from torch_linformer.functional.slots import Slots

STEEPNESS = 2.0  # of the prior at first: −2 at a distance of one segment
HIDDEN = -1e30  # the score of padding, below any other, whose weight is then 0; −∞ less −∞ would be NaN
LARGEST_SUM = 256  # that the weights of a block sum to, times a value within what float16 holds
TINY = 1e-30  # the sum of no weights
# Nats below the largest, where a weight is nothing: numbers near the smallest ones are ten times as slow.
LOWEST_SCORE = -50.0
LOWEST_WEIGHT = 2 * math.exp(LOWEST_SCORE)  # what is less becomes 0: it would be slow in products with small gradients
ROUNDED = 1.02  # of norms in the type of the input: bfloat16 is off by less than a hundredth each
FEWEST_SLOTS = 32  # at once, where some are left out: with fewer the calls take longer than the scores that they save
SPAN = 512  # positions whose segments belong to slots that are computed at once, likewise


def dynamic_slots(
    queries: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    shift: Tensor | None = None,
    log_steepness: Tensor | None = None,
    key_padding_mask: Tensor | None = None,
    mass: bool = False,
) -> Slots:
    r"""K slots that the input chooses: each pools the keys and the values by one softmax over the positions.

    .. math::
        P_{ij} = \mathrm{softmax}_i \Big( w_j \cdot k_i - 2 e^{a_j} \big( \tfrac{(i + ½) K}{n} - j - ½ - d_j \big)^2
        \Big), \qquad \bar K = P^\top K, \quad \bar V = P^\top V

    for the n real tokens of a row, counted by i. With w = a = d = 0 a slot is a smooth mean around a segment of the
    row's own tokens. Time is O(M·K); no M × K array is kept for the backward pass.

    Args:
        queries: w, ``(H, K, D)``, or ``(K, D)`` for all heads.
        key: ``(B, H, M, D)``.
        value: ``(B, H, M, Dv)``.
        shift: d, ``(K,)``, in segments; zeros by default.
        log_steepness: a, ``(K,)``; zeros by default.
        key_padding_mask: bool ``(B, M)``, True at padding, on any side and between tokens.
        mass: add log n / K to the scores of each slot, the number of tokens that it stands for at first.

    Raises:
        ValueError: for shapes that do not fit.

    Source: arXiv 2107.02192 (dynamic projection, there without a prior); the prior is ours.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import dynamic_slots
        >>> key, value = torch.randn(2, 1, 4, 1000, 16)  # (B, H, M, D) each
        >>> dynamic_slots(torch.zeros(32, 16), key, value, mass=True).keys.shape
        torch.Size([1, 4, 32, 16])
    """
    heads, k = (1 if queries.dim() == 2 else queries.shape[0]), queries.shape[-2]
    fits = queries.dim() in (2, 3) and key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3]
    fits = fits and heads in (1, key.shape[1]) and queries.shape[-1] == key.shape[-1]
    expected = "queries, key and value must be (H, K, D), (B, H, M, D) and (B, H, M, Dv)"
    check_shapes(fits, expected, queries, key, value)
    for name, parameter in (("shift", shift), ("log_steepness", log_steepness)):
        if parameter is not None:
            check_shapes(parameter.shape == (k,), f"{name} must have one number a slot of queries", parameter, queries)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    (key, value), padding = justify(key_padding_mask, key, value)
    tokens = torch.full((1,), key.shape[2], device=key.device) if padding is None else padding.tokens.squeeze(-1)
    zeros = queries.new_zeros(k)
    prior = SegmentPrior.of(zeros if shift is None else shift, zeros if log_steepness is None else log_steepness)
    weights = queries.expand(key.shape[1], -1, -1)
    pooled = pool(weights, prior, key, [key, value], tokens, padding_mask=mask_of(padding))
    keys, values = (slots.to(x.dtype) for slots, x in zip(pooled.slots, (key, value), strict=True))
    bias = (tokens.clamp(min=1).to(key.dtype) / k).log()[:, None, None].expand(-1, 1, k) if mass else None
    return Slots(keys, values, None, bias)


class SegmentPrior(NamedTuple):
    r"""Where in its row each slot looks at first: :math:`p_{ij} = -s_j (t_i - c_j)^2`.

    :math:`t_i = (i + ½) K / n` is the place of the i-th of a row's n real tokens, counted in segments.
    """

    centers: Tensor  # c, (K,), at least float32
    steepness: Tensor  # s, (K,), likewise
    num_slots: int  # K of all slots, of which these may be a part

    @classmethod
    def of(cls, shift: Tensor, log_steepness: Tensor) -> Self:
        """:math:`c_j = j + ½ + d_j` and :math:`s = 2 e^a` of d, ``shift``, and a, ``log_steepness``, ``(K,)``."""
        d, a = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (shift, log_steepness))
        num_slots = d.shape[0]
        index = torch.arange(num_slots, device=d.device, dtype=d.dtype)
        return cls(index + 0.5 + d, STEEPNESS * a.exp(), num_slots)

    def distances(self, positions: slice, tokens: Tensor) -> Tensor:
        """:math:`t_i - c_j`, ``(B or 1, K, m)``, for rows of ``tokens`` ``(B or 1,)`` real tokens."""
        index = torch.arange(positions.start, positions.stop, device=tokens.device, dtype=self.centers.dtype)
        segments_B1 = self.num_slots / tokens.clamp(min=1).to(self.centers.dtype).unsqueeze(-1)
        return ((index + 0.5) * segments_B1).unsqueeze(1) - self.centers.unsqueeze(-1)

    def scores(self, distances: Tensor) -> Tensor:
        """p, ``(B or 1, K, m)``."""
        return -self.steepness.unsqueeze(-1) * distances.square()


class Pooled(NamedTuple):
    """Slots ``(B, H, K, X)`` of each sequence, at least float32, and the log of their weights' sum, ``(B, H, K, 1)``.

    By these sums the slots of parts can be joined: a softmax over all positions is a mean of those over the parts.
    """

    slots: tuple[Tensor, ...]
    log_mass: Tensor

    def whole_rows(self, collective: Collective) -> "Pooled":
        """Slots of whole rows, where these are of a piece of them."""
        peak = collective.highest(self.log_mass.detach())
        share = (self.log_mass - peak).exp()
        joined = collective.total(torch.cat([*(x * share for x in self.slots), share], dim=-1))
        *sums, mass = torch.split(joined, [*(x.shape[-1] for x in self.slots), 1], dim=-1)
        return Pooled(tuple(x / mass for x in sums), peak + mass.log())

    def joined(self, other: "Pooled") -> "Pooled":
        """Slots of the positions of both."""
        log_mass = torch.logaddexp(self.log_mass, other.log_mass)
        share, rest = (self.log_mass - log_mass).exp(), (other.log_mass - log_mass).exp()
        return Pooled(tuple(x * share + y * rest for x, y in zip(self.slots, other.slots, strict=True)), log_mass)


class Block(NamedTuple):
    """Slots and positions of some rows of a batch."""

    rows: slice
    slots: slice
    positions: slice

    def take(self, sequence: Tensor) -> Tensor:
        """Its positions of a sequence ``(B, H, M, X)``."""
        return sequence[self.rows, :, self.positions]


class Scoring(NamedTuple):
    """What the scores of slots at positions are made of: see :func:`pool`."""

    queries: Tensor
    prior: SegmentPrior
    scored: Tensor
    tokens: Tensor
    first: int
    hidden: Tensor | None  # True at padding, bool (B, 1, 1, M)
    lowest: Tensor | None = None  # the prior's scores below it leave no weight, (B or 1, K)

    def part(self, block: Block, reach: "Reach") -> "Scoring":
        """Those of a block."""
        queries, (centers, steepness, num_slots), scored, tokens, first, hidden, _ = self
        rows, slots, positions = block
        return Scoring(
            queries[:, slots],
            SegmentPrior(centers[slots], steepness[slots], num_slots),
            block.take(scored),
            _rows_of(rows, tokens),
            first + positions.start,
            None if hidden is None or reach.is_real(block) else hidden[rows, ..., positions],
            _rows_of(rows, reach.lowest)[:, slots].to(centers.dtype) if reach.leaves_out else None,
        )

    def distances(self) -> Tensor:
        return self.prior.distances(slice(self.first, self.first + self.scored.shape[2]), self.tokens)

    def products(self) -> Tensor:
        """w · k, ``(B, H, K, m)``, at least float32."""
        products = self.queries @ self.scored.transpose(-2, -1)
        return products.to(torch.promote_types(products.dtype, torch.float32))

    def scores(self) -> Tensor:
        """With the prior, and hidden at padding."""
        scores = self.products() + self.prior.scores(self.distances()).unsqueeze(1)
        return scores if self.hidden is None else scores.masked_fill(self.hidden, HIDDEN)


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

    It is one attention of K learned queries to the positions, whose scores are computed again in the backward pass. As
    for SDPA there is no gradient of the gradient; compiled graphs and the transforms of ``torch.func`` compute all
    scores at once.

    Args:
        queries: w, ``(H, K, D)``, or ``(K, D)`` for one head.
        prior: p.
        scored: k, ``(B, H, M, D)``.
        pooled: sequences ``(B, H, M, X)``.
        tokens: real tokens of each whole row, ``(B or 1,)``; they stand before the padding.
        first: the place of position 0 in its row, of which these M positions may be a part.
        padding_mask: bool ``(B, M)``, True at padding, which gets no weight.
    """
    device = scored.device.type
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    if has_autocast and torch.is_autocast_enabled(device) and scored.dtype != torch.float64:
        # The backward pass, which computes the scores again, is not under autocast.
        dtype = torch.get_autocast_dtype(device)
        queries, scored, pooled = queries.to(dtype), scored.to(dtype), [x.to(dtype) for x in pooled]
    queries = queries if queries.dim() == 3 else queries.unsqueeze(0)
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        scoring = Scoring(queries, prior, scored, tokens, first, _hidden(padding_mask))
        slots: Pooled = compute(POOLING, scoring, pooled)
    return slots


def _pool(by_flash: bool, scoring: Scoring, pooled: Sequence[Tensor]) -> Pooled:
    if records_a_graph() or is_transformed():
        scores = scoring.scores()
        weights = _softmax(scores, scoring.hidden)
        return Pooled(_mix(weights, pooled), torch.logsumexp(scores, dim=-1, keepdim=True))
    (queries, prior, scored), place = scoring[:3], scoring[3:]
    *slots, log_mass = Pool.apply(queries, *prior, scored, place, by_flash, *pooled)  # type: ignore[no-untyped-call]
    return Pooled(tuple(slots), log_mass)


def _why_not_flash(scoring: Scoring, pooled: Sequence[Tensor]) -> str | None:
    if any(x.shape != scoring.scored.shape for x in pooled) or scoring.scored.numel() == 0:
        return "what is scored and what is pooled must be of one size"
    return None


POOLING = register(
    "slots chosen by the input",
    {"flash": by_flash(partial(_pool, True), _why_not_flash), "torch": Implementation(partial(_pool, False))},
)


def pooling_weights(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, tokens: Tensor, padding_mask: Tensor | None
) -> Tensor:
    """P of :func:`pool` itself, ``(B, H, K, M)``, to look at."""
    hidden = _hidden(padding_mask)
    return _softmax(Scoring(queries, prior, scored, tokens, 0, hidden).scores(), hidden)


def _hidden(padding_mask: Tensor | None) -> Tensor | None:
    return None if padding_mask is None else padding_mask[:, None, None, :]


def _softmax(scores: Tensor, hidden: Tensor | None) -> Tensor:
    """P ``(B, H, K, M)``; zeros in rows of nothing but padding."""
    weights = torch.softmax(scores, dim=-1)
    return weights if hidden is None else weights.masked_fill(hidden, 0.0)


def _mix(weights: Tensor, sequences: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rounded = {x.dtype: weights.to(x.dtype) for x in sequences}  # once for all of a kind
    return tuple((rounded[x.dtype] @ x).to(weights.dtype) for x in sequences)


class Reach:
    r"""Which slots have any weight at which positions; arguments are those of :func:`pool`.

    A weight is nothing where its score lies more than :data:`LOWEST_SCORE` below that of the token nearest to the
    slot's center. Of the scores :math:`|w_j \cdot k_i| \le |w_j| \max_i |k_i|` is known, so none has to be computed:
    beyond a distance of some segments the prior alone decides. Devices that compute while Python goes on are not
    asked for numbers, and leave nothing out; nor is anything left out where one block holds all positions.
    """

    def __init__(self, scoring: Scoring) -> None:
        queries, prior, scored, tokens, self.first, *_ = scoring  # of which autograd alone keeps tensors
        (self.batch, heads, self.length, _), self.num_slots = scored.shape, queries.shape[1]
        plain = type(scored) is Tensor and scored.device.type == "cpu"  # a fake tensor has no numbers
        self.at_once = max(1, sizes_for(scored.device).pooled_scores // heads)
        self.leaves_out = plain and self.length > max(1, self.at_once // self.num_slots)
        if self.leaves_out:
            norms = torch.linalg.vector_norm(queries, dim=-1).amax(dim=0).double()
            # In the order of memory, where heads are views of channels: five times as fast.
            bounds_K = norms * torch.linalg.vector_norm(scored.transpose(1, 2), dim=-1).max().double() * ROUNDED
            self.tokens = tokens.numpy()
            segment_B1 = self.num_slots / tokens.clamp(min=1).double().unsqueeze(-1)
            centers_K, steepness_K = prior.centers.double(), prior.steepness.double()
            outside_K = (-centers_K).clamp(min=0) + (centers_K - self.num_slots).clamp(min=0)
            nearest_BK = -steepness_K * (outside_K + segment_B1 / 2).square()
            self.lowest = nearest_BK - 2 * bounds_K + LOWEST_SCORE
            farthest_BK = (-self.lowest / steepness_K).sqrt()
            # Where a number is missing, everything is in reach.
            begin_BK = ((centers_K - farthest_BK) / segment_B1 - 0.5).nan_to_num(nan=-math.inf)
            end_BK = ((centers_K + farthest_BK) / segment_B1 - 0.5).nan_to_num(nan=math.inf)
            self.begin, self.end = begin_BK.numpy(), end_BK.numpy()

    def is_real(self, block: Block) -> bool:
        """Whether no position of it is known to be padding."""
        return self.leaves_out and bool(self.first + block.positions.stop <= _rows_of(block.rows, self.tokens).min())

    def positions(self, rows: slice, slots: slice) -> slice:
        """The positions from the first to the last that has a weight in one of these slots."""
        if not self.leaves_out:
            return slice(0, self.length)
        begin, end = (_rows_of(rows, x)[:, slots] for x in (self.begin, self.end))
        start = self.first
        stop = min(start + self.length, _rows_of(rows, self.tokens).max())  # after it is padding
        first, last = math.ceil(max(begin.min(), start)), math.floor(min(end.max(), stop - 1))
        return slice(first - start, max(first, last + 1) - start)

    def blocks(self) -> Iterator[Block]:
        """Slots at once, and the positions that they reach: of several rows, or of one where positions are left out."""
        rows_at_once = 1 if self.leaves_out else max(1, self.at_once // max(1, self.num_slots * self.length))
        slots_at_once = max(FEWEST_SLOTS, SPAN * self.num_slots // self.length) if self.leaves_out else self.num_slots
        for row in range(0, self.batch, rows_at_once):
            rows, start = slice(row, row + rows_at_once), 0
            while start < self.num_slots:
                slots = slice(start, min(start + slots_at_once, self.num_slots))
                positions = self.positions(rows, slots)
                fitting = max(1, self.at_once // max(1, positions.stop - positions.start))
                if fitting < slots.stop - start:
                    slots = slice(start, start + fitting)
                    positions = self.positions(rows, slots)
                if positions.start < positions.stop:
                    yield Block(rows, slots, positions)
                start = slots.stop


def _rows_of(rows: slice, array: Any) -> Any:
    """What belongs to these rows; one row stands for all."""
    return array if len(array) == 1 else array[rows]


class Pool(torch.autograd.Function):
    """:func:`pool` in blocks of scores that are not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        centers: Tensor,
        steepness: Tensor,
        num_slots: int,
        scored: Tensor,
        place: tuple[Any, ...],
        by_flash: bool,
        *pooled: Tensor,
    ) -> tuple[Tensor, ...]:
        scoring = Scoring(queries, SegmentPrior(centers, steepness, num_slots), scored, *place)
        # At first slots of no positions: zeros, without weight.
        shape, dtype = (*scored.shape[:2], queries.shape[1]), torch.promote_types(scored.dtype, torch.float32)
        slots = [x.new_zeros(*shape, x.shape[-1], dtype=dtype) for x in pooled]
        slots.append(scored.new_full((*shape, 1), HIDDEN, dtype=dtype))
        reach, pool_block = Reach(scoring), _pool_by_flash if by_flash else _pool_in_place
        for block in reach.blocks():
            part = scoring.part(block, reach)
            for whole, share in zip(slots, pool_block(part, [block.take(x) for x in pooled]), strict=True):
                whole[block.rows, :, block.slots].copy_(share)
        ctx.num_slots, ctx.place, ctx.reach, ctx.is_scored = num_slots, place, reach, [x is scored for x in pooled]
        ctx.save_for_backward(queries, centers, steepness, scored, *pooled)
        return tuple(slots)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        queries, centers, steepness, scored, *pooled = ctx.saved_tensors
        scoring = Scoring(queries, SegmentPrior(centers, steepness, ctx.num_slots), scored, *ctx.place)
        reach = ctx.reach
        *grad_slots, grad_log_mass = grad_outputs
        grad_slots = [grad.to(x.dtype) for grad, x in zip(grad_slots, pooled, strict=True)]
        grad_queries = grad_log_mass.new_zeros(queries.shape)
        grad_centers, grad_steepness = grad_log_mass.new_zeros(2, *centers.shape)
        blocks = list(reach.blocks())
        sequences = [scored, *(x for x, is_scored in zip(pooled, ctx.is_scored, strict=True) if not is_scored)]
        # Where a block has all slots of its rows, its share is all there is; else shares are summed in float32.
        are_whole = not reach.leaves_out and all(x.slots.stop - x.slots.start == reach.num_slots for x in blocks)
        dtype = None if are_whole else grad_log_mass.dtype
        grad_sequences = [(torch.empty_like if are_whole else torch.zeros_like)(x, dtype=dtype) for x in sequences]
        for block in blocks:
            part, slots = scoring.part(block, reach), block.slots
            # Normalised by their own sum: the forward pass has rounded its scores, and so its sum, in another way.
            weights, mass, _ = _weights_in_place(part)
            weights.div_(mass)
            products, shares, own_shares = [], list[Tensor](), list[Tensor]()
            for sequence, is_scored, grad in zip(pooled, ctx.is_scored, grad_slots, strict=True):
                grad = grad[block.rows, :, slots]
                products.append((grad @ block.take(sequence).transpose(-2, -1)).to(weights.dtype))
                (own_shares if is_scored else shares).append(weights.transpose(-2, -1).to(grad.dtype) @ grad)
            grad_weights = reduce(Tensor.add_, products)
            # The gradient of a softmax is P ⊙ (∂P − Σ P ∂P); that of the logarithm of its sum is P.
            grad_scores = grad_weights.mul_(weights)
            mean = grad_scores.sum(dim=-1, keepdim=True) - grad_log_mass[block.rows, :, slots]
            grad_scores.addcmul_(weights, mean, value=-1.0)
            grad_prior, distances = grad_scores.sum(dim=1), part.distances()
            grad_centers[slots] += (grad_prior * distances).sum(dim=(0, 2)) * 2 * part.prior.steepness
            grad_steepness[slots] -= (grad_prior * distances.square()).sum(dim=(0, 2))
            grad_scores = grad_scores.to(scored.dtype)
            grad_queries[:, slots] += (grad_scores @ part.scored).sum(dim=0)
            shares.insert(0, reduce(Tensor.add_, own_shares, grad_scores.transpose(-2, -1) @ part.queries))
            for whole, share in zip(grad_sequences, shares, strict=True):
                block.take(whole).copy_(share) if are_whole else block.take(whole).add_(share)
        grads = iter([grad.to(x.dtype) for grad, x in zip(grad_sequences, sequences, strict=True)])
        grad_queries, grad_scored = grad_queries.to(queries.dtype), next(grads)
        grad_pooled = [None if is_scored else next(grads) for is_scored in ctx.is_scored]
        return grad_queries, grad_centers, grad_steepness, None, grad_scored, None, None, *grad_pooled


def _pool_in_place(scoring: Scoring, pooled: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Slots of each sequence, and the logarithm of their weights' sum, by one product after the other."""
    weights, mass, peaks = _weights_in_place(scoring)
    return *(x.div_(mass) for x in _mix(weights, pooled)), mass.log().add_(peaks)


def _weights_in_place(scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
    """Weights ``(B, H, K, m)``; what they sum to; and the logarithm of what they are divided by.

    At least float32, outside of autograd, in the memory of their scores: fresh memory for each step would cost more
    than the step.
    """
    scores = scoring.products()
    scores.add_(scoring.prior.scores(scoring.distances()).unsqueeze(1))
    if scoring.hidden is not None:
        scores.masked_fill_(scoring.hidden, HIDDEN)
    peaks = scores.amax(dim=-1, keepdim=True).add_(math.log(max(1.0, scores.shape[-1] / LARGEST_SUM)))
    weights = torch.threshold_(scores.sub_(peaks).clamp_(min=LOWEST_SCORE).exp_(), LOWEST_WEIGHT, 0.0)
    if scoring.hidden is not None:
        weights.masked_fill_(scoring.hidden, 0.0)
    return weights, weights.sum(dim=-1, keepdim=True).clamp_(min=TINY), peaks


def _pool_by_flash(scoring: Scoring, pooled: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same by the operator below SDPA: its scores never leave the caches."""
    queries, prior, scored, *_, hidden, lowest = scoring
    bias = prior.scores(scoring.distances()).unsqueeze(1)
    if lowest is not None:  # weights near the smallest number would be as slow here
        bias.masked_fill_(bias < lowest[:, None, :, None], HIDDEN)
    bias = bias.to(torch.promote_types(scored.dtype, torch.float32))
    if hidden is not None:
        bias = bias.masked_fill(hidden, -math.inf)
    queries = queries.expand(len(scored), *queries.shape)
    results = [flash_attention(queries, scored, sequence, mask=bias, scale=1.0) for sequence in pooled]
    slots, log_mass = [means for means, _ in results], results[-1][1].unsqueeze(-1)
    if hidden is not None:  # a mean of nothing but padding is no number
        empty = hidden.all(dim=-1, keepdim=True)
        log_mass.masked_fill_(empty, HIDDEN)
        for means in slots:
            means.masked_fill_(empty, 0.0)
    return *slots, log_mass

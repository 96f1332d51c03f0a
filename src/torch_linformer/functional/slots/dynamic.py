"""Slots chosen by the input: each pools the positions by a softmax of scores, begun at the means of segments."""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
from torch import Tensor

from torch_linformer.functional.attention.softmax_parts import Slots
from torch_linformer.functional.kernels.cpu import by_flash
from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.implementations import Implementation, Operation, choose, register
from torch_linformer.functional.kernels.torch_private import is_transformed
from torch_linformer.functional.padding import check_padding_mask, justify, mask_of
from torch_linformer.functional.slots.pooling import Place, Pool, Pooled, mix, pooling_scores, pooling_softmax
from torch_linformer.functional.slots.reach import SegmentPrior


def _why_not_flash(queries: Tensor, scored: Tensor, *pooled: Tensor) -> str | None:
    if any(x.shape != scored.shape for x in pooled) or scored.numel() == 0:
        return "what is scored and what is pooled must be of one size"
    return None


POOLING = register(Operation("slots chosen by the input", (by_flash(_why_not_flash), Implementation("torch"))))


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
    if not fits or heads not in (1, key.shape[1]) or queries.shape[-1] != key.shape[-1]:
        raise ValueError(
            "queries, key and value must be (H, K, D), (B, H, M, D) and (B, H, M, Dv), got "
            f"{tuple(queries.shape)}, {tuple(key.shape)} and {tuple(value.shape)}"
        )
    for name, parameter in (("shift", shift), ("log_steepness", log_steepness)):
        if parameter is not None and parameter.shape != (k,):
            raise ValueError(f"{name} must have one number a slot, ({k},), got {tuple(parameter.shape)}")
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    (key, value), padding = justify(key_padding_mask, key, value)
    tokens = torch.full((1,), key.shape[2], device=key.device) if padding is None else padding.tokens.squeeze(-1)
    zeros = queries.new_zeros(k)
    prior = SegmentPrior(zeros if shift is None else shift, zeros if log_steepness is None else log_steepness)
    weights = queries.expand(key.shape[1], -1, -1)
    pooled = pool(weights, prior, key, [key, value], tokens, padding_mask=mask_of(padding))
    keys, values = (slots.to(x.dtype) for slots, x in zip(pooled.slots, (key, value), strict=True))
    bias = (tokens.clamp(min=1).to(key.dtype) / k).log()[:, None, None].expand(-1, 1, k) if mass else None
    return Slots(keys, values, None, bias)


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
        place = Place(tokens, first, padding_mask)
        by_flash = choose(POOLING, queries, scored, *pooled) == "flash"
        if records_a_graph() or is_transformed():
            scores = pooling_scores(queries, prior, scored, place)
            weights = pooling_softmax(scores, place)
            return Pooled(mix(weights, pooled), torch.logsumexp(scores, dim=-1, keepdim=True))
        parts = queries, prior.shift, prior.log_steepness, scored, place, by_flash, *pooled
        *slots, log_mass = Pool.apply(*parts)  # type: ignore[no-untyped-call]
    return Pooled(tuple(slots), log_mass)


def pooling_weights(
    queries: Tensor, prior: SegmentPrior, scored: Tensor, tokens: Tensor, padding_mask: Tensor | None
) -> Tensor:
    """P of :func:`pool` itself, ``(B, H, K, M)``, to look at."""
    place = Place(tokens, 0, padding_mask)
    return pooling_softmax(pooling_scores(queries, prior, scored, place), place)

"""What a softmax goes over, as small records; one softmax over whole rows of scores; and what is added to scores."""

import math
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.cpu import autocast_dtype, by_onednn
from torch_linformer.functional.implementations import Implementation, Name, register
from torch_linformer.functional.padding import (
    Mask,
    Padding,
    as_mask,
    kept,
    length_of,
    mask_of,
    total_of,
    zero_padding,
)
from torch_linformer.functional.pytorch import is_traced, needs_graph, records_a_graph
from torch_linformer.functional.slots import Slots


class ExactTokens(NamedTuple):
    """Single tokens that every query attends to.

    Attributes:
        keys: ``(B, Hkv, T, D)``.
        values: ``(B, Hkv, T, Dv)``.
        padding: bool ``(B or 1, T)``, True where there is no such token.
    """

    keys: Tensor
    values: Tensor
    padding: Mask | Tensor | None = None


class Window(NamedTuple):
    """The local window: the positions near each query.

    Attributes:
        keys: ``(B, Hkv, M, D)``, of all positions that the windows reach.
        values: ``(B, Hkv, M, Dv)``.
        reach: query i sees the positions at most this far from ``offset + i``.
        padding: bool ``(B or 1, M)``, True at positions that nobody sees.
        offset: position of query 0.
        bias: ``(H or 1, 2 reach + 1)``, added to the score of the position ``-reach`` … ``reach`` away from the query.
    """

    keys: Tensor
    values: Tensor
    reach: int
    padding: Mask | Tensor | None = None
    offset: int = 0
    bias: Tensor | None = None


class SoftmaxCall(NamedTuple):
    """What one call asks of a softmax.

    Attributes:
        dropout_p: probability of dropping an attention weight; as in SDPA it applies whenever it is above 0.
        need_weights: also return the softmax before dropout.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        impl: see :func:`use_implementation`.
    """

    dropout_p: float = 0.0
    need_weights: bool = False
    scale: float | None = None
    impl: Name = "auto"

    def scale_for(self, query: Tensor) -> float:
        """The factor on the scores of queries ``(…, D)``."""
        return 1 / math.sqrt(query.shape[-1]) if self.scale is None else self.scale


Attended = tuple[Tensor, Tensor | None]  # output, and the softmax where it is asked for
Part = TypeVar("Part", Slots, ExactTokens, Window)


def join(slots: Slots, exact: ExactTokens | None) -> Slots:
    """Slots and exact tokens after them as one record: an exact token is a slot of one token."""
    if exact is None:
        return slots
    # Not the rows that the masks have: a comparison of these would tie an exported graph to their number.
    rows, num_slots, num_exact = slots.keys.shape[0], slots.keys.shape[2], exact.keys.shape[2]
    return Slots(
        torch.cat([slots.keys, exact.keys], dim=2),
        torch.cat([slots.values, exact.values], dim=2),
        join_masks(as_mask(slots.padding), as_mask(exact.padding), rows, (num_slots, num_exact)),
        None if slots.bias is None else F.pad(slots.bias, (0, num_exact)),
    )


def join_masks(first: Mask | None, second: Mask | None, rows: int, sizes: tuple[int, int]) -> Mask | None:
    """Two masks ``(rows or 1, size)``, one after the other, kept by one of them; None where neither hides anything."""
    if first is not None:
        return _joined(first, second, rows, sizes[1], False)
    return None if second is None else _joined(second, None, rows, sizes[0], True)


@kept
def _joined(mask: Mask, neighbor: Mask | None, rows: int, size: int, is_last: bool) -> Mask:
    masks = [mask.mask, mask.mask.new_zeros(1, size) if neighbor is None else neighbor.mask]
    return Mask(torch.cat([x.expand(rows, -1) for x in (masks[::-1] if is_last else masks)], dim=-1))


def repeat_heads(x: Tensor, num_heads: int) -> Tensor:
    """Keys or values ``(B, Hkv, M, D)`` for ``num_heads`` query heads, ``(B, H, M, D)``; a bias ``(B, Hkv, M)`` too."""
    check_heads(num_heads, x.shape[1])
    return x if x.shape[1] == num_heads else x.repeat_interleave(num_heads // x.shape[1], dim=1)


def for_heads(part: Part, num_heads: int) -> Part:
    """Slots, or a window, with as many heads as the queries; a window's bias stays."""
    part = part._replace(keys=repeat_heads(part.keys, num_heads), values=repeat_heads(part.values, num_heads))
    if isinstance(part, Slots) and part.bias is not None:
        return part._replace(bias=repeat_heads(part.bias, num_heads))
    return part


def check_heads(num_heads: int, num_kv_heads: int) -> None:
    """Raise ``ValueError`` where query heads cannot share the key/value heads evenly."""
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads are not a multiple of {num_kv_heads} key/value heads")


def check_scale(scale: float | None) -> None:
    """Raise ``ValueError`` for a factor by which no score can be told from another."""
    if scale is not None and (scale == 0 or not math.isfinite(scale)):
        raise ValueError(f"scale must be a finite number other than 0, or None for 1 / sqrt(D), got {scale}")


def check_exact_tokens(first: int, last: int, max_len: int, *, limit: str = "max_len") -> None:
    """Raise ``ValueError`` for more tokens than a sequence can have."""
    if first + last > max_len:
        raise ValueError(
            f"exact_first + exact_last = {first + last} tokens, but the longest sequence has {limit} = {max_len}"
        )


class ExactPlaces(NamedTuple):
    """Where the exact tokens of each row stand.

    Attributes:
        positions: theirs, ``(B or 1, T)``.
        missing: ``(B or 1, T)``, True where there is no such token; None where there are all of them, as in a long
            sequence without padding.
        padding: of the rows.
    """

    positions: Tensor
    missing: Mask | None
    padding: Padding | None

    def take(self, sequence: Tensor) -> Tensor:
        """``(B, T, C)`` of ``(B, M, C)``, whichever piece of the rows holds them."""
        batch, length, channels = sequence.shape
        index, elsewhere = self.positions, None
        if self.padding is not None and self.padding.is_piece:
            index = index - self.padding.start
            elsewhere = (index < 0) | (index >= length)
            index = index.masked_fill(elsewhere, 0)
        if length == 0:
            rows = sequence.sum(dim=1, keepdim=True).expand(-1, index.shape[1], -1)  # zeros, part of the graph
        else:
            rows = sequence.gather(1, index.unsqueeze(-1).expand(batch, -1, channels))
        return total_of(zero_padding(rows, elsewhere), self.padding)

    def hidden(self, length: int, reach: int) -> Mask:
        """What a window of that ``reach`` beside these tokens leaves out: bool ``(B or 1, M)``, these and padding."""
        return _hidden(self.missing, self.positions, self.padding, length, reach)


def find_exact_tokens(sequence: Tensor, padding: Padding | None, first: int, last: int) -> ExactPlaces:
    """The ``first`` and the ``last`` tokens of each row of ``(B, M, C)``; one that is both counts as a first one."""
    return _find(padding, length_of(sequence, padding), sequence.device, first, last)


@kept
def _find(padding: Padding | None, length: int, device: torch.device, first: int, last: int) -> ExactPlaces:
    tokens = torch.full((1, 1), length, device=device) if padding is None else padding.tokens
    first_places = torch.arange(first, device=device).expand(tokens.shape[0], -1)
    last_places = tokens - last + torch.arange(last, device=device)
    places = torch.cat([first_places, last_places], dim=-1)
    if padding is None and not records_a_graph() and length >= first + last:
        return ExactPlaces(places, None, None)
    missing = torch.cat([first_places >= tokens, last_places < first], dim=-1)
    return ExactPlaces(places.masked_fill(missing, 0), Mask(missing), padding)


@kept
def _hidden(mask: Mask | None, positions: Tensor, padding: Padding | None, length: int, reach: int) -> Mask:
    missing, hidden, columns = mask_of(mask), None, length
    if padding is not None:
        hidden = padding.mask_around(reach).mask
        columns = hidden.shape[1]
        if padding.is_piece:
            positions = positions - max(0, padding.start - reach)
            outside = (positions < 0) | (positions >= columns)
            missing = outside if missing is None else outside | missing
    positions = positions if missing is None else positions.masked_fill(missing, columns)
    is_exact = torch.zeros(positions.shape[0], columns + 1, dtype=torch.bool, device=positions.device)
    is_exact = is_exact.scatter(1, positions, 1)[:, :-1]  # a number: TorchScript has no scatter of a bool
    return Mask(is_exact if hidden is None else is_exact | hidden)


def bias_as_channel(
    query: Tensor, key: Tensor, value: Tensor, score_bias: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with one more channel, whose product is ``score_bias`` ``(B or 1, H or 1, K)``.

    A bias that is learned would be a mask with a gradient, for which SDPA keeps all scores.
    """
    channel = (score_bias / scale).to(key.dtype).expand(*key.shape[:3]).unsqueeze(-1)
    # The kernels of SDPA take values as wide as keys.
    return F.pad(query, (0, 1), value=1.0), torch.cat([key, channel], dim=-1), F.pad(value, (0, 1))


def bias_at(bias: Tensor, offsets: Tensor) -> Tensor:
    """A bias of distances ``(H, 2 R + 1)`` at ``offsets`` ``(n, m)``, as ``(H, n, m)``; beyond R that of the ends."""
    longest = bias.shape[-1] // 2
    places = offsets.clamp(-longest, longest) + longest
    # A third of the time of bias[..., places], its gradient too; and no size is a product of sizes, to which a graph
    # for all lengths would be tied.
    rows = bias.unsqueeze(1).expand(-1, places.shape[0], -1)
    return rows.gather(-1, places.expand(bias.shape[0], -1, -1))


def additive_mask(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where a bool mask is True and -∞ elsewhere, which is faster to add than to fill; numbers stay as they are."""
    if allowed.dtype != torch.bool:
        return allowed.to(dtype)
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, float("-inf"))


def rotate(x: Tensor, positions: Tensor, width: int, theta: float = 10000.0) -> Tensor:
    r"""Rotate the first ``width`` channels of every head, so that q · k depends only on their distance.

    Channels i and i + width / 2 are the coordinates of a vector rotated by :math:`p\,\theta^{-2i / width}`; the other
    channels stay as they are. Angles are computed in no less than float32.

    Args:
        x: ``(B, H, N, D)``.
        positions: ``(B or 1, N)``, whole numbers.
        width: channels to rotate, even, 0 to D.
        theta: the slowest rotation takes about :math:`2\pi\theta` positions.

    Source: arXiv 2104.09864, section 3.4.
    """
    if width == 0:
        return x
    dtype = torch.promote_types(x.dtype, torch.float32)
    frequencies = theta ** (torch.arange(0, width, 2, device=x.device, dtype=dtype) / -width)
    angles = positions[:, None, :, None].to(dtype) * frequencies
    cos, sin = angles.cos(), angles.sin()
    # Split, not sliced: the gradient of a slice is as wide as the whole head.
    first, second, unrotated = torch.split(x, [width // 2, width // 2, x.shape[-1] - width], dim=-1)
    rotated = [first * cos - second * sin, first * sin + second * cos]
    return torch.cat([*(channels.to(x.dtype) for channels in rotated), unrotated], dim=-1)


def attend_by_distance(
    query: Tensor, positions: Slots, distance_bias: Tensor, call: SoftmaxCall = SoftmaxCall()
) -> Attended:
    r"""Softmax attention of ``(B, H, N, D)`` to M positions, of which query i stands at the i-th, unchecked.

    .. math:: \mathrm{out}_i = \mathrm{softmax}_j(q_i \cdot k_j / \sqrt D + a_{j - i})\, v_j

    ``distance_bias`` is a, ``(H or 1, 2 R + 1)``, of the distances -R … R; farther ones have that of the ends. Hidden
    positions have values of zeros. Returns the output ``(B, H, N, Dv)`` and, with ``need_weights``, the softmax before
    dropout; it holds N × M scores.
    """
    key, value, _, _ = for_heads(positions, query.shape[1])
    columns = torch.arange(key.shape[2], device=query.device)
    rows = torch.arange(query.shape[2], device=query.device)
    added_BHNM = bias_at(distance_bias, columns - rows.unsqueeze(-1)).to(query.dtype).unsqueeze(0)
    hidden = mask_of(positions.padding)
    allowed_B11M = allowed_at(hidden)
    if allowed_B11M is not None:
        added_BHNM = added_BHNM + additive_mask(allowed_B11M, query.dtype)
    return _attend(query, key, value, added_BHNM, call, hidden)


def attend_to_past(
    query: Tensor, key: Tensor, value: Tensor, *, padding_mask: Tensor | None = None, call: SoftmaxCall = SoftmaxCall()
) -> Attended:
    """Ordinary causal attention: the queries are the last N of the M positions and see those up to their own.

    ``padding_mask`` is bool ``(B, M)``; a position of padding sees itself, so that its output is finite. Returns as
    :func:`attend_by_distance`.
    """
    length, positions = query.shape[2], key.shape[2]
    if padding_mask is None and not is_traced() and length in (1, positions) and not call.need_weights:
        # One query, the last, sees every position.
        output = F.scaled_dot_product_attention(
            query, key, value, dropout_p=call.dropout_p, is_causal=length > 1, scale=call.scale
        )
        return output, None
    allowed = torch.ones(length, positions, dtype=torch.bool, device=query.device).tril(positions - length)
    if padding_mask is not None:
        itself = allowed & ~allowed.tril(positions - length - 1)
        allowed = (allowed & ~padding_mask[:, None, None, :]) | itself
    return _attend(query, key, value, allowed, call)


def allowed_at(padding: Tensor | None) -> Tensor | None:
    """Bool ``(B or 1, 1, 1, M)``, True at what is seen: where all is hidden all of it, whose values are zeros."""
    return None if padding is None else (~padding | padding.all(dim=-1, keepdim=True))[:, None, None, :]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    allowed: Tensor | None,
    call: SoftmaxCall,
    hidden: Tensor | None = None,
) -> Attended:
    """By SDPA, or where the softmax is asked for, which SDPA does not return, by the definition."""
    if call.need_weights:
        return _attend_by_definition(query, key, value, allowed, call, hidden)
    output = F.scaled_dot_product_attention(query, key, value, allowed, call.dropout_p, scale=call.scale)
    return output, None


def _attend_by_definition(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, call: SoftmaxCall, hidden: Tensor | None
) -> tuple[Tensor, Tensor]:
    scores_BHNK = (query @ key.transpose(-2, -1)) * call.scale_for(query)
    if allowed is not None:
        scores_BHNK = scores_BHNK + additive_mask(allowed, scores_BHNK.dtype)
    weights_BHNK = torch.softmax(scores_BHNK, dim=-1)
    if hidden is not None:  # all of a row may be, and then each has a share
        weights_BHNK = weights_BHNK.masked_fill(hidden[:, None, None, :], 0.0)
    return F.dropout(weights_BHNK, call.dropout_p) @ value, weights_BHNK


FEWEST_ROWS = 64  # queries in a block; smaller ones are slower than SDPA
SCORES = 2**21  # attention scores at a time, where they are computed in blocks: a few megabytes, which caches hold


def _rows_at_once(query: Tensor, key: Tensor) -> int:
    return SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2])


def _attend_by_onednn(
    query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None, call: SoftmaxCall, hidden: Tensor | None
) -> Attended:
    """By batched products, which PyTorch computes by oneDNN in bfloat16, but not inside SDPA.

    In inference a block of queries at a time, so small that its scores stay in the caches.
    """
    if call.need_weights or call.dropout_p > 0 or needs_graph(query, key, value):
        output, weights = _attend_by_definition(query, key, value, allowed, call, hidden)
        return output, weights if call.need_weights else None
    scale = call.scale_for(query)
    query, key, value = (x.to(autocast_dtype(x)) for x in (query, key, value))
    batch, heads, length, _ = query.shape
    keys, values = key.flatten(0, 1).transpose(-2, -1), value.flatten(0, 1)  # of all heads of the batch
    output_BHNX = query.new_empty(batch, length, heads, value.shape[-1]).transpose(1, 2)
    blocks = max(1, -(-length // max(1, _rows_at_once(query, key))))
    for queries, block in zip(torch.chunk(query, blocks, 2), torch.chunk(output_BHNX, blocks, 2), strict=True):
        scores = torch.baddbmm(queries.new_empty(()), queries.flatten(0, 1), keys, beta=0, alpha=scale)
        scores = scores.view(batch, heads, queries.shape[2], key.shape[2])
        if allowed is not None:
            scores += additive_mask(allowed, scores.dtype)
        block.copy_(torch.bmm(torch.softmax(scores, dim=-1).flatten(0, 1), values).view_as(block))
    return output_BHNX, None


def _onednn_pays(query: Tensor, key: Tensor, value: Tensor, *call: object) -> bool:
    """Only in inference, because training would keep all scores, and with enough queries at once."""
    return not needs_graph(query, key, value) and _rows_at_once(query, key) >= FEWEST_ROWS


_ONEDNN = by_onednn(_attend_by_onednn, (torch.bfloat16,), _onednn_pays)
ATTENTION = register("attention", {"onednn": _ONEDNN, "torch": Implementation(_attend)})

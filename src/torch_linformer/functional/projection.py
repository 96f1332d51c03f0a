"""Maps of a sequence of M positions to K slots: dense (linear, random) and over windows (conv, mean, max).

Every function takes the sequence as ``(B, M, C)``, one map for all heads, or as ``(B, H, M, D)``, and
``key_padding_mask`` as bool ``(B, M)``, True at padding. All but :func:`project_sequence` expect padding after the
real tokens: see :class:`torch_linformer.functional.padding.Padding`.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.implementations import Implementation, check_implementation
from torch_linformer.functional.local_blocks import put_around
from torch_linformer.functional.matmul import mix_positions
from torch_linformer.functional.padding import (
    Padding,
    check_padding_mask,
    fill_padding,
    justify,
    mask_of,
    once_of,
    start_of,
    total_of,
    zero_padding,
)
from torch_linformer.functional.torch_state import records_a_graph


def project_sequence(
    sequence: Tensor,
    proj: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    length_scaling: bool = True,
    impl: Implementation = "auto",
) -> Tensor:
    r"""Compress a sequence of M positions into K slots by a matrix.

    .. math:: \bar X = s \, E_{:M}^\top (m \odot X), \qquad s = \sqrt{M_{max} / \max(n, 1)}

    with m = 0 at padding, n the row's number of real tokens and :math:`M_{max}` the number of rows of E. The
    factor keeps the size of the slots independent of the length of the input; at full length it is 1.

    Args:
        sequence: ``(B, M, C)``, or ``(B, H, M, D)`` for one sequence a head.
        proj: E, ``(max_len, K)``, or ``(H, max_len, K)`` with a 4-D sequence; its first M rows are used.
        key_padding_mask: bool ``(B, M)``, True at padding, on any side and between tokens: row i of E belongs to
            the i-th real token.
        length_scaling: False leaves s out: the bare formula of the paper.
        impl: ``"auto"``, ``"torch"`` or ``"onednn"``: see :func:`use_implementation`.

    Returns:
        ``(B, K, C)`` or ``(B, H, K, D)``.

    Raises:
        ValueError: if the shapes do not fit, M exceeds the rows of ``proj``, or ``impl`` cannot compute it.

    Source: arXiv 2006.04768, equation 7.
    """
    check_dense(sequence, proj, key_padding_mask)
    check_implementation(impl)
    (sequence,), padding = justify(key_padding_mask, sequence)
    return compress(sequence, proj, padding, length_scaling, impl=impl)


class Sums(NamedTuple):
    """Weighted sums of the positions of a sequence, and of as many ones.

    Attributes:
        slots: ``(B, K, C)``, or ``(B, H, K, D)``.
        mass: what the weights of each slot add up to, ``(B or 1, K)``.
    """

    slots: Tensor
    mass: Tensor


def compress(
    sequence: Tensor,
    proj: Tensor,
    padding: Padding | None,
    length_scaling: bool,
    *,
    impl: Implementation = "auto",
) -> Tensor:
    """:func:`project_sequence`, unchecked, of a sequence with zeros at padding."""
    if proj.dim() == 3 and padding is not None and not padding.in_order:
        # The rows of every head would be more numbers than its keys.
        sequence, padding = padding.justify(sequence), padding.justified
    max_len, length = proj.shape[-2], sequence.shape[-2]
    rows = _rows(proj, length, padding)
    if sequence.dim() == 4 and rows.dim() > proj.dim():
        rows = rows.unsqueeze(1)
    slots = total_of(mix_positions(rows, sequence, impl=impl), padding)
    return scale_to_length(slots, max_len, length, padding) if length_scaling else slots


def compress_with_mass(sequence: Tensor, proj: Tensor, padding: Padding | None, length_scaling: bool) -> Sums:
    """:func:`compress` of ``(B, M, C)`` by ``(max_len, K)``, and of as many ones, which a bias is multiplied by."""
    max_len, length = proj.shape[0], sequence.shape[1]
    rows = _rows(proj, length, padding)
    slots = total_of(mix_positions(rows, sequence), padding)
    slots = scale_to_length(slots, max_len, length, padding) if length_scaling else slots
    if padding is None:
        mass = rows.sum(dim=0, keepdim=True)
        return Sums(slots, scale_to_length(mass, max_len, length, None) if length_scaling else mass)

    def find() -> Tensor:
        if not length_scaling:
            return padding.real.to(rows.dtype)
        return padding.length_factor(max_len, rows.dtype).expand_as(padding.mask).masked_fill(padding.mask, 0.0)

    counts_BM = padding.once(("what a position counts", max_len, length_scaling, rows.dtype), find)
    mass = counts_BM @ rows if rows.dim() == 2 else torch.bmm(counts_BM.unsqueeze(1), rows).squeeze(1)
    return Sums(slots, padding.total(mass))


def _rows(proj: Tensor, length: int, padding: Padding | None) -> Tensor:
    """The row of E of each position: ``(M, K)`` or ``(H, M, K)``; ``(B, M, K)`` where real tokens do not come first."""
    if padding is not None and not padding.in_order:
        return F.embedding(padding.ranks, proj)
    if proj.dim() == 3 and records_a_graph():
        # A slice of (H, max_len, K) is contiguous only at full length, and a graph must serve all lengths.
        return proj.index_select(1, torch.arange(length, device=proj.device))
    start = start_of(padding)
    return proj[..., start : start + length, :]


def scale_to_length(slots: Tensor, max_len: int, length: int, padding: Padding | None) -> Tensor:
    """``slots`` times s, the length factor of :func:`project_sequence`, for a sequence of ``length`` positions."""
    if padding is None:
        factor: float = (max_len / max(length, 1)) ** 0.5  # math.sqrt would tie an exported graph to one length
        # A comparison would tie it too.
        return slots if not records_a_graph() and factor == 1 else slots * factor
    return slots * padding.length_factor(max_len, slots.dtype).view(-1, *[1] * (slots.dim() - 1))


def convolve_windows(sequence: Tensor, kernel: Tensor, num_slots: int, padding: Padding | None = None) -> Tensor:
    r"""Slot j is :math:`\sum_i g_i x_{jw+i}` over its window of w positions: a banded E with one kernel g.

    ``kernel`` is ``(w,)``, or ``(H, w)`` with a 4-D sequence; padding follows the real tokens. Returns ``(B, K, C)`` or
    ``(B, H, K, D)``; slots without a real token are zero (see :func:`empty_windows`).
    """
    window = kernel.shape[-1]
    windows = _windows(zero_padding(sequence, mask_of(padding)), window, num_slots, padding)
    if kernel.dim() == 2:
        kernel = kernel[:, None]
    return total_of(_among_all((kernel[..., None, :] @ windows).squeeze(-2), window, num_slots, padding), padding)


def average_windows(sequence: Tensor, window: int, num_slots: int, padding: Padding | None = None) -> Tensor:
    """Slot j is the mean of the real tokens in window j; zero where there is none. Shapes: :func:`convolve_windows`.

    One product with weights 1 / n for the n real tokens of a window, and 0 at padding, where numbers must be finite.
    """
    heads = sequence.shape[1] if sequence.dim() == 4 else None
    # Heads are split from channels in this order: a view of those of all heads.
    flat_BMC = sequence if heads is None else sequence.transpose(1, 2).flatten(2)
    windows_BnwC = _windows(flat_BMC, window, num_slots, padding)

    def find() -> Tensor:
        real_BM = sequence.new_ones(1, sequence.shape[-2]) if padding is None else padding.real.to(sequence.dtype)
        real_BnwX = _windows(real_BM.unsqueeze(-1), window, num_slots, padding)
        tokens_BK = tokens_per_window(sequence, window, num_slots, padding, least=1)
        first = start_of(padding) // window
        return real_BnwX / tokens_BK[:, first : first + real_BnwX.shape[1], None, None]

    weights_BnwX = once_of(padding)(("weights of means", window, num_slots, sequence.dtype), find)
    means_BKC = _among_all((weights_BnwX.transpose(-2, -1) @ windows_BnwC).squeeze(-2), window, num_slots, padding)
    totals_BKC = total_of(means_BKC, padding)
    return totals_BKC if heads is None else torch.unflatten(totals_BKC, -1, (heads, -1)).transpose(1, 2)


def max_windows(sequence: Tensor, window: int, num_slots: int, padding: Padding | None = None) -> Tensor:
    """Slot j is the maximum, channel by channel, over the real tokens in window j; zero where there is none.

    In half precision a gradient goes to another position where the two largest of a window differ by less than their
    rounding error: the gradients of an attention then err 5 to 40 times as much as those of ordinary attention. Where
    maxima are distinct they err at most twice as much, except for the digits lost where all slots have a common mean.
    """
    filled = fill_padding(sequence, mask_of(padding), float("-inf"))
    peaks = _windows(filled, window, num_slots, padding, fill=float("-inf")).amax(dim=-2)
    peaks = _among_all(peaks, window, num_slots, padding, fill=float("-inf"))
    if padding is not None:
        peaks = padding.maximum(peaks)
    empty = empty_windows(sequence, window, num_slots, padding)
    return peaks.masked_fill(_like_slots(empty, sequence), 0.0)


def empty_windows(sequence: Tensor, window: int, num_slots: int, padding: Padding | None = None) -> Tensor:
    """Bool ``(B or 1, K)``: True at slots whose window holds no real token, which must get no attention."""

    def find() -> Tensor:
        return _starts(sequence, window, num_slots) >= _tokens(sequence, padding)

    return once_of(padding)(("empty windows", window, num_slots), find)


def tokens_per_window(sequence: Tensor, window: int, num_slots: int, padding: Padding | None, least: int = 0) -> Tensor:
    """Real tokens in each slot's window, ``(B or 1, K)``; where there are fewer, ``least``."""

    def find() -> Tensor:
        left = _tokens(sequence, padding) - _starts(sequence, window, num_slots)
        return left.clamp(min=least, max=window)

    return once_of(padding)(("tokens of windows", window, num_slots, least), find)


def _tokens(sequence: Tensor, padding: Padding | None) -> Tensor | int:
    """Real tokens of each row, ``(B, 1)``, or of all."""
    return sequence.shape[-2] if padding is None else padding.tokens


def _starts(sequence: Tensor, window: int, num_slots: int) -> Tensor:
    """The first position of each window, ``(1, K)``."""
    return torch.arange(0, num_slots * window, window, device=sequence.device).unsqueeze(0)


def _windows(
    sequence: Tensor, window: int, num_slots: int, padding: Padding | None = None, fill: float = 0.0
) -> Tensor:
    """``(…, M, C)`` cut into ``(…, n, w, C)``, the windows that it reaches into, filled up with ``fill``."""
    length, inside = sequence.shape[-2], start_of(padding) % window
    # In a compiled graph for all lengths the number of windows must not depend on the length.
    count = num_slots if records_a_graph() else -(-(inside + length) // window)
    padded = put_around(sequence, inside, count * window - inside - length, fill)
    return padded.view(*padded.shape[:-2], count, window, padded.shape[-1])


def _among_all(slots: Tensor, window: int, num_slots: int, padding: Padding | None, fill: float = 0.0) -> Tensor:
    """The slots of :func:`_windows` among all ``num_slots``, the others ``fill``."""
    before = start_of(padding) // window
    return put_around(slots, before, num_slots - before - slots.shape[-2], fill)


def _like_slots(per_slot: Tensor, sequence: Tensor) -> Tensor:
    """``(B or 1, K)`` shaped to go with slots ``(B, K, C)`` or ``(B, H, K, D)``."""
    return per_slot.unsqueeze(-1) if sequence.dim() == 3 else per_slot[:, None, :, None]


def check_dense(sequence: Tensor, proj: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise ``ValueError`` where :func:`project_sequence` cannot take these."""
    if sequence.dim() not in (3, 4):
        raise ValueError(f"sequence must be (B, M, C) or (B, H, M, D), got shape {tuple(sequence.shape)}")
    if proj.dim() == 3 and (sequence.dim() != 4 or proj.shape[0] != sequence.shape[1]):
        raise ValueError(
            "proj with one matrix a head must be (H, max_len, K) beside a sequence (B, H, M, D), "
            f"got proj {tuple(proj.shape)} and sequence {tuple(sequence.shape)}"
        )
    if proj.dim() not in (2, 3):
        raise ValueError(f"proj must be (max_len, K) or (H, max_len, K), got shape {tuple(proj.shape)}")
    check_length(sequence.shape[-2], proj.shape[-2])
    check_padding_mask(key_padding_mask, sequence.shape[0], sequence.shape[-2])


def check_length(length: int, max_len: int) -> None:
    """Raise ``ValueError`` where a sequence is longer than the projection has rows."""
    if length > max_len:
        raise ValueError(
            f"the sequence has {length} positions but max_len is {max_len}: "
            f"cut the input to {max_len}, or call resize_max_len({length}) on the model"
        )

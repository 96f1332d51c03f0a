"""Slots by maps that do not look at the input: a matrix with a row for each position, or windows of positions.

Every function takes the sequence as ``(B, M, C)``, one map for all heads, or as ``(B, H, M, D)``, and
``key_padding_mask`` as bool ``(B, M)``, True at padding. Where a function takes a ``Padding``, it follows the real
tokens: see :class:`torch_linformer.functional.padding.Padding`.
"""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.implementations import Name, check_implementation
from torch_linformer.functional.padding import (
    Mask,
    Padding,
    check_padding_mask,
    check_shapes,
    fill_padding,
    justify,
    kept,
    mask_of,
    put_around,
    start_of,
    total_of,
    zero_padding,
)
from torch_linformer.functional.products import MIXTURE, mix_positions
from torch_linformer.functional.pytorch import records_a_graph


class Slots(NamedTuple):
    """Slots, each a mixture of positions; or all positions, in ordinary attention.

    Attributes:
        keys: ``(B, Hkv, K, D)``; heads of keys and values divide those of the queries.
        values: ``(B, Hkv, K, Dv)``.
        padding: bool ``(B or 1, K)``, True at slots that get no weight.
        bias: ``(B or 1, H or Hkv or 1, K)``, added to their scores: log m for a slot that stands for m tokens.
    """

    keys: Tensor
    values: Tensor
    padding: Mask | Tensor | None = None
    bias: Tensor | None = None


def project_sequence(
    sequence: Tensor,
    proj: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    length_scaling: bool = True,
    impl: Name = "auto",
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
        impl: ``"auto"``, ``"torch"``, ``"rows"`` or ``"onednn"``: see :func:`use_implementation`.

    Returns:
        ``(B, K, C)`` or ``(B, H, K, D)``.

    Raises:
        ValueError: if the shapes do not fit, M exceeds the rows of ``proj``, or ``impl`` cannot compute it.

    Source: arXiv 2006.04768, equation 7.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import project_sequence
        >>> project_sequence(torch.ones(1, 3, 2), torch.eye(4), length_scaling=False)[0, :, 0]
        tensor([1., 1., 1., 0.])
    """
    check_dense(sequence, proj, key_padding_mask)
    check_implementation(impl, MIXTURE)
    (sequence,), padding = justify(key_padding_mask, sequence)
    return compress(sequence, proj, padding, length_scaling, impl=impl)


def compress(
    sequence: Tensor,
    proj: Tensor,
    padding: Padding | None,
    length_scaling: bool,
    *,
    impl: Name = "auto",
    rows: Tensor | None = None,
) -> Tensor:
    """:func:`project_sequence`, unchecked, of a sequence with zeros at padding; ``rows``: of E, if known."""
    if proj.dim() == 3 and padding is not None and not padding.in_order:
        # The rows of every head would be more numbers than its keys.
        sequence, padding = padding.justify(sequence), padding.justified
    max_len, length = proj.shape[-2], sequence.shape[-2]
    rows = _rows(proj, length, padding) if rows is None else rows
    if sequence.dim() == 4 and rows.dim() > proj.dim():
        rows = rows.unsqueeze(1)
    slots = total_of(mix_positions(rows, sequence, impl=impl), padding)
    return scale_to_length(slots, max_len, length, padding) if length_scaling else slots


def compress_with_mass(
    sequence: Tensor, proj: Tensor, padding: Padding | None, length_scaling: bool
) -> tuple[Tensor, Tensor]:
    """:func:`compress` of ``(B, M, C)`` by ``(max_len, K)``, and what the weights of each add to, ``(B or 1, K)``."""
    max_len, length = proj.shape[0], sequence.shape[1]
    rows = _rows(proj, length, padding)
    slots = compress(sequence, proj, padding, length_scaling, rows=rows)
    if padding is None:
        mass = rows.sum(dim=0, keepdim=True)
        return slots, scale_to_length(mass, max_len, length, None) if length_scaling else mass
    counts_BM = _position_counts(padding, max_len if length_scaling else None, rows.dtype)
    mass = counts_BM @ rows if rows.dim() == 2 else torch.bmm(counts_BM.unsqueeze(1), rows).squeeze(1)
    return slots, padding.total(mass)


@kept
def _position_counts(padding: Padding, max_len: int | None, dtype: torch.dtype) -> Tensor:
    """What each position counts in a mass, ``(B, M)``: 0 at padding, else 1 or, with ``max_len``, the length factor."""
    if max_len is None:
        return padding.real.to(dtype)
    return padding.length_factor(max_len, dtype).expand_as(padding.mask).masked_fill(padding.mask, 0.0)


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


def check_dense(sequence: Tensor, proj: Tensor, key_padding_mask: Tensor | None) -> None:
    """Raise ``ValueError`` where :func:`project_sequence` cannot take these."""
    check_shapes(sequence.dim() in (3, 4), "sequence must be (B, M, C) or (B, H, M, D)", sequence)
    check_shapes(proj.dim() in (2, 3), "proj must be (max_len, K) or (H, max_len, K)", proj)
    fits = proj.dim() == 2 or (sequence.dim() == 4 and proj.shape[0] == sequence.shape[1])
    expected = "proj with one matrix a head must be (H, max_len, K) beside a sequence (B, H, M, D)"
    check_shapes(fits, expected, proj, sequence)
    check_length(sequence.shape[-2], proj.shape[-2])
    check_padding_mask(key_padding_mask, sequence.shape[0], sequence.shape[-2])


def check_length(length: int, max_len: int) -> None:
    """Raise ``ValueError`` where a sequence is longer than the projection has rows."""
    if length > max_len:
        raise ValueError(
            f"the sequence has {length} positions but max_len is {max_len}: "
            f"cut the input to {max_len}, or call resize_max_len({length}) on the model"
        )


def johnson_lindenstrauss_k(n: int, d: int, eps: float) -> int:
    r"""Projected length that Theorem 2 of the Linformer paper guarantees for a relative error ``eps``.

    .. math:: K = \lceil \min(9\, d \ln d,\; 5 \ln n) / \varepsilon^2 \rceil

    The constants 9 and 5 are those inside the paper's Θ. This is a worst-case bound over all inputs: the spectra of
    trained attention fall off fast, and measured models need far fewer slots.

    Args:
        n: sequence length in tokens, at least 1.
        d: width of one head, at least 1.
        eps: relative error, in (0, 1).

    Returns:
        The number of slots, at least 1.

    Raises:
        ValueError: if an argument lies outside its range.

    Source: arXiv 2006.04768, Theorem 2.

    Example:
        >>> from torch_linformer.functional import johnson_lindenstrauss_k
        >>> johnson_lindenstrauss_k(n=4096, d=64, eps=0.5)
        167
    """
    if n < 1 or d < 1:
        raise ValueError(f"n and d must be at least 1, got n={n} and d={d}")
    if not 0.0 < eps < 1.0:
        raise ValueError(f"eps must lie strictly between 0 and 1, got {eps}")
    return max(1, math.ceil(min(9 * d * math.log(d), 5 * math.log(n)) / eps**2))


def segment_slots(
    key: Tensor,
    value: Tensor,
    k: int,
    *,
    reduce: Literal["mean", "max", "conv"] = "mean",
    kernel: Tensor | None = None,
    max_len: int | None = None,
    key_padding_mask: Tensor | None = None,
    mass: bool = False,
) -> Slots:
    r"""K slots of the keys and the values of M positions, each made of w consecutive real tokens.

    .. math:: \bar k_j = \frac{1}{n_j} \sum_{i < w} k_{jw + i} \quad \text{(mean)}, \qquad
        \bar k_j = \sum_{i < w} g_i\, k_{jw + i} \quad \text{(conv)}, \qquad w = \lceil max\_len / K \rceil

    for the :math:`n_j` tokens of segment j; ``max`` takes each channel's largest. A slot without a token is hidden.

    Args:
        key: ``(B, H, M, D)``.
        value: ``(B, H, M, Dv)``.
        k: number of slots K, 1 to ``max_len``.
        reduce: ``"mean"``, ``"max"`` or ``"conv"``.
        kernel: g of ``"conv"``, ``(w,)`` or ``(H, w)``.
        max_len: longest sequence, M by default: with the same one, segments have the same length in every input.
        key_padding_mask: bool ``(B, M)``, True at padding, on any side and between tokens.
        mass: add :math:`\log n_j` to the scores of each slot, as for the tokens that it stands for.

    Raises:
        ValueError: for shapes that do not fit, or a number of slots out of range.

    Source: arXiv 2006.04768, section 4 (general projections).

    Example:
        >>> import torch
        >>> from torch_linformer.functional import segment_slots
        >>> sequence = torch.arange(6.0).view(1, 1, 6, 1)
        >>> segment_slots(sequence, sequence, k=3).keys.flatten()
        tensor([0.5000, 2.5000, 4.5000])
    """
    longest = key.shape[-2] if max_len is None else max_len
    fits = key.dim() == value.dim() == 4 and key.shape[:3] == value.shape[:3] and key.shape[2] <= longest
    check_shapes(fits, "key and value must be (B, H, M, D) and (B, H, M, Dv) with M up to max_len", key, value)
    if not 1 <= k <= longest:
        raise ValueError(f"k must lie between 1 and {longest} positions, got {k}")
    window = -(-longest // k)
    if (kernel is None) == (reduce == "conv") or (kernel is not None and kernel.shape[-1] != window):
        raise ValueError(f"reduce='conv' needs a kernel of {window} weights, and no other takes one; got {reduce!r}")
    if reduce not in ("mean", "max", "conv"):
        raise ValueError(f"reduce must be one of mean, max, conv, got {reduce!r}")
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    (key, value), padding = justify(key_padding_mask, key, value)
    if kernel is not None:
        keys, values = (convolve_windows(x, kernel, k, padding) for x in (key, value))
    else:
        make = average_windows if reduce == "mean" else max_windows
        keys, values = (make(x, window, k, padding) for x in (key, value))
    windows = padding, window, k, key.shape[2], key.device
    bias = tokens_per_window(*windows, 1).to(key.dtype).log().unsqueeze(1) if mass else None
    return Slots(keys, values, empty_windows(*windows), bias)


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
    weights_BnwX = _mean_weights(padding, window, num_slots, sequence.shape[-2], sequence.device, sequence.dtype)
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
    empty = empty_windows(padding, window, num_slots, sequence.shape[-2], sequence.device)
    return fill_padding(peaks, empty.mask, 0.0)


@kept
def tokens_per_window(
    padding: Padding | None, window: int, num_slots: int, length: int, device: torch.device, least: int
) -> Tensor:
    """Real tokens in each slot's window, ``(B or 1, K)``; where there are fewer, ``least``."""
    starts_1K = torch.arange(0, num_slots * window, window, device=device).unsqueeze(0)
    return ((length if padding is None else padding.tokens) - starts_1K).clamp(min=least, max=window)


@kept
def empty_windows(padding: Padding | None, window: int, num_slots: int, length: int, device: torch.device) -> Mask:
    """``(B or 1, K)``: True at slots whose window holds no real token, which must get no attention."""
    starts_1K = torch.arange(0, num_slots * window, window, device=device).unsqueeze(0)
    return Mask(starts_1K >= (length if padding is None else padding.tokens))


@kept
def _mean_weights(
    padding: Padding | None, window: int, num_slots: int, length: int, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """1 / n at the n real tokens of each window, ``(B or 1, n, w, 1)``."""
    real_BM = torch.ones(1, length, dtype=dtype, device=device) if padding is None else padding.real.to(dtype)
    real_BnwX = _windows(real_BM.unsqueeze(-1), window, num_slots, padding)
    tokens_BK = tokens_per_window(padding, window, num_slots, length, device, 1)
    first = start_of(padding) // window
    return real_BnwX / tokens_BK[:, first : first + real_BnwX.shape[1], None, None]


def reached_windows(length: int, window: int, num_slots: int) -> int:
    """Windows that ``length`` positions reach into; all, in a graph, whose slots cannot depend on the length."""
    return num_slots if records_a_graph() else -(-length // window)


def are_reached(length: int, window: int, num_slots: int) -> bool:
    """Whether it is known that each of the windows holds a position."""
    return not records_a_graph() and length > 0 and (num_slots - 1) * window < length


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

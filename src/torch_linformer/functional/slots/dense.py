"""Dense maps of a sequence of M positions to K slots: a matrix with a row for each position; and the K of theory.

Every function takes the sequence as ``(B, M, C)``, one map for all heads, or as ``(B, H, M, D)``, and
``key_padding_mask`` as bool ``(B, M)``, True at padding. All but :func:`project_sequence` expect padding after the
real tokens: see :class:`torch_linformer.functional.padding.Padding`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.implementations import Name, check_implementation
from torch_linformer.functional.padding import Padding, check_padding_mask, justify, start_of, total_of
from torch_linformer.functional.products import MIXTURE, mix_positions


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
        impl: ``"auto"``, ``"torch"`` or ``"onednn"``: see :func:`use_implementation`.

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


def compress_with_mass(
    sequence: Tensor, proj: Tensor, padding: Padding | None, length_scaling: bool
) -> tuple[Tensor, Tensor]:
    """:func:`compress` of ``(B, M, C)`` by ``(max_len, K)``, and of as many ones, which a bias is multiplied by.

    Returns slots ``(B, K, C)``, and what the weights of each add up to, ``(B or 1, K)``.
    """
    max_len, length = proj.shape[0], sequence.shape[1]
    rows = _rows(proj, length, padding)
    slots = total_of(mix_positions(rows, sequence), padding)
    slots = scale_to_length(slots, max_len, length, padding) if length_scaling else slots
    if padding is None:
        mass = rows.sum(dim=0, keepdim=True)
        return slots, scale_to_length(mass, max_len, length, None) if length_scaling else mass

    counts_BM = padding.derive(_position_counts, max_len if length_scaling else None, rows.dtype)
    mass = counts_BM @ rows if rows.dim() == 2 else torch.bmm(counts_BM.unsqueeze(1), rows).squeeze(1)
    return slots, padding.total(mass)


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

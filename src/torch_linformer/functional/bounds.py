"""What theory says about the projected length K."""

import math


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

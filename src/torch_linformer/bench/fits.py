"""Curves through measured costs: how a cost grows, and an estimate of it at lengths that were not measured."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import nnls
from scipy.stats import linregress

Points = Sequence[tuple[float, float]]  # (length, cost), both positive


def fit_quadratic(points: Points) -> np.polynomial.Polynomial | None:
    """The cost a + b·N + c·N² with the least squares of *relative* errors; None for fewer than three lengths.

    A cost is a sum of work, so no term is negative; relative errors let short lengths count as much as long ones.
    """
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(set(lengths)) < 3:
        return None
    units = lengths.max() ** np.arange(3)  # powers of numbers up to 1 keep the three columns comparable
    powers = lengths[:, None] ** np.arange(3) / units
    terms, _ = nnls(powers / costs[:, None], np.ones_like(costs))
    return np.polynomial.Polynomial(terms / units)


def fit_exponent(points: Points) -> float | None:
    """The p of cost ∝ Nᵖ by least squares in logarithms: 1 is linear; None for fewer than two lengths."""
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    return float(linregress(np.log(lengths), np.log(costs)).slope) if len(set(lengths)) > 1 else None

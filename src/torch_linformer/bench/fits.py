"""Curves through measured costs: how a cost grows, and what it would be where nobody measured it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

Points = Sequence[tuple[float, float]]  # (length, cost), both positive


@dataclass(frozen=True, kw_only=True)
class Quadratic:
    """A cost ``constant + linear · N + quadratic · N²``, no term of which is negative."""

    constant: float
    linear: float
    quadratic: float

    def __call__(self, length: float) -> float:
        return self.constant + self.linear * length + self.quadratic * length**2


def fit_quadratic(points: Points) -> Quadratic | None:
    """The quadratic with the least squares of *relative* errors; None through fewer than three lengths.

    A cost is a sum of work, so every term is at least 0; relative errors let short lengths count as much as long ones.
    """
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(set(lengths)) < 3:
        return None
    unit = lengths.max()  # powers of numbers up to 1 keep the three columns comparable
    powers = (lengths / unit)[:, None] ** np.arange(3)
    terms, _ = nnls(powers / costs[:, None], np.ones_like(costs))
    return Quadratic(constant=float(terms[0]), linear=float(terms[1] / unit), quadratic=float(terms[2] / unit**2))


def fit_exponent(points: Points) -> float | None:
    """The p of cost ∝ Nᵖ by least squares in logarithms: 1 is linear; None through fewer than two lengths."""
    lengths, costs = np.asarray(points, dtype=np.float64).reshape(-1, 2).T
    if len(set(lengths)) < 2:
        return None
    x, y = np.log(lengths), np.log(costs)
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())

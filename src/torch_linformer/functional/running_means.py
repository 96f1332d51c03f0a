"""Weighted means of everything up to each position: the slots of causal attention.

Position i enters slot j with weight :math:`w_{tij} = e_{ij} \\exp(-\\lambda_j (p_t - p_i))`, where p counts the real
tokens. In a chunk that begins after :math:`p_0` tokens the mean is the same with the weights
:math:`g_{ij} = e_{ij} \\exp(\\lambda_j (p_i - p_0))`, because :math:`\\exp(-\\lambda_j (p_t - p_0))` stands in both
its numerator and its denominator; what came before the chunk enters as two sums. Derivation: docs/causal.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class SlotWeights(NamedTuple):
    r"""How positions enter the slots: E (or F) of causal attention.

    Attributes:
        decay: :math:`\lambda \ge 0`, nats that a weight fades with every real token, ``(K,)`` or ``(H, K)``.
        weights: :math:`e > 0`, ``(N, K)``, ``(H, N, K)`` or ``(B, H, N, K)``; None where all positions count alike.
    """

    decay: Tensor
    weights: Tensor | None = None

    def part(self, positions: slice) -> "SlotWeights":
        """The weights of some positions."""
        return self if self.weights is None else SlotWeights(self.decay, self.weights[..., positions, :])


class Clock:
    """Real tokens counted along chunks of positions.

    Args:
        real: bool ``(B or 1, n, c)``: which positions of n chunks of c hold a token.

    Attributes:
        ticks: tokens of the chunk up to each position, ``(B or 1, n, c)``.
        elapsed: tokens before each chunk and, last, in all, ``(B or 1, n + 1)``.
    """

    def __init__(self, real: Tensor, dtype: torch.dtype) -> None:
        self.real = real
        self.ticks = real.to(dtype).cumsum(dim=-1)
        self.elapsed = F.pad(self.ticks[..., -1].cumsum(dim=-1), (1, 0))

    def carry(self, decay_HK: Tensor, added: Tensor, start: Tensor) -> Tensor:
        """Sums ``(B, H, n + 1, K, X)`` before each chunk, and last behind them all.

        Args:
            decay_HK: nats a token, ``(H or 1, K)``.
            added: what each chunk adds, ``(B, H, n, K, X)``, as seen from the chunk's beginning.
            start: the sums before the first chunk, ``(B, H, K, X)``.
        """
        chunks = added.shape[2]
        gaps = self.elapsed.unsqueeze(-1) - self.elapsed[:, None, :chunks]
        before = torch.ones_like(gaps[0], dtype=torch.bool).tril(-1)
        exponent = -decay_HK[..., None, None] * gaps[:, None, None]
        fade = exponent.masked_fill(~before, float("-inf")).exp()
        faded_start = torch.exp(-decay_HK[..., None] * self.elapsed[:, None, None]).unsqueeze(-1) * start.unsqueeze(3)
        sums: Tensor = fade @ added.transpose(2, 3) + faded_start
        return sums.transpose(2, 3)


class RunningMeans:
    """Means of a sequence in K slots at every position, as two products and without the means themselves.

    Args:
        clock: of the chunks.
        proj: the weights of the positions, those of each chunk together: ``(…, n, c, K)``.
        sequence: ``(B, H, n, c, X)``, zeros at padding.
        sums: weighted sums of what came before, ``(B, H, K, X)``.
        mass: sums of the weights of what came before, ``(B, H, K)``.
    """

    def __init__(self, clock: Clock, proj: SlotWeights, sequence: Tensor, sums: Tensor, mass: Tensor) -> None:
        decay = proj.decay.to(sums.dtype)
        decay = decay if decay.dim() == 2 else decay.unsqueeze(0)
        # (B or 1, H or 1, n, c, K): weights as seen from the beginning of the chunk
        grown = torch.exp(decay[:, None, None] * clock.ticks[:, None, :, :, None])
        if proj.weights is not None:
            grown = grown * proj.weights.to(grown.dtype)
        grown = grown.masked_fill(~clock.real[:, None, :, :, None], 0.0)
        added_mass = grown.cumsum(dim=-2)
        self.sequence, self.grown = sequence, grown.to(sequence.dtype)
        added = (self.grown.mT @ sequence).to(sums.dtype)
        carried = clock.carry(decay, added, sums)
        masses = clock.carry(decay, added_mass[..., -1, :].unsqueeze(-1), mass.unsqueeze(-1)).squeeze(-1)
        self.before = carried[:, :, :-1].to(sequence.dtype)
        self.sums, self.mass_behind = carried[:, :, -1], masses[:, :, -1]
        mass = added_mass + masses[:, :, :-1].unsqueeze(-2)
        # No token yet: the sums are zeros too, and so is their mean.
        self.mass = mass.masked_fill(mass == 0, 1.0)

    def products(self, queries: Tensor, own: Tensor) -> Tensor:
        """``q · mean`` of every position and slot, ``(B, H, n, c, K)``; ``own`` are q · x within the chunks."""
        sums = own.tril() @ self.grown + queries @ self.before.mT
        return (sums / self.mass).to(queries.dtype)

    def mix(self, weights: Tensor) -> Tensor:
        """``weights`` ``(B, H, n, c, K)`` times the means: ``(B, H, n, c, X)``."""
        weights = (weights / self.mass).to(weights.dtype)
        return (weights @ self.grown.mT).tril() @ self.sequence + weights @ self.before

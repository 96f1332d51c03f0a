"""Weighted means of everything up to each position: the slots of causal attention.

Position i enters slot j with weight :math:`w_{tij} = e_{ij} \\exp(-\\lambda_j (p_t - p_i))`, where p counts the real
tokens. In a chunk that begins after :math:`p_0` tokens the mean is the same with the weights
:math:`g_{ij} = e_{ij} \\exp(\\lambda_j (p_i - p_0))`, because :math:`\\exp(-\\lambda_j (p_t - p_0))` appears in both
its numerator and its denominator; what came before the chunk enters as two sums. Derivation: docs/causal.md.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.attention.spans import blocks_of, first_positions
from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.padding import reorder

CHUNK = 64  # positions in a chunk
GROUP = 8  # chunks in a group, in a graph


class SlotWeights(NamedTuple):
    r"""How positions enter the slots: E (or F) of causal attention.

    Attributes:
        decay: :math:`\lambda \ge 0`, nats that a weight fades with every real token, ``(K,)`` or ``(H, K)``.
        weights: :math:`e > 0`, ``(N, K)``, ``(H, N, K)`` or ``(B, H, N, K)``; None where all positions count alike.
    """

    decay: Tensor
    weights: Tensor | None = None

    def map(self, function: Callable[[Tensor], Tensor]) -> "SlotWeights":
        """The same decay, and ``function`` of the weights if there are any."""
        return self if self.weights is None else self._replace(weights=function(self.weights))

    def split(self, sizes: list[int]) -> "list[SlotWeights]":
        """The weights of consecutive pieces of these sizes."""
        if self.weights is None:
            return [self] * len(sizes)
        return [self._replace(weights=weights) for weights in torch.split(self.weights, sizes, dim=-2)]


class CausalSlots(NamedTuple):
    """The slots of causal attention.

    Attributes:
        weights_k: the weights with which positions enter the slots of keys.
        weights_v: those of values; None for the same.
        bias: on the scores of slots, ``(K,)`` or ``(H, K)``.
        chunk_size: positions computed at once; changes only rounding, and bounds how fast weights may fade.
    """

    weights_k: SlotWeights
    weights_v: SlotWeights | None = None
    bias: Tensor | None = None
    chunk_size: int = CHUNK

    def map_weights(self, function: Callable[[Tensor], Tensor]) -> "CausalSlots":
        """The slots with ``function`` of the weights of positions, where there are any."""
        weights_v = None if self.weights_v is None else self.weights_v.map(function)
        return self._replace(weights_k=self.weights_k.map(function), weights_v=weights_v)

    def reorder(self, order: Tensor | None) -> "CausalSlots":
        """The weights of positions in the ``order`` of a :class:`Padding`."""
        if order is None:
            return self
        return self.map_weights(lambda weights: reorder(weights[(None,) * (4 - weights.dim())], order, dim=2))

    def split(self, sizes: list[int]) -> "list[CausalSlots]":
        """The slots of consecutive pieces of these sizes."""
        pieces = [[None] * len(sizes) if proj is None else proj.split(sizes) for proj in self[:2]]
        return [self._replace(weights_k=proj_k, weights_v=proj_v) for proj_k, proj_v in zip(*pieces, strict=True)]


class Clock:
    """Real tokens counted along n chunks of c positions; ``real`` is bool ``(B, n, c)``, or None where all are.

    Attributes:
        ticks: tokens of the chunk up to each position, ``(B, n, c)``, or ``(1, 1, c)`` where all are real.
        tokens: of each chunk, ``(B or 1, n)``.
    """

    def __init__(self, real: Tensor | None, chunks: tuple[int, int], device: torch.device, dtype: torch.dtype) -> None:
        self.real, (number, size) = real, chunks
        if real is None:
            self.ticks = torch.arange(1, size + 1, device=device, dtype=dtype)[None, None]
            self.tokens = torch.full((1, number), size, device=device, dtype=dtype)
        else:
            self.ticks = real.to(dtype).cumsum(dim=-1)
            self.tokens = self.ticks[..., -1]

    def carry(self, decay_HK: Tensor, added_BHnKX: Tensor, start_BHKX: Tensor) -> tuple[Tensor, Tensor]:
        """Sums ``(B, H, n, K, X)`` before each chunk, and those after the last one, ``(B, H, K, X)``.

        They decay by ``decay_HK`` nats a token (H may be 1) from ``start_BHKX``, to which each chunk adds, relative to
        its beginning, ``added_BHnKX``.
        """
        if records_a_graph():
            return self._carry_by_groups(decay_HK, added_BHnKX, start_BHKX)
        elapsed = F.pad(self.tokens.cumsum(dim=-1), (1, 0)).unsqueeze(1)
        sums = _faded_sums(decay_HK, elapsed, elapsed[..., :-1], added_BHnKX, start_BHKX)
        return sums[:, :, :-1], sums[:, :, -1]

    def _carry_by_groups(self, decay_HK: Tensor, added_BHnKX: Tensor, start_BHKX: Tensor) -> tuple[Tensor, Tensor]:
        """From group to group, and in each from chunk to chunk: a graph has all chunks, and n² factors are too many."""
        chunks = added_BHnKX.shape[2]
        groups = blocks_of(chunks, GROUP)
        fill = groups * GROUP - chunks
        added = torch.unflatten(F.pad(added_BHnKX, (0, 0, 0, 0, 0, fill)), 2, (groups, GROUP))
        tokens = torch.unflatten(F.pad(self.tokens, (0, fill)), 1, (groups, GROUP))
        # Tokens before each chunk of a group and, last, in the group, (B, 1, groups, GROUP + 1).
        elapsed = F.pad(tokens.cumsum(dim=-1), (1, 0)).unsqueeze(1)
        decay, rest = decay_HK.unsqueeze(1), elapsed[..., -1:] - elapsed[..., :-1]
        # Relative to the end of a group, because growth from its beginning would leave the range of float32.
        group_sums = (torch.exp(-decay.unsqueeze(2) * rest.unsqueeze(-1)).unsqueeze(-1) * added).sum(dim=3)
        before_groups = F.pad(elapsed[:, 0, :, -1].cumsum(dim=-1), (1, 0)).unsqueeze(1)
        sums = _faded_sums(decay_HK, before_groups, before_groups[..., 1:], group_sums, start_BHKX)
        in_groups = _faded_sums(decay, elapsed, elapsed[..., :-1], added, sums[:, :, :-1])
        return first_positions(in_groups[:, :, :, :-1].flatten(2, 3), chunks), sums[:, :, -1]


def _faded_sums(decay: Tensor, elapsed: Tensor, seen_from: Tensor, added: Tensor, start: Tensor) -> Tensor:
    """Sums ``(…, n + 1, K, X)`` before each of n pieces of a sequence, and last after them all.

    They decay by ``(…, K)`` nats a token from ``start`` ``(…, K, X)``. Before each piece and, last, in all there are
    ``elapsed`` tokens ``(…, n + 1)``; what each adds ``(…, n, K, X)`` is relative to ``seen_from`` ``(…, n)``.
    """
    gaps = (elapsed.unsqueeze(-1) - seen_from.unsqueeze(-2)).unsqueeze(-3)
    later = torch.ones(gaps.shape[-2:], dtype=torch.bool, device=gaps.device).triu()
    fade = (-decay[..., None, None] * gaps).masked_fill(later, float("-inf")).exp()
    faded_start = torch.exp(-decay[..., None] * elapsed.unsqueeze(-2)).unsqueeze(-1) * start.unsqueeze(-2)
    sums: Tensor = fade @ added.transpose(-3, -2) + faded_start
    return sums.transpose(-3, -2)


class WeightsOfChunks:
    """The weights ``proj`` of positions ``(…, n, c, K)``, relative to the beginning of their chunk, and their sums.

    Attributes:
        decay: ``(H or 1, K)``.
        grown: g, ``(B or 1, H or 1, n, c, K)``, 0 at padding.
        mass: G, the sums of weights up to each position, from those before the chunks on, ``(B, H, n, c, K)``.
        mass_after: sums of the weights of all, ``(B, H, K)``.
    """

    def __init__(self, clock: Clock, proj: SlotWeights, mass: Tensor) -> None:
        self.clock = clock
        decay = proj.decay.to(mass.dtype)
        self.decay = decay if decay.dim() == 2 else decay.unsqueeze(0)
        grown = torch.exp(self.decay[:, None, None] * clock.ticks[:, None, :, :, None])
        grown = grown.expand(-1, -1, clock.tokens.shape[1], -1, -1)
        absent = None if clock.real is None else ~clock.real[:, None, :, :, None]
        if proj.weights is not None:
            weights = proj.weights.to(grown.dtype)
            # Masked before the product: the gradient of 0 · NaN is NaN.
            grown = grown * (weights if absent is None else weights.masked_fill(absent, 0.0))
        elif absent is not None:
            grown = grown.masked_fill(absent, 0.0)
        self.grown = grown
        added = grown.cumsum(dim=-2)
        before, after = clock.carry(self.decay, added[..., -1, :].unsqueeze(-1), mass.unsqueeze(-1))
        self.mass_after = after.squeeze(-1)
        self.mass = added + before.squeeze(-1).unsqueeze(-2)
        if clock.real is not None:
            # No token yet: the sums are zeros too, and so is their mean.
            self.mass = self.mass.masked_fill(self.mass == 0, 1.0)


class RunningMeans:
    """Means of a sequence in K slots at every position: products with them, without the means themselves.

    The sequence has zeros at padding; ``sums_BHKX`` are the weighted sums of what came before.
    """

    def __init__(self, weights: WeightsOfChunks, sequence_BHncX: Tensor, sums_BHKX: Tensor) -> None:
        self.weights, self.sequence_BHncX = weights, sequence_BHncX
        self.grown_BHncK = weights.grown.to(sequence_BHncX.dtype)
        added_BHnKX = (self.grown_BHncK.transpose(-2, -1) @ sequence_BHncX).to(sums_BHKX.dtype)
        before_BHnKX, self.sums = weights.clock.carry(weights.decay, added_BHnKX, sums_BHKX)
        self.before_BHnKX = before_BHnKX.to(sequence_BHncX.dtype)

    def products(self, queries_BHncX: Tensor, own_BHncc: Tensor) -> Tensor:
        """``q · mean`` of every position and slot, ``(B, H, n, c, K)``, from ``own``, q · x within the chunks."""
        sums_BHncK = own_BHncc.tril() @ self.grown_BHncK + queries_BHncX @ self.before_BHnKX.transpose(-2, -1)
        return (sums_BHncK / self.weights.mass).to(queries_BHncX.dtype)

    def mix(self, shares_BHncK: Tensor) -> Tensor:
        """The means, weighted with each position's shares: ``(B, H, n, c, X)``."""
        shares = (shares_BHncK / self.weights.mass).to(shares_BHncK.dtype)
        return (shares @ self.grown_BHncK.transpose(-2, -1)).tril() @ self.sequence_BHncX + shares @ self.before_BHnKX

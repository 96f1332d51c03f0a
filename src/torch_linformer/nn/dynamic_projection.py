"""E and F that depend on the input: slots that it chooses, and the weights of running means in causal attention."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torch_linformer.functional.causal import CausalSlots, SlotWeights
from torch_linformer.functional.dynamic import Pooled, SegmentPrior, pool, pooling_weights
from torch_linformer.functional.padding import Padding, length_of, mask_of, start_of
from torch_linformer.functional.slots import check_length
from torch_linformer.nn.options import check_k, check_new_length

STD = 0.02  # of the learned queries at first, so that slots begin close to means of segments


class DynamicProjection(nn.Module):
    r"""A map of M positions to K slots, chosen by the input.

    .. math::
        P_{ij} = \mathrm{softmax}_i \Big( w_j \cdot x_i - 2 e^{a_j} \big( \tfrac{(i + ½) K}{n} - j - ½ - d_j \big)^2
        \Big), \qquad \text{slot } j = \sum_i P_{ij} x_i

    for the n real tokens of a row; padding gets no weight. At first w is small and a = d = 0: a slot is a smooth mean
    around the j-th of K equal segments of the row's own tokens, so a row of any length fills all slots.

    Args:
        max_len: longest sequence, in tokens.
        k: number of slots K, 1 to ``max_len``.
        width: channels of what is scored.
        num_heads: a w for each head, for sequences ``(B, H, M, D)``; None for one P that all channels share.

    Parameters: ``weight`` w, ``(K, width)`` or ``(H, K, width)``; ``shift`` d and ``log_steepness`` a, ``(K,)``.

    Raises:
        ValueError: for ``k`` outside 1 … ``max_len``, or an input over ``max_len``.

    Source: the dynamic projection of arXiv 2107.02192 (there without a prior: softmax of :math:`X W_P`); the prior and
    its units, a row's own segments, are ours.
    """

    projection = "dynamic"
    chunk_multiple = 1

    def __init__(
        self,
        max_len: int,
        k: int,
        width: int,
        *,
        num_heads: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_k(k, max_len)
        self.max_len, self.k, self.num_heads = max_len, k, num_heads
        self.slots_of_position, self.commutes_with_channels = k, num_heads is None  # as of a SequenceProjection
        heads = () if num_heads is None else (num_heads,)
        self.weight = nn.Parameter(torch.empty(*heads, k, width, device=device, dtype=dtype))
        self.shift = nn.Parameter(torch.empty(k, device=device, dtype=dtype))
        self.log_steepness = nn.Parameter(torch.empty(k, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=STD)
        nn.init.zeros_(self.shift)
        nn.init.zeros_(self.log_steepness)

    def reached(self, length: int) -> int:
        """Slots that a sequence of ``length`` positions fills: all."""
        return self.k

    def forward(
        self,
        scored: Tensor,
        pooled: Sequence[Tensor],
        padding: Padding | None = None,
        chunk: slice | None = None,
        tokens: Tensor | None = None,
    ) -> list[Tensor] | Pooled:
        """Slots of each sequence in ``pooled``, by a P that is scored on ``scored``.

        Args:
            scored: ``(B, M, width)``, or ``(B, H, M, width)`` with ``num_heads``; real tokens stand first.
            pooled: sequences ``(B, M, C)`` or ``(B, H, M, D)``.
            padding: of the M positions, after the real ones.
            chunk: the M positions are those of a longer sequence, with ``tokens`` real ones, ``(B or 1,)``; returned
                is a part, to be joined with others.

        Returns:
            ``(B, K, C)`` or ``(B, H, K, D)`` for each sequence.
        """
        check_length(length_of(scored, padding), self.max_len)
        tokens = real_tokens(scored, padding) if tokens is None else tokens
        first = start_of(padding) if chunk is None else chunk.start
        prior, heads = SegmentPrior.of(self.shift, self.log_steepness), self._heads(scored)
        sequences = [heads if x is scored else self._heads(x) for x in pooled]  # one gradient for the same
        part = pool(self.weight, prior, heads, sequences, tokens, first=first, padding_mask=mask_of(padding))
        if padding is not None and padding.collective is not None:
            part = part.whole_rows(padding.collective)
        return part if chunk is not None else self.slots_like(part, pooled)

    slots_of = nn.Module.__call__  # of the same arguments as SequenceProjection.slots_of

    def join(self, slots: Pooled | None, added: Pooled) -> Pooled:
        return added if slots is None else slots.joined(added)

    def total(
        self, slots: Pooled, last: Pooled, pooled: list[Tensor], length: int, padding: Padding | None
    ) -> list[Tensor]:
        return self.slots_like(slots, pooled)

    def slot_padding(self, sequence: Tensor, padding: Padding | None, all_slots: bool = False) -> None:
        """None: no slot is without a real token."""

    def tokens_of_slots(self, sequence: Tensor, padding: Padding | None) -> Tensor:
        """Real tokens that each slot stands for at first, ``(B or 1, K)``: the row's, divided evenly."""
        tokens = real_tokens(sequence, padding).clamp(min=1)
        tokens = tokens.to(torch.promote_types(sequence.dtype, torch.float32))
        return (tokens / self.k).unsqueeze(-1).expand(-1, self.k)

    def slots_like(self, part: Pooled, pooled: Sequence[Tensor]) -> list[Tensor]:
        """The slots in the shapes and types of the sequences that they were made of."""
        slots = []
        for slots_BHKX, sequence in zip(part.slots, pooled, strict=True):
            if self.num_heads is None:
                slots_BHKX = slots_BHKX.squeeze(1)
                if sequence.dim() == 4:
                    slots_BHKX = torch.unflatten(slots_BHKX, -1, (sequence.shape[1], -1)).transpose(1, 2)
            slots.append(slots_BHKX.to(sequence.dtype))
        return slots

    def matrix(self, scored: Tensor, padding: Padding | None = None) -> Tensor:
        """P for M positions, ``(B, H or 1, M, K)``."""
        prior, tokens = SegmentPrior.of(self.shift, self.log_steepness), real_tokens(scored, padding)
        weights = pooling_weights(self.weight, prior, self._heads(scored), tokens, mask_of(padding))
        return weights.transpose(-2, -1)

    def check_resize(self, max_len: int, mode: str) -> None:
        """Raise ``ValueError`` where :meth:`resize_max_len` would."""
        check_new_length(max_len, mode, self.k)

    def resize_max_len(self, max_len: int, mode: str = "interpolate") -> None:
        """Take sequences up to ``max_len``: nothing else depends on it, so both modes are the same."""
        self.check_resize(max_len, mode)
        self.max_len = max_len

    def extra_repr(self) -> str:
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"max_len={self.max_len}, k={self.k}{heads}"

    def _heads(self, sequence: Tensor) -> Tensor:
        """``(B, H, M, D)``; where all channels share one P, ``(B, 1, M, C)``."""
        if self.num_heads is not None:
            return sequence
        flat = sequence if sequence.dim() == 3 else sequence.transpose(1, 2).flatten(2)
        return flat.unsqueeze(1)


def real_tokens(sequence: Tensor, padding: Padding | None) -> Tensor:
    """Real tokens of each row, ``(B or 1,)``."""
    if padding is None:
        return torch.full((1,), sequence.shape[-2], device=sequence.device)
    return padding.tokens.squeeze(-1)


SHORTEST = 16.0  # tokens: the shortest time scale at first
FASTEST = 0.5  # nats a token, so that a chunk's weights stay in the range of float32
FIRST_SCORE = -2.0  # what slots lose at first to the tokens of a window
CONTRAST = 8.0  # nats: the weight of a token lies between exp(-8) and exp(8)


class CausalProjection(nn.Module):
    r"""The weights with which tokens enter K running means.

    .. math:: w_{tij} = e_{ij} \exp(-\lambda_j (p_t - p_i)), \quad
        e_{ij} = \exp(c \tanh(k_i \cdot u_j / c)), \quad \lambda_j = \min(e^{-\theta_j}, 1/2)

    Slot j collects the tokens whose keys k point along its address :math:`u_j`, and forgets them over
    :math:`e^{\theta_j}` tokens; c is 8. Nothing depends on a position's number: there is no longest sequence. Every
    head has addresses and time scales of its own, which keys and values share. At first the scales lie between 16 and
    ``longest`` tokens, evenly in their logarithm.

    Parameters: ``address`` u ``(H, D, K)``, drawn from N(0, 1 / D); ``log_time`` θ ``(H, K)``; ``score_bias``
    ``(H, K)``, added to the scores of the slots: −2 at first, so that a young model is led by what is near.
    """

    def __init__(
        self,
        k: int,
        num_heads: int,
        head_dim: int,
        longest: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.k, self.longest = k, longest
        self.address = nn.Parameter(torch.empty(num_heads, head_dim, k, device=device, dtype=dtype))
        self.log_time = nn.Parameter(torch.empty(num_heads, k, device=device, dtype=dtype))
        self.score_bias = nn.Parameter(torch.empty(num_heads, k, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.score_bias, FIRST_SCORE)
        nn.init.normal_(self.address, std=self.address.shape[1] ** -0.5)
        with torch.no_grad():
            self.log_time.copy_(self.first_log_time())

    def first_log_time(self) -> Tensor:
        """θ at first, ``(K,)``."""
        shortest = min(SHORTEST, self.longest)
        return torch.linspace(math.log(shortest), math.log(self.longest), self.k, device=self.log_time.device)

    def forward(self, keys: Tensor) -> CausalSlots:
        """The slots of tokens with these keys ``(B, H, N, D)``: their weights, and what is added to their scores."""
        logits = keys @ self.address.to(keys.dtype)
        # Sums of many positive weights: in half precision they would stand still.
        accurate = torch.promote_types(logits.dtype, torch.float32)
        weights = torch.exp(CONTRAST * torch.tanh(logits.to(accurate) / CONTRAST))
        # exp of a very fast scale is infinite, and so would be its gradient, which the second bound makes NaN.
        decay = torch.exp(-self.log_time.to(accurate).clamp(min=0.0)).clamp(max=FASTEST)
        return CausalSlots(SlotWeights(decay, weights), bias=self.score_bias)

    def extra_repr(self) -> str:
        return f"k={self.k}, num_heads={self.address.shape[0]}, longest={self.longest}"

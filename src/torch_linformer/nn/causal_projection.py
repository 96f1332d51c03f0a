"""E and F of causal attention: weights that depend on distance and on the token, for sequences of any length."""

import math

import torch
from torch import Tensor, nn

from torch_linformer.functional.causal.running_means import CausalSlots, SlotWeights

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
    head has addresses and time scales of its own, which keys and values share.

    Args:
        k: slots K.
        num_heads: heads H.
        head_dim: width D of a key.
        longest: longest time scale at first, in tokens; the others lie between it and 16, evenly in their logarithm.

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

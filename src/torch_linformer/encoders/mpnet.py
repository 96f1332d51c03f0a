"""MPNet: its attention is its own, and adds a bias of the distance to the scores of all pairs of positions."""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.mpnet.modeling_mpnet import MPNetEncoder, MPNetSelfAttention

from torch_linformer.encoders.attentions import FoundAttention
from torch_linformer.encoders.interface import attention
from torch_linformer.functional.padding import Padding

LONGEST = 128  # tokens: all distances from there on are in one bucket, on either side


class LinearMPNetSelfAttention(MPNetSelfAttention):
    """MPNet's attention with slots, exact tokens and a window in the place of all positions."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Padding | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """As MPNet's own; ``position_bias`` is ``(H, 2 R + 1)``, of distances."""
        shape = *hidden_states.shape[:-1], self.num_attention_heads, self.attention_head_size
        query, key, value = (linear(hidden_states).view(shape).transpose(1, 2) for linear in (self.q, self.k, self.v))
        attended, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout.p if self.training else 0.0,
            output_attentions=output_attentions,
            distance_bias=position_bias,
        )
        output: Tensor = self.o(attended.flatten(2))
        return (output,) if weights is None else (output, weights)


class LinearMPNetEncoder(MPNetEncoder):
    """MPNet's layers, which are handed the bias of distances once for all of them, and not that of N × N pairs."""

    def compute_position_bias(self, x: Tensor, position_ids: Tensor | None = None, num_buckets: int = 32) -> Tensor:
        r"""``(H, 2 R + 1)``: how much more a distance from -R to R adds to a score than slots get.

        A slot has no distance, and most of its tokens are far away, half of them on either side: it gets
        :math:`\log((e^{a_{-R}} + e^{a_R}) / 2)`, and so do exact tokens. That is subtracted from all distances, which a
        softmax does not tell from adding it to slots.
        """
        distances = torch.arange(-LONGEST, LONGEST + 1, device=x.device)
        buckets = self.relative_position_bucket(distances, num_buckets=num_buckets)  # type: ignore[no-untyped-call]
        bias: Tensor = self.relative_attention_bias(buckets).t().contiguous()
        return bias - (torch.logaddexp(bias[:, :1], bias[:, -1:]) - math.log(2))


def find(model: PreTrainedModel) -> dict[str, FoundAttention]:
    """The attentions of an MPNet, by the names of their modules."""
    return {
        name: FoundAttention(module.num_attention_heads, module.num_attention_heads, module.attention_head_size)
        for name, module in cast(nn.Module, model).named_modules()
        if isinstance(module, MPNetSelfAttention)
    }


def replace(model: PreTrainedModel) -> None:
    """Make the modules of an MPNet linear ones, their weights and names as they are."""
    linear = {MPNetSelfAttention: LinearMPNetSelfAttention, MPNetEncoder: LinearMPNetEncoder}
    for module in cast(nn.Module, model).modules():
        module.__class__ = linear.get(type(module), type(module))  # a subclass without state of its own

"""What the layers of an encoder and of a decoder share: the feed-forward and the cleaning of padding."""

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding
from torch_linformer.nn.activations import Activation, resolve_activation
from torch_linformer.nn.chunks import check_chunk_size, map_chunks
from torch_linformer.nn.full_attention import FullAttention
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.padding import KeyPaddingMask, read_padding


class TransformerLayer(nn.Module):
    """A self-attention and the maps of a feed-forward; norms, their order and dropout behind branches are a subclass's.

    Parameters are named as in the layers of ``torch.nn``.
    """

    def __init__(
        self,
        self_attn: FullAttention,
        dim_feedforward: int,
        dropout: float,
        activation: str | Activation,
        gated: bool,
        chunk_size: int | None,
        *,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        check_chunk_size(chunk_size)
        d_model = self_attn.embed_dim
        self.self_attn = self_attn
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias, device, dtype)
        self.linear_gate = nn.Linear(d_model, dim_feedforward, bias, device, dtype) if gated else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias, device, dtype)
        self.activation = resolve_activation(activation)
        self.chunk_size = chunk_size

    def reset_parameters(self) -> None:
        for module in self.children():
            if isinstance(module, FullAttention | nn.Linear | nn.LayerNorm):
                module.reset_parameters()

    def read_padding(self, x: Tensor, key_padding_mask: KeyPaddingMask) -> Padding | None:
        """The padding of ``x`` as the self-attention needs it, read once for all that the layer does."""
        return read_padding(key_padding_mask, self.self_attn.to_batch_first(x), ordered=self.self_attn.order_matters)

    def clean(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Zeros at padding: NaN there would reach the norms' gradients through the residual connection."""
        if padding is None:
            return x
        return self.self_attn.from_batch_first(padding.clean(self.self_attn.to_batch_first(x)), x.dim() == 2)

    def sequence_dim(self, x: Tensor) -> int:
        """The dimension of ``x`` along which the sequence runs."""
        return 1 if self.self_attn.batch_first and x.dim() == 3 else 0

    def _feed_forward_branch(self, x: Tensor) -> Tensor:
        """What the layer adds for the feed-forward, its norm included if that comes first."""
        return map_chunks(self._feed_forward_of_chunk, x, self.chunk_size, self.sequence_dim(x))

    def _feed_forward_of_chunk(self, x: Tensor) -> Tensor:
        """:meth:`_feed_forward_branch` of a few positions, all at once."""
        raise NotImplementedError

    def _feed_forward(self, x: Tensor) -> Tensor:
        hidden = self.activation(run_linear(self.linear1, x))
        if self.linear_gate is not None:
            hidden = hidden * run_linear(self.linear_gate, x)
        return run_linear(self.linear2, self.dropout(hidden))

"""The layer of the encoder, with the signature of ``torch.nn.TransformerEncoderLayer``."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.projection import zero_padding
from torch_linformer.nn.activations import Activation, resolve_activation
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.full_attention import FullAttention, bool_padding_mask
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each with dropout, a residual connection and a layer norm.

    Takes any attention module of this package; parameters are named as in ``torch.nn.TransformerEncoderLayer``.
    """

    def __init__(
        self,
        self_attn: FullAttention,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        gated: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        d_model = self_attn.embed_dim
        self.self_attn = self_attn
        self.linear1 = nn.Linear(d_model, dim_feedforward, **factory)
        self.linear_gate = nn.Linear(d_model, dim_feedforward, **factory) if gated else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, **factory)
        self.norm1 = nn.LayerNorm(d_model, eps=layer_norm_eps, **factory)
        self.norm2 = nn.LayerNorm(d_model, eps=layer_norm_eps, **factory)
        self.dropout1 = nn.Dropout(dropout)
        self.dropout2 = nn.Dropout(dropout)
        self.activation = resolve_activation(activation)
        self.norm_first = norm_first

    def reset_parameters(self) -> None:
        for module in (self.self_attn, self.linear1, self.linear_gate, self.linear2, self.norm1, self.norm2):
            if module is not None:
                module.reset_parameters()

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        shared_projection: SequenceProjection | None = None,
        need_weights: bool = False,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``.

        Args:
            src: the sequence; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            src_mask: must be None.
            src_key_padding_mask: ``(B, N)``, bool (True at padding) or float (−inf at padding).
            is_causal: must be False.
            shared_projection: the map to slots that an encoder with ``sharing="layerwise"`` hands over.
            need_weights: let ``self_attn`` return its weights, for hooks that record them.

        Padding comes out as some finite value; gradients to it are exactly zero.
        """
        src = self._clean(src, src_key_padding_mask)
        attention: dict[str, Any] = {
            "attn_mask": src_mask,
            "key_padding_mask": src_key_padding_mask,
            "is_causal": is_causal,
            "shared_projection": shared_projection,
            "need_weights": need_weights,
            "average_attn_weights": False,
        }
        if self.norm_first:
            src = src + self._attend(self.norm1(src), attention)
            return src + self._feed_forward(self.norm2(src))
        src = self.norm1(src + self._attend(src, attention))
        output: Tensor = self.norm2(src + self._feed_forward(src))
        return output

    def _clean(self, src: Tensor, src_key_padding_mask: Tensor | None) -> Tensor:
        """Zeros at padding: NaN there would reach the norms' gradients through the residual connection."""
        batched = self.self_attn.to_batch_first(src)
        padding = bool_padding_mask(src_key_padding_mask, batched)
        if padding is None:
            return src
        cleaned = zero_padding(batched, padding)
        if src.dim() == 2:
            return cleaned.squeeze(0)
        return cleaned if self.self_attn.batch_first else cleaned.transpose(0, 1)

    def _attend(self, src: Tensor, attention: dict[str, Any]) -> Tensor:
        output, _ = self.self_attn(src, src, src, **attention)
        attended: Tensor = self.dropout1(output)
        return attended

    def _feed_forward(self, src: Tensor) -> Tensor:
        hidden = self.activation(self.linear1(src))
        if self.linear_gate is not None:
            hidden = hidden * self.linear_gate(src)
        output: Tensor = self.dropout2(self.linear2(self.dropout(hidden)))
        return output


class LinformerEncoderLayer(EncoderLayer):
    """``torch.nn.TransformerEncoderLayer`` with Linformer attention; goes into ``torch.nn.TransformerEncoder``.

    ``load_state_dict`` takes the weights of torch's layer (``strict=False``: only the projections are missing).

    Args:
        d_model: model width C.
        nhead: heads.
        dim_feedforward: width of the feed-forward.
        dropout: after the attention, inside and after the feed-forward, and on the attention weights.
        activation: ``relu``, ``gelu``, ``silu`` or a callable.
        layer_norm_eps: of the two norms.
        batch_first: ``(B, N, C)`` inputs; False for ``(N, B, C)``.
        norm_first: norms before attention and feed-forward (pre-norm) instead of after.
        bias: on linear maps and norms.
        max_len: longest sequence, in tokens.
        k: slots K, 1 to ``max_len``.
        projection: as in :class:`LinformerAttention`, None included.
        sharing: ``none``, ``headwise`` or ``kv``; ``layerwise`` belongs to :class:`LinformerEncoder`.
        num_kv_heads: heads of keys and values.
        head_dim: width of one head.
        length_scaling: False leaves the length factor out.
        slot_bias: as in :class:`LinformerAttention`.
        attention_dropout: on the attention weights, if it is to differ from ``dropout``.
        gated: feed-forward ``W₂ (φ(W₁ x) ⊙ W_g x)``.

    Raises:
        ValueError: for arguments out of range, and for ``sharing="layerwise"``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_len: int,
        k: int = 256,
        projection: Projection | None = "linear",
        sharing: Sharing = "headwise",
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        length_scaling: bool = True,
        slot_bias: bool = False,
        attention_dropout: float | None = None,
        gated: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        attention = LinformerAttention(
            d_model,
            nhead,
            max_len,
            k,
            dropout=dropout if attention_dropout is None else attention_dropout,
            bias=bias,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            projection=projection,
            sharing=sharing,
            length_scaling=length_scaling,
            slot_bias=slot_bias,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        super().__init__(
            attention,
            dim_feedforward,
            dropout,
            activation,
            layer_norm_eps,
            norm_first,
            bias,
            gated=gated,
            device=device,
            dtype=dtype,
        )

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`SequenceProjection.resize_max_len`."""
        assert isinstance(self.self_attn, LinformerAttention)
        self.self_attn.resize_max_len(max_len, mode)

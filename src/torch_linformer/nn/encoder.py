"""The transformer encoder over Linformer attention, with the signature of ``torch.nn``."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import check_sharing
from torch_linformer.nn.encoder_layer import EncoderLayer, LinformerEncoderLayer
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing


class Encoder(nn.Module):
    """A stack of layers, a final norm if there is one, and the projection the layers share if they share one."""

    def __init__(
        self,
        layers: Iterable[EncoderLayer],
        norm: nn.LayerNorm | None = None,
        shared_projection: SequenceProjection | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shared_projection = shared_projection

    def reset_parameters(self) -> None:
        for layer in self.layers:
            cast("EncoderLayer", layer).reset_parameters()
        for module in (self.norm, self.shared_projection):
            if module is not None:
                module.reset_parameters()

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool = False,
        need_weights: bool = False,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; arguments as in :meth:`EncoderLayer.forward`."""
        for layer in self.layers:
            src = layer(
                src,
                src_mask=mask,
                src_key_padding_mask=src_key_padding_mask,
                is_causal=is_causal,
                shared_projection=self.shared_projection,
                need_weights=need_weights,
            )
        if self.norm is not None:
            src = self.norm(src)
        return src


class LinformerEncoder(Encoder):
    """A stack of :class:`LinformerEncoderLayer`, with a final norm when ``norm_first``.

    Args beyond those of the layer:
        num_layers: layers.
        k: one number, or one a layer (nonuniform K).
        sharing: also ``layerwise``: one E = F for the whole stack, owned here as ``shared_projection``.
        final_norm: False leaves the final norm of a pre-norm stack out.

    Raises:
        ValueError: for arguments out of range; for several ``k`` with ``sharing="layerwise"``.

    Source: arXiv 2006.04768, section 4 (parameter sharing, nonuniform projected dimension).
    """

    layer_class: type[LinformerEncoderLayer] = LinformerEncoderLayer

    def __init__(
        self,
        d_model: int,
        nhead: int,
        num_layers: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        norm_first: bool = False,
        bias: bool = True,
        *,
        max_len: int,
        k: int | Sequence[int] = 256,
        sharing: Sharing = "headwise",
        projection: Projection = "linear",
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        length_scaling: bool = True,
        slot_bias: bool = False,
        final_norm: bool = True,
        attention_dropout: float | None = None,
        gated: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sharing(sharing)
        layer_ks = _k_per_layer(k, num_layers, sharing)
        layerwise = sharing == "layerwise"
        layers = [
            self.layer_class(
                d_model,
                nhead,
                dim_feedforward,
                dropout,
                activation,
                layer_norm_eps,
                batch_first,
                norm_first,
                bias,
                max_len=max_len,
                k=layer_k,
                projection=None if layerwise else projection,
                sharing="headwise" if layerwise else sharing,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                length_scaling=length_scaling,
                slot_bias=slot_bias,
                attention_dropout=attention_dropout,
                gated=gated,
                device=device,
                dtype=dtype,
            )
            for layer_k in layer_ks
        ]
        norm = None
        if norm_first and final_norm:
            norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        shared = None
        if layerwise:
            shared = SequenceProjection(
                max_len,
                layer_ks[0],
                projection=projection,
                length_scaling=length_scaling,
                device=device,
                dtype=dtype,
            )
        super().__init__(layers, norm, shared)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`SequenceProjection.resize_max_len`."""
        if self.shared_projection is not None:
            self.shared_projection.resize_max_len(max_len, mode)
        for layer in self.layers:
            cast("LinformerEncoderLayer", layer).resize_max_len(max_len, mode)


def _k_per_layer(k: int | Sequence[int], num_layers: int, sharing: Sharing) -> list[int]:
    if isinstance(k, int):
        return [k] * num_layers
    if sharing == "layerwise":
        raise ValueError(f"sharing='layerwise' has one projection for all layers: k must be one number, got {list(k)}")
    if len(k) != num_layers:
        raise ValueError(f"k must be one number or one a layer ({num_layers}), got {len(k)} numbers")
    return list(k)

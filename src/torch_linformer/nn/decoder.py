"""The transformer decoder over Linformer attention, with the signature of ``torch.nn``."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import check_sharing
from torch_linformer.nn.decoder_layer import DecoderLayer, LinformerDecoderLayer, memory_slots
from torch_linformer.nn.encoder import k_per_layer
from torch_linformer.nn.keys_and_values import KeysAndValues
from torch_linformer.nn.padding import KeyPaddingMask
from torch_linformer.nn.past import Past
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing, resize_maps

DecoderMemory = Literal["none", "checkpoint"]


class Decoder(nn.Module):
    """A stack of layers, a final norm if there is one, and the projection of the memory if the layers share one.

    Args:
        layers: the layers.
        norm: the final norm.
        shared_projection: the map of the memory to slots that all layers use.
        memory: as in :class:`LinformerDecoder`.
    """

    def __init__(
        self,
        layers: Iterable[DecoderLayer],
        norm: nn.LayerNorm | None = None,
        shared_projection: SequenceProjection | None = None,
        *,
        memory: DecoderMemory = "none",
    ) -> None:
        super().__init__()
        check_decoder_memory(memory)
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shared_projection = shared_projection
        self.memory = memory

    def reset_parameters(self) -> None:
        for module in (*self.layers, self.norm, self.shared_projection):
            if module is not None:
                cast(Any, module).reset_parameters()

    def compress(self, memory: Tensor, memory_key_padding_mask: KeyPaddingMask = None) -> list[KeysAndValues]:
        """What each layer reads of a memory, for :meth:`forward` at every step of a generation.

        Its size does not depend on the target: with Linformer attention 2·K·C numbers a layer and row.
        """
        return [
            cast("DecoderLayer", layer).compress(memory, memory_key_padding_mask, self.shared_projection)
            for layer in self.layers
        ]

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor | Sequence[KeysAndValues],
        tgt_mask: Tensor | None = None,
        memory_mask: Tensor | None = None,
        tgt_key_padding_mask: KeyPaddingMask = None,
        memory_key_padding_mask: KeyPaddingMask = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
        need_weights: bool = False,
        pasts: Sequence[Past] | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; arguments as in :meth:`DecoderLayer.forward`.

        ``memory`` may be what :meth:`compress` made of it, and ``pasts`` has one past a layer.
        """
        memories = [memory] * len(self.layers) if isinstance(memory, Tensor) else memory
        each_past = [None] * len(self.layers) if pasts is None else pasts
        # A layer that is run again must find its past as it was.
        keeps_inputs_alone = self.memory == "checkpoint" and torch.is_grad_enabled() and pasts is None
        x = tgt
        for layer, memory_of_layer, past in zip(self.layers, memories, each_past, strict=True):
            # Tensors by position: some ways to checkpoint carry no gradients to what comes by name.
            inputs = (
                x,
                memory_of_layer,
                tgt_mask,
                memory_mask,
                tgt_key_padding_mask,
                memory_key_padding_mask,
                tgt_is_causal,
                memory_is_causal,
            )
            options: dict[str, Any] = {
                "shared_projection": self.shared_projection,
                "need_weights": need_weights,
                "past": past,
            }
            switched = getattr(layer, "gradient_checkpointing", False) and layer.training
            if keeps_inputs_alone and not switched:
                x = cast(Tensor, checkpoint(layer, *inputs, use_reentrant=False, **options))
            else:
                x = layer(*inputs, **options)
        return x if self.norm is None else cast(Tensor, self.norm(x))


class LinformerDecoder(Decoder):
    """A stack of :class:`LinformerDecoderLayer`, with a final norm when ``norm_first``; causal, inputs ``(B, N, C)``.

    Args beyond those of the layer:
        num_layers: layers.
        k: slots of the target, one number or one a layer.
        memory_k: slots of the memory, one number or one a layer.
        sharing: also ``layerwise``: one E = F for the memory in the whole stack, owned here as ``shared_projection``.
        final_norm: False leaves the final norm of a pre-norm stack out.
        memory: what a training keeps of each layer for its backward pass. ``none``: everything. ``checkpoint``: its
            input; the layer is computed again, which changes no number.

    Raises:
        ValueError: for arguments out of range, and for several ``memory_k`` with ``sharing="layerwise"``.
    """

    layer_class: type[LinformerDecoderLayer] = LinformerDecoderLayer

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
        memory_len: int | None = None,
        memory_k: int | Sequence[int] | None = None,
        memory_dim: int | None = None,
        window: int | None = None,
        rotary_dim: int = 0,
        projection: Projection = "linear",
        sharing: Sharing = "headwise",
        length_scaling: bool = True,
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        final_norm: bool = True,
        attention_dropout: float | None = None,
        gated: bool = False,
        memory: DecoderMemory = "none",
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sharing(sharing)
        memory_len = max_len if memory_len is None else memory_len
        ks = k_per_layer(k, num_layers, "headwise")
        memory_ks = _memory_k_per_layer(ks, memory_k, memory_len, sharing)
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
                memory_len=memory_len,
                memory_k=layer_memory_k,
                memory_dim=memory_dim,
                window=window,
                rotary_dim=rotary_dim,
                projection=None if layerwise else projection,
                sharing="headwise" if layerwise else sharing,
                length_scaling=length_scaling,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                attention_dropout=attention_dropout,
                gated=gated,
                chunk_size=chunk_size,
                device=device,
                dtype=dtype,
            )
            for layer_k, layer_memory_k in zip(ks, memory_ks, strict=True)
        ]
        norm = shared = None
        if norm_first and final_norm:
            norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        if layerwise:
            options: dict[str, Any] = {"length_scaling": length_scaling, "device": device, "dtype": dtype}
            shared = SequenceProjection(memory_len, memory_ks[0], projection=projection, **options)
        super().__init__(layers, norm, shared, memory=memory)

    def resize_memory_len(self, memory_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take memories up to ``memory_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, memory_len, mode)


def _memory_k_per_layer(
    ks: list[int], memory_k: int | Sequence[int] | None, memory_len: int, sharing: Sharing
) -> list[int]:
    given: Sequence[int | None] = [None] * len(ks)
    if memory_k is not None:
        given = k_per_layer(memory_k, len(ks), sharing, "memory_k")
    slots = [memory_slots(k, one, memory_len) for k, one in zip(ks, given, strict=True)]
    if sharing == "layerwise" and len(set(slots)) > 1:
        raise ValueError(f"sharing='layerwise' has one projection for all layers: give memory_k, got k={ks}")
    return slots


def check_decoder_memory(memory: str) -> None:
    """Raise ``ValueError`` for an unknown way to save memory."""
    if memory not in get_args(DecoderMemory):
        raise ValueError(f"memory of a decoder must be one of {', '.join(get_args(DecoderMemory))}, got {memory!r}")

"""The transformer decoder over Linformer attention, with the signature of ``torch.nn``."""

from collections.abc import Sequence
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor, nn

from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import KeysAndValues, Past
from torch_linformer.nn.decoder_layer import DecoderLayer, LinformerDecoderLayer, memory_slots
from torch_linformer.nn.maps import resize_maps
from torch_linformer.nn.options import StackOptions, check_activation_memory, split_stack_options
from torch_linformer.nn.padding import KeyPaddingMask
from torch_linformer.nn.stack import Stack, plan_layers


class Decoder(Stack):
    """A stack of :class:`DecoderLayer`; its ``shared_projection`` is that of the memory. Args as in :class:`Stack`."""

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
        """``(B, N, C)`` to ``(B, N, C)``; arguments as in :meth:`LinformerDecoderLayer.forward`.

        ``memory`` may be what :meth:`compress` made of it, and ``pasts`` has one past a layer.
        """
        memories = [memory] * len(self.layers) if isinstance(memory, Tensor) else memory
        options: dict[str, Any] = {"shared_projection": self.shared_projection, "need_weights": need_weights}
        # Tensors by position: some ways to checkpoint carry no gradients to what comes by name.
        masks = tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask, tgt_is_causal, memory_is_causal
        for (call, past), memory_of_layer in zip(self.calls(pasts), memories, strict=True):
            tgt = call(tgt, memory_of_layer, *masks, past=past, **options)
        return self.finish(tgt)


class LinformerDecoder(Decoder):
    """A stack of :class:`LinformerDecoderLayer`, with a final norm when ``norm_first``; causal, inputs ``(B, N, C)``.

    It takes the arguments of :class:`LinformerDecoderLayer`, and these.

    Args:
        num_layers: layers.
        k: slots of the target, one number, min(256, max_len / 4) by default, or one a layer.
        memory_k: slots of the memory, one number or one a layer.
        options: :class:`~torch_linformer.nn.options.StackOptions`: those of the layer, with ``sharing`` also
            ``layerwise`` (one E = F for the memory in the whole stack, owned here as ``shared_projection``), and
            ``final_norm``, ``activation_memory`` (``none`` or ``checkpoint``).

    Raises:
        ValueError: for arguments out of range, and for several ``memory_k`` with ``sharing="layerwise"``.
    """

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
        k: int | Sequence[int] | None = None,
        memory_len: int | None = None,
        memory_k: int | Sequence[int] | None = None,
        memory_dim: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[StackOptions],
    ) -> None:
        memory_len = max_len if memory_len is None else memory_len
        parts, has_norm, activation_memory = split_stack_options(options, dropout, self)
        check_activation_memory(activation_memory, norm_first, decoder=True)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        target_k = plan_layers(k, num_layers, max_len, d_model, {}).k
        if memory_k is None:
            memory_k = [memory_slots(layer_k, None, memory_len) for layer_k in target_k]
        width = d_model if memory_dim is None else memory_dim
        plan = plan_layers(memory_k, num_layers, memory_len, width, parts.attention, name="memory_k", **factory)
        attention = {**plan.options, "attention_dropout": plan.options["dropout"]}
        del attention["dropout"]
        layers = [
            LinformerDecoderLayer(
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
                **attention,
                **parts.layer,
                **factory,
            )
            for layer_k, layer_memory_k in zip(target_k, plan.k, strict=True)
        ]
        norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, **factory) if norm_first and has_norm else None
        super().__init__(layers, norm, plan.shared_projection, activation_memory=activation_memory)

    def resize_memory_len(self, memory_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take memories up to ``memory_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, memory_len, mode)

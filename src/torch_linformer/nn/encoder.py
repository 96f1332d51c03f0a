"""The transformer encoder over Linformer attention, with the signature of ``torch.nn``."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, cast, get_args

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.padding import Padding
from torch_linformer.nn.activations import Activation
from torch_linformer.nn.attention import check_sharing
from torch_linformer.nn.chunks import check_chunk_size, is_watched, map_chunks, runs_in_chunks
from torch_linformer.nn.encoder_layer import EncoderLayer, LinformerEncoderLayer
from torch_linformer.nn.padding import KeyPaddingMask, read_padding
from torch_linformer.nn.past import Past
from torch_linformer.nn.projection import Projection, SequenceProjection, Sharing, resize_maps
from torch_linformer.nn.reversible import Reversal, can_reverse

Memory = Literal["none", "checkpoint", "reversible"]


class Encoder(nn.Module):
    """A stack of layers, a final norm if there is one, and the projection the layers share if they share one.

    Args:
        layers: the layers.
        norm: the final norm.
        shared_projection: the map to slots that all layers use.
        memory: as in :class:`LinformerEncoder`.
        chunk_size: positions that the final norm works on at once in inference; the layers have their own.
    """

    def __init__(
        self,
        layers: Iterable[EncoderLayer],
        norm: nn.LayerNorm | None = None,
        shared_projection: SequenceProjection | None = None,
        *,
        memory: Memory = "none",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shared_projection = shared_projection
        self.memory, self.chunk_size = memory, chunk_size
        check_chunk_size(chunk_size)
        check_memory(memory, all(cast("EncoderLayer", layer).norm_first for layer in self.layers))

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
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        need_weights: bool = False,
        need_layers: bool = False,
        overwrite: bool = False,
        pasts: Sequence[Past] | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``; arguments as in :meth:`EncoderLayer.forward`; ``pasts`` has one a layer.

        ``need_layers`` is for hooks that keep what the layers return: nothing is written over it. With
        ``need_weights``, and with ``pasts``, a reversible stack keeps the activations of its layers.
        """
        options: dict[str, Any] = {
            "src_mask": mask,
            "src_key_padding_mask": self._read_padding(src, src_key_padding_mask),
            "is_causal": is_causal,
            "shared_projection": self.shared_projection,
            "need_weights": need_weights,
        }
        each_past = [None] * len(self.layers) if pasts is None else pasts
        if len(each_past) != len(self.layers):
            raise ValueError(f"pasts must be one Past a layer, {len(self.layers)} in all, got {len(each_past)}")
        # What a layer returned is ours, unless a hook has it too.
        ours = runs_in_chunks(self.chunk_size) and not need_layers and not is_watched(self)
        overwrite = overwrite and ours
        if self.memory == "reversible":
            compiled_training = torch.compiler.is_compiling() and self.training and torch.is_grad_enabled()
            run = self._run_streams_uncompiled if compiled_training else self._run_streams
            src = run(src, options, each_past, ours)
            overwrite = ours
        else:
            for layer, past in zip(self.layers, each_past, strict=True):
                src = self._run(layer, src, {**options, "overwrite": overwrite, "past": past})
                overwrite = ours
        if self.norm is None:
            return src
        if not runs_in_chunks(self.chunk_size):
            output: Tensor = self.norm(src)
            return output
        dim = cast("EncoderLayer", self.layers[0]).sequence_dim(src)
        return map_chunks(self.norm, src, self.chunk_size, dim, overwrite=overwrite)

    def _read_padding(self, src: Tensor, key_padding_mask: KeyPaddingMask) -> Padding | None:
        """The padding, read once for all layers."""
        if key_padding_mask is None or len(self.layers) == 0:
            return None
        attentions = [cast("EncoderLayer", layer).self_attn for layer in self.layers]
        ordered = any(attention.order_matters for attention in attentions)
        return read_padding(key_padding_mask, attentions[0].to_batch_first(src), ordered=ordered)

    def _run(self, layer: nn.Module, src: Tensor, options: dict[str, Any]) -> Tensor:
        # Transformers' own switch makes the layer do the same by itself: once is enough.
        switched = getattr(layer, "gradient_checkpointing", False) and layer.training
        # A layer computed again would find its past brought up to date already.
        again = options["past"] is None and not switched
        if self.memory == "checkpoint" and torch.is_grad_enabled() and again:
            return cast(Tensor, checkpoint(layer, src, use_reentrant=False, **options))
        return cast(Tensor, layer(src, **options))

    def _run_streams(
        self, src: Tensor, options: dict[str, Any], pasts: Sequence[Past | None], overwrite: bool
    ) -> Tensor:
        """The mean of the two streams behind the last layer."""
        layers = [cast("EncoderLayer", layer) for layer in self.layers]
        first = second = layers[0].clean(src, options["src_key_padding_mask"])
        # What is computed again would record its weights, and add to its past, a second time.
        once = options["need_weights"] or any(past is not None for past in pasts)
        reversal = Reversal(self) if can_reverse() and not once else None
        for index, layer in enumerate(layers):
            # Past transformers' own switch: a checkpoint would keep the streams before each layer.
            run = layer if reversal is None else partial(nn.Module.__call__, layer)
            src, first, second = run(
                first,
                second_stream=second,
                overwrite=overwrite and index > 0,
                past=pasts[index],
                reversal=reversal,
                **options,
            )
        return src

    @torch._disable_dynamo  # type: ignore[attr-defined]  # the public one would load the compiler now
    def _run_streams_uncompiled(self, *inputs: Any) -> Tensor:
        return self._run_streams(*inputs)


class LinformerEncoder(Encoder):
    """A stack of :class:`LinformerEncoderLayer`, with a final norm when ``norm_first``; inputs are ``(B, N, C)``.

    Args beyond those of the layer:
        num_layers: layers.
        k: one number, or one a layer (nonuniform K).
        sharing: also ``layerwise``: one E = F for the whole stack, owned here as ``shared_projection``.
        final_norm: False leaves the final norm of a pre-norm stack out.
        memory: what a training keeps of each layer for its backward pass. ``none``: everything. ``checkpoint``: its
            input; the layer is computed again, which changes no number. ``reversible``: nothing. The model is then
            another one: two streams, both the input at first, with :math:`y_1 = x_1 + f(x_2)` and
            :math:`y_2 = x_2 + g(y_1)` for the attention f and the feed-forward g, norms and dropout included; the
            output is their mean. The inputs of a layer are computed back from its outputs.

    Raises:
        ValueError: for arguments out of range; for several ``k`` with ``sharing="layerwise"``; for
            ``memory="reversible"`` without ``norm_first``.

    Source: arXiv 2006.04768, section 4 (parameter sharing, nonuniform projected dimension); arXiv 1604.06174
    (checkpoints) and 1707.04585 (reversible layers).
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
        causal: bool = False,
        window: int | None = None,
        rotary_dim: int = 0,
        slot_bias: bool = False,
        final_norm: bool = True,
        attention_dropout: float | None = None,
        gated: bool = False,
        memory: Memory = "none",
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_sharing(sharing)
        layer_ks = k_per_layer(k, num_layers, sharing)
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
                causal=causal,
                window=window,
                rotary_dim=rotary_dim,
                slot_bias=slot_bias,
                attention_dropout=attention_dropout,
                gated=gated,
                chunk_size=chunk_size,
                device=device,
                dtype=dtype,
            )
            for layer_k in layer_ks
        ]
        norm = None
        if norm_first and final_norm:
            norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype)
        shared = None
        if layerwise and not causal:
            shared = SequenceProjection(
                max_len,
                layer_ks[0],
                projection=projection,
                length_scaling=length_scaling,
                device=device,
                dtype=dtype,
            )
        super().__init__(layers, norm, shared, memory=memory, chunk_size=chunk_size)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, max_len, mode)


def k_per_layer(k: int | Sequence[int], num_layers: int, sharing: Sharing, name: str = "k") -> list[int]:
    """One K for each layer."""
    if isinstance(k, int):
        return [k] * num_layers
    if sharing == "layerwise":
        raise ValueError(
            f"sharing='layerwise' has one projection for all layers: {name} must be one number, got {list(k)}"
        )
    if len(k) != num_layers:
        raise ValueError(f"{name} must be one number or one a layer ({num_layers}), got {len(k)} numbers")
    return list(k)


def check_memory(memory: str, norm_first: bool) -> None:
    """Raise ``ValueError`` for an unknown way to save memory, or one that the layers do not allow."""
    if memory not in get_args(Memory):
        raise ValueError(f"memory must be one of {', '.join(get_args(Memory))}, got {memory!r}")
    if memory == "reversible" and not norm_first:
        raise ValueError(
            "memory='reversible' needs norm_first=True, got norm_first=False: a norm behind the residual connection "
            "cannot be computed back; take memory='checkpoint' for such layers"
        )

"""The transformer encoder over Linformer attention, layer and stack, with the signatures of ``torch.nn``."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal, Unpack, cast

import torch
from torch import Tensor, nn

from torch_linformer.functional.pytorch import can_reverse, compiles_training, disable_dynamo, runs_in_chunks
from torch_linformer.nn.attention import LinformerAttention, Past
from torch_linformer.nn.attention.slot_maps import SequenceMap, resize_maps
from torch_linformer.nn.chunks import Parameters, has_hooks
from torch_linformer.nn.layer import Attend, SelfAttentionLayer, Stack, plan_layers
from torch_linformer.nn.linear import Activation
from torch_linformer.nn.options import LayerConfig, LayerOptions, StackConfig, StackOptions
from torch_linformer.nn.padding import KeyPaddingMask, read_padding
from torch_linformer.nn.reversible import Reversal, ReversibleEncoderLayer


class EncoderLayer(SelfAttentionLayer):
    """Self-attention and feed-forward, each with dropout, a residual connection and a layer norm."""

    def forward(
        self,
        src: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        need_weights: bool = False,
        overwrite: bool = False,
        past: Past | None = None,
    ) -> Tensor:
        """``(B, N, C)`` to ``(B, N, C)``.

        Args:
            src: the sequence; ``(N, B, C)`` with ``batch_first=False``, ``(N, C)`` unbatched.
            src_mask: must be None; a causal layer takes the causal one with ``is_causal=True``.
            src_key_padding_mask: ``(B, N)``, bool (True at padding) or float (0, and −1000 or less at padding), on any
                side and between real tokens. A stack, which reads it once, hands over what it read, and a sequence
                that it has cleaned.
            is_causal: must be False, except in a causal layer.
            shared_projection: the map to slots that an encoder with ``sharing="layerwise"`` hands over.
            need_weights: let ``self_attn`` return its weights, for hooks that record them; nothing runs in chunks.
            overwrite: ``src`` is not needed any more: inference in chunks may write the result into it.
            past: of a causal layer: what its attention has read so far, to which this call adds ``src``.

        Padding comes out as some finite value; gradients to it are exactly zero.
        """
        padding = self.read_padding(src, src_key_padding_mask)
        if self.can_chunk(padding, src_mask, is_causal, need_weights):

            def run(attend: Attend, part: Tensor) -> Sequence[Tensor]:
                return [self.run(part, [attend])]

            return self.run_in_chunks([src], padding, run, shared_projection, past, overwrite)[0]
        attend = self.attend_with(padding, src_mask, is_causal, shared_projection, need_weights, past)
        # A causal model predicts the first token of a row where there is padding before it: nothing may show there.
        handed_over = padding is src_key_padding_mask and not self.self_attn.causal
        return self.run(src if handed_over else self.clean(src, padding), [attend])


class LinformerEncoderLayer(EncoderLayer):
    """``torch.nn.TransformerEncoderLayer`` with Linformer attention; goes into ``torch.nn.TransformerEncoder``.

    One default differs: ``batch_first=True``, so inputs are ``(B, N, C)``. Code that gives ``(N, B, C)`` needs
    ``batch_first=False``, or rows of the batch are taken for positions and mixed.
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
        k: slots K, 1 to ``max_len``, min(256, max_len / 4) by default; 0 with a ``window``, for no slots.
        options: :class:`~torch_linformer.nn.options.LayerConfig`: those of :class:`LinformerAttention`, and
            ``attention_dropout``, ``gated``, ``chunk_size``.

    Raises:
        ValueError: for arguments out of range, for an option that the layer would not use, and for
            ``sharing="layerwise"``, which belongs to :class:`LinformerEncoder`.
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
        k: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[LayerOptions],
    ) -> None:
        config = LayerConfig.of(self, options)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        linears: dict[str, Any] = {"dropout": config.dropout_of_weights(dropout), "bias": bias, **factory}
        attention = LinformerAttention(
            d_model, nhead, max_len, k, batch_first=batch_first, **linears, **config.attention
        )
        layout = dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias
        super().__init__(attention, *layout, gated=config.gated, chunk_size=config.chunk_size, **factory)


class Encoder(Stack):
    """A stack of :class:`EncoderLayer`, or with ``activation_memory="reversible"`` of :class:`ReversibleEncoderLayer`.

    Takes what :class:`Stack` takes; raises ``ValueError`` for layers of the other kind.
    """

    def __init__(self, layers: Iterable[SelfAttentionLayer], *args: Any, **options: Any) -> None:
        super().__init__(layers, *args, **options)
        reversible = self.activation_memory == "reversible"
        layer_class = ReversibleEncoderLayer if reversible else EncoderLayer
        if not all(isinstance(layer, layer_class) for layer in self.layers):
            raise ValueError(f"activation_memory={self.activation_memory!r} needs layers of {layer_class.__name__}")

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
        """``(B, N, C)`` to ``(B, N, C)``; arguments of :meth:`LinformerEncoderLayer.forward`; ``pasts``: one a layer.

        ``need_layers`` is for hooks that keep what the layers return: nothing is written over it. With
        ``need_weights``, and with ``pasts``, a reversible stack keeps the activations of its layers.
        """
        layers = [cast(SelfAttentionLayer, layer) for layer in self.layers]
        padding = None
        if src_key_padding_mask is not None and layers:  # read once for all layers
            ordered = any(layer.self_attn.context.is_ordered for layer in layers)
            padding = read_padding(src_key_padding_mask, layers[0].self_attn.to_batch_first(src), ordered=ordered)
        options: dict[str, Any] = {
            "src_mask": mask,
            "src_key_padding_mask": padding,
            "is_causal": is_causal,
            "shared_projection": self.shared_projection,
            "need_weights": need_weights,
        }
        if padding is not None and not layers[0].can_chunk(padding, mask, is_causal, need_weights):
            src = layers[0].clean(src, padding)  # here for all layers
        # What a layer returned is ours, unless a hook has it too.
        ours = runs_in_chunks(self.chunk_size) and not need_layers and not has_hooks(self)
        if self.activation_memory == "reversible":
            run = self._run_streams_uncompiled if self.training and compiles_training() else self._run_streams
            return self.finish(run(src, options, pasts, ours), ours)
        overwrite = overwrite and ours
        for call, past in self.calls(pasts):
            src = call(src, overwrite=overwrite, past=past, **options)
            overwrite = ours
        return self.finish(src, overwrite)

    def _run_streams(
        self, src: Tensor, options: dict[str, Any], pasts: Sequence[Past] | None, overwrite: bool
    ) -> Tensor:
        """The mean of the two streams after the last layer."""
        first = second = src
        # What is computed again would record its weights, and add to its past, a second time.
        once = options["need_weights"] or pasts is not None
        reversal = Reversal(Parameters(self)) if can_reverse() and not once else None
        for index, (call, past) in enumerate(self.calls(pasts)):
            if reversal is not None:
                # Past transformers' own switch: a checkpoint would keep the streams before each layer.
                call = partial(nn.Module.__call__, call)
                reversal = reversal if reversal.leads_to(first, second) else Reversal(reversal.parameters)
            src, first, second = call(
                first, second, overwrite=overwrite and index > 0, past=past, reversal=reversal, **options
            )
        return src

    @disable_dynamo
    def _run_streams_uncompiled(self, *inputs: Any) -> Tensor:
        return self._run_streams(*inputs)


class LinformerEncoder(Encoder):
    """A stack of layers over :class:`LinformerAttention`, with a final norm when ``norm_first``; inputs ``(B, N, C)``.

    It takes the arguments of :class:`LinformerEncoderLayer`, and these.

    Args:
        num_layers: layers.
        k: one number, min(256, max_len / 4) by default, or one a layer (nonuniform K).
        options: :class:`~torch_linformer.nn.options.StackConfig`: those of the layer, with ``sharing`` also
            ``layerwise`` (one E = F for the whole stack, owned here as ``shared_projection``), and ``final_norm``,
            ``activation_memory``.

    Raises:
        ValueError: for arguments out of range; for several ``k`` with ``sharing="layerwise"``; for
            ``activation_memory="reversible"`` without ``norm_first``.

    Source: arXiv 2006.04768, section 4 (parameter sharing, nonuniform projected dimension); arXiv 1604.06174
    (checkpoints) and 1707.04585 (reversible layers).

    Example:
        >>> import torch
        >>> from torch_linformer.nn import LinformerEncoder
        >>> encoder = LinformerEncoder(d_model=64, nhead=4, num_layers=2, max_len=1024, k=32)
        >>> encoder(torch.randn(1, 1000, 64)).shape
        torch.Size([1, 1000, 64])
        >>> encoder.resize_max_len(4096)  # a trained model reads longer texts
        >>> encoder(torch.randn(1, 3000, 64)).shape
        torch.Size([1, 3000, 64])
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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[StackOptions],
    ) -> None:
        config = StackConfig.of(self, options)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        plan = plan_layers(k, num_layers, max_len, d_model, config, **factory)
        attention: dict[str, Any] = {"bias": bias, "batch_first": batch_first, **plan.options, **factory}
        attention["dropout"] = config.dropout_of_weights(dropout)
        layout = dim_feedforward, dropout, activation, layer_norm_eps, norm_first, bias
        layer: dict[str, Any] = {"gated": config.gated, "chunk_size": config.chunk_size, **factory}
        layer_class = ReversibleEncoderLayer if config.activation_memory == "reversible" else EncoderLayer
        layers = [
            layer_class(LinformerAttention(d_model, nhead, max_len, k, **attention), *layout, **layer) for k in plan.k
        ]
        has_norm = norm_first and config.final_norm
        norm = nn.LayerNorm(d_model, layer_norm_eps, bias=bias, **factory) if has_norm else None
        super().__init__(layers, norm, plan.shared_projection, activation_memory=config.activation_memory)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, max_len, mode)

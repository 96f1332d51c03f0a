"""Transformer layers and stacks of them: what encoders and decoders share."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from torch_linformer.choices import ActivationMemory
from torch_linformer.functional.padding import Padding, mask_of, reorder, zero_padding
from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.nn.attention import Attention, Past
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import Pair, SequenceMap, Source, build_map, resize_maps
from torch_linformer.nn.chunks import (
    check_chunk_size,
    chunk_padding,
    computed_again,
    cut,
    gather,
    map_chunks,
    must_be_called,
)
from torch_linformer.nn.linear import Activation, resolve_activation, run_activated, run_linear
from torch_linformer.nn.options import AttentionConfig, check_activation_memory, default_k
from torch_linformer.nn.padding import KeyPaddingMask, read_padding

Attend = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class TransformerLayer(nn.Module):
    """Attentions and a feed-forward, each with dropout, a residual connection and a layer norm.

    Parameters are named as in the layers of ``torch.nn``: ``norm1`` and ``dropout1`` belong to the first branch.
    ``attentions`` have their names, in the order of their branches; the first is the self-attention ``self_attn``. The
    other arguments are those of :class:`~torch_linformer.nn.LinformerEncoderLayer`.
    """

    self_attn: Attention

    def __init__(
        self,
        attentions: Mapping[str, Attention],
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        gated: bool = False,
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_chunk_size(chunk_size)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        d_model = attentions["self_attn"].embed_dim
        self.self_attn = attentions["self_attn"]
        # The order of parameters is that of saved optimizer states: it must stay.
        self.linear1 = nn.Linear(d_model, dim_feedforward, **factory)
        self.linear_gate = nn.Linear(d_model, dim_feedforward, **factory) if gated else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, **factory)
        for name, attention in attentions.items():
            self.add_module(name, attention)
        self.num_branches = len(attentions) + 1
        for number in range(1, self.num_branches + 1):
            self.add_module(f"norm{number}", nn.LayerNorm(d_model, eps=layer_norm_eps, **factory))
        for number in range(1, self.num_branches + 1):
            self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self.activation = resolve_activation(activation)
        self.norm_first, self.chunk_size = norm_first, chunk_size

    def reset_parameters(self) -> None:
        for module in self.children():
            if isinstance(module, Attention | nn.Linear | nn.LayerNorm):
                module.reset_parameters()

    def norm(self, branch: int) -> nn.LayerNorm:
        """The norm of a branch, counted from 1."""
        return cast(nn.LayerNorm, getattr(self, f"norm{branch}"))

    def drop(self, branch: int, added: Tensor) -> Tensor:
        return cast(Tensor, getattr(self, f"dropout{branch}")(added))

    def run(self, x: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Every branch after the other; ``attends`` are the attentions, given what they attend to.

        With ``norm_first`` a branch adds ``dropout(f(norm(x)))``; without, it is ``norm(x + dropout(f(x)))``.
        """
        for branch, attend in enumerate(attends, 1):
            norm = self.norm(branch)
            added, _ = attend(norm(x) if self.norm_first else x)
            x = x + self.drop(branch, added)
            x = x if self.norm_first else norm(x)
        x = x + map_chunks(self.feed_forward, self, x, self.chunk_size, self.sequence_dim(x))
        return x if self.norm_first else self.norm(self.num_branches)(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """What the last branch adds, its norm included if that comes first."""
        x = self.norm(self.num_branches)(x) if self.norm_first else x
        hidden = run_activated(self.activation, self.linear1, x)
        if self.linear_gate is not None:
            hidden = hidden * run_linear(self.linear_gate, x)
        return self.drop(self.num_branches, run_linear(self.linear2, self.dropout(hidden)))

    def run_in_chunks(
        self,
        streams: Sequence[Tensor],
        padding: Padding | None,
        run: Callable[..., Sequence[Tensor]],
        shared_projection: SequenceMap | None = None,
        past: Past | None = None,
        overwrite: bool = False,
    ) -> list[Tensor]:
        """What ``run`` makes of the streams, chunk by chunk: the streams after the layer first.

        One pass over the last stream makes the slots that its chunks attend to; a causal layer needs no such pass: what
        it has read is its past. ``run`` is given the self-attention and the streams of a chunk. With ``overwrite`` the
        results may take the place of the streams.
        """
        if padding is not None and padding.is_piece:
            raise ValueError("a piece of the rows is not read in chunks: leave chunk_size out here")
        attention, size = self.self_attn, self.chunk_size
        sequences = [attention.to_batch_first(x) for x in streams]
        length, trailing = sequences[0].shape[1], None
        if padding is not None:  # real tokens first; what is moved is nobody else's, and may be written over
            sequences = [reorder(x, padding.order, dim=1) for x in sequences]
            overwrite, trailing = overwrite or not padding.in_order, padding.justified
        if attention.causal:
            attend = partial(attention, past=Past() if past is None else past)
        else:
            norm = self.norm(1) if self.norm_first else None
            inputs = Pair(sequences[-1], sequences[-1])
            attention.check_shapes(query=inputs.key, key=inputs.key, value=inputs.value)
            source = Source(inputs, trailing, attention.head_maps, size, norm)
            attend = partial(attention, key=attention.context.read(source, shared_projection), past=past)

        def parts() -> Iterator[tuple[slice, list[Tensor]]]:
            for chunk in cut(length, size):
                mask = chunk_padding(trailing, chunk)
                place: dict[str, Any] = {"key_padding_mask": mask} if attention.causal else {"start": chunk.start}
                read = (zero_padding(x[:, chunk], mask_of(mask)) for x in sequences)
                results = run(partial(attend, **place), *(attention.from_batch_first(x, unbatched=False) for x in read))
                yield chunk, [attention.to_batch_first(x) for x in results]

        outputs = gather(parts(), length, 1, sequences if overwrite else [])
        whole = (x if padding is None else padding.restore(x) for x in outputs)
        return [attention.from_batch_first(x, unbatched=streams[0].dim() == 2) for x in whole]

    def read_padding(self, x: Tensor, key_padding_mask: KeyPaddingMask) -> Padding | None:
        """The padding of ``x`` as the self-attention needs it, read once for all that the layer does."""
        ordered = self.self_attn.context.is_ordered
        return read_padding(key_padding_mask, self.self_attn.to_batch_first(x), ordered=ordered)

    def clean(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Zeros at padding: NaN there would reach the norms' gradients through the residual connection."""
        if padding is None:
            return x
        return self.self_attn.from_batch_first(padding.clean(self.self_attn.to_batch_first(x)), x.dim() == 2)

    def sequence_dim(self, x: Tensor) -> int:
        """The dimension of ``x`` along which the sequence runs."""
        return 1 if self.self_attn.batch_first and x.dim() == 3 else 0


class SelfAttentionLayer(TransformerLayer):
    """Self-attention, any of this package, and feed-forward: the branches of an encoder layer, however coupled."""

    def __init__(self, self_attn: Attention, *layout: Any, **options: Any) -> None:
        super().__init__({"self_attn": self_attn}, *layout, **options)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, max_len, mode)

    def can_chunk(self, padding: Padding | None, src_mask: Tensor | None, is_causal: bool, need_weights: bool) -> bool:
        """Whether a call with these arguments runs in chunks; a mask that is to be refused goes to the attention.

        Of a piece of the rows, which is short already, only the feed-forward does; so where the attention must be
        called to have its parameters.
        """
        refused = not self.self_attn.causal if is_causal else src_mask is not None
        whole = padding is None or not padding.is_piece
        in_chunks = self.self_attn.causal or not must_be_called(self.self_attn)
        return runs_in_chunks(self.chunk_size) and whole and in_chunks and not need_weights and not refused

    def attend_with(
        self,
        padding: Padding | None,
        src_mask: Tensor | None,
        is_causal: bool,
        shared_projection: SequenceMap | None,
        need_weights: bool,
        past: Past | None,
    ) -> Attend:
        """The self-attention with these arguments."""
        return partial(
            self.self_attn,
            key_padding_mask=padding,
            need_weights=need_weights,
            attn_mask=src_mask,
            average_attn_weights=False,
            is_causal=is_causal,
            shared_projection=shared_projection,
            past=past,
        )


class Stack(nn.Module):
    """Layers, a final norm if there is one, and the map to slots that the layers share if they share one."""

    def __init__(
        self,
        layers: Iterable[TransformerLayer],
        norm: nn.LayerNorm | None = None,
        shared_projection: SequenceMap | None = None,
        *,
        activation_memory: ActivationMemory = "none",
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shared_projection = shared_projection
        self.activation_memory = activation_memory
        check_activation_memory(activation_memory, all(layer.norm_first for layer in self.each_layer()))

    def each_layer(self) -> Iterator[TransformerLayer]:
        return (cast(TransformerLayer, layer) for layer in self.layers)

    @property
    def chunk_size(self) -> int | None:
        """Positions that inference works on at once, in the final norm as in the layers; None for all."""
        return cast(TransformerLayer, self.layers[0]).chunk_size if len(self.layers) > 0 else None

    def reset_parameters(self) -> None:
        for module in (*self.each_layer(), self.norm, self.shared_projection):
            if module is not None:
                module.reset_parameters()

    def calls(self, pasts: Sequence[Past] | None) -> Iterator[tuple[Callable[..., Any], Past | None]]:
        """What to call for each layer, itself or its checkpoint, and its past."""
        each_past = [None] * len(self.layers) if pasts is None else pasts
        if len(each_past) != len(self.layers):
            raise ValueError(f"pasts must be one Past a layer, {len(self.layers)} in all, got {len(each_past)}")
        # A layer that is computed again would find its past brought up to date already.
        is_kept = self.activation_memory != "checkpoint" or not torch.is_grad_enabled() or pasts is not None
        again = None if is_kept else computed_again(self)
        for layer, past in zip(self.layers, each_past, strict=True):
            # Transformers' own switch makes the layer do the same by itself: once is enough.
            switched = getattr(layer, "gradient_checkpointing", False) and layer.training
            yield layer if again is None or switched else partial(again, layer), past

    def finish(self, x: Tensor, overwrite: bool = False) -> Tensor:
        """The final norm, if there is one."""
        if self.norm is None:
            return x
        if not runs_in_chunks(self.chunk_size):
            return cast(Tensor, self.norm(x))
        dim = next(self.each_layer()).sequence_dim(x)
        return map_chunks(self.norm, self, x, self.chunk_size, dim, overwrite=overwrite)


class LayerPlan(NamedTuple):
    """What the attentions of a stack are built with."""

    k: list[int]  # slots of each layer
    options: dict[str, Any]  # of each attention
    shared_projection: SequenceMap | None  # which the stack owns; None if each attention has its own


def plan_layers(
    k: int | Sequence[int] | None,
    num_layers: int,
    max_len: int,
    width: int,
    options: AttentionConfig,
    *,
    name: str = "k",
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> LayerPlan:
    """Share the slots of ``max_len`` positions of ``width`` channels among layers.

    ``k``, called ``name`` in messages, is one number or one a layer; ``sharing="layerwise"`` takes the map out of
    ``options``. Raises ``ValueError`` for another number of numbers, or several with ``sharing="layerwise"``.
    """
    options.check()
    is_shared = options.sharing == "layerwise" and not options.causal  # which a causal attention refuses
    k = default_k(max_len) if k is None else k
    if isinstance(k, int):
        k = [k] * num_layers
    elif is_shared and len(set(k)) > 1:
        raise ValueError(
            f"sharing='layerwise' has one projection for all layers: {name} must be one number, got {list(k)}"
        )
    if len(k) != num_layers:
        raise ValueError(f"{name} must be one number or one a layer ({num_layers}), got {len(k)} numbers")
    if not is_shared:
        return LayerPlan(list(k), options.attention, None)
    map_options: dict[str, Any] = {"projection": options.projection, "length_scaling": options.length_scaling}
    # The others are for the attentions to check, which do not know the map that they are given.
    SlotContext.check_options(AttentionConfig(**map_options, sharing="layerwise", slot_mass=options.slot_mass))
    without_map = {"projection": None, "sharing": AttentionConfig.sharing, "length_scaling": True}
    shared = build_map(max_len, k[0], width, **map_options, device=device, dtype=dtype) if any(k) else None
    return LayerPlan(list(k), {**options.attention, **without_map}, shared)

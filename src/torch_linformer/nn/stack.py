"""A stack of layers: what encoders and decoders share."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from torch_linformer.choices import ActivationMemory
from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.nn.attention import Past
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import SequenceMap, build_map
from torch_linformer.nn.chunks import check_chunk_size, computed_again, map_chunks
from torch_linformer.nn.layer import TransformerLayer
from torch_linformer.nn.options import AttentionConfig, check_activation_memory, default_k


class Stack(nn.Module):
    """Layers, a final norm if there is one, and the projection that the layers share if they share one.

    Args:
        layers: the layers.
        norm: the final norm.
        shared_projection: the map to slots that all layers use.
        activation_memory: as in :class:`~torch_linformer.nn.options.StackConfig`.
        chunk_size: positions that the final norm works on at once in inference; the layers have their own.
    """

    def __init__(
        self,
        layers: Iterable[TransformerLayer],
        norm: nn.LayerNorm | None = None,
        shared_projection: SequenceMap | None = None,
        *,
        activation_memory: ActivationMemory = "none",
        chunk_size: int | None = None,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.shared_projection = shared_projection
        self.activation_memory, self.chunk_size = activation_memory, chunk_size
        check_chunk_size(chunk_size)
        check_activation_memory(activation_memory, all(layer.norm_first for layer in self.each_layer()))

    def each_layer(self) -> Iterator[TransformerLayer]:
        """The layers, from the first to the last."""
        return (cast(TransformerLayer, layer) for layer in self.layers)

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
        again = self.activation_memory == "checkpoint" and torch.is_grad_enabled() and pasts is None
        for layer, past in zip(self.layers, each_past, strict=True):
            # Transformers' own switch makes the layer do the same by itself: once is enough.
            switched = getattr(layer, "gradient_checkpointing", False) and layer.training
            yield computed_again(layer, self) if again and not switched else layer, past

    def finish(self, x: Tensor, overwrite: bool = False) -> Tensor:
        """The final norm, if there is one."""
        if self.norm is None:
            return x
        if len(self.layers) == 0 or not runs_in_chunks(self.chunk_size):
            return cast(Tensor, self.norm(x))
        dim = next(self.each_layer()).sequence_dim(x)
        return map_chunks(self.norm, self, x, self.chunk_size, dim, overwrite=overwrite)


class LayerPlan(NamedTuple):
    """What the attentions of a stack are built with.

    Attributes:
        k: slots of each layer.
        options: of each attention.
        shared_projection: the map to slots that all of them use, which the stack owns; None if each has its own.
    """

    k: list[int]
    options: dict[str, Any]
    shared_projection: SequenceMap | None


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

    Args:
        k: slots, one number, or one a layer; called ``name`` in messages; the default for ``max_len`` if None.
        options: of the attentions; ``sharing="layerwise"`` takes the map out of them.

    Raises:
        ValueError: for as many numbers as there are no layers, or several of them with ``sharing="layerwise"``.
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

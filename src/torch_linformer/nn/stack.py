"""A stack of layers: what encoders and decoders share."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from torch_linformer.nn.attention import Past
from torch_linformer.nn.attention.slots import Slots
from torch_linformer.nn.chunks import check_chunk_size, map_chunks, runs_in_chunks
from torch_linformer.nn.layer import TransformerLayer
from torch_linformer.nn.maps import SequenceMap, build_map
from torch_linformer.nn.options import (
    DEFAULTS,
    FORMER_NAME,
    ActivationMemory,
    AttentionOptions,
    check_activation_memory,
    complete,
)
from torch_linformer.nn.recomputing import computed_again


class Stack(nn.Module):
    """Layers, a final norm if there is one, and the projection that the layers share if they share one.

    Args:
        layers: the layers.
        norm: the final norm.
        shared_projection: the map to slots that all layers use.
        activation_memory: as in :class:`~torch_linformer.nn.options.StackOptions`.
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

    @property
    def memory(self) -> ActivationMemory:
        """The former name of ``activation_memory``."""
        warnings.warn(FORMER_NAME, FutureWarning, stacklevel=2)
        return self.activation_memory

    @memory.setter
    def memory(self, value: ActivationMemory) -> None:
        warnings.warn(FORMER_NAME, FutureWarning, stacklevel=2)
        self.activation_memory = value

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


def k_per_layer(k: int | Sequence[int], num_layers: int, sharing: str | None, name: str = "k") -> list[int]:
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


def split_sharing(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Options of attention in a stack, as each layer takes them, and those of the projection that all share, if any.

    Raises:
        ValueError: for a projection that has nothing to share.
    """
    chosen = complete({name: value for name, value in options.items() if name in DEFAULTS}, None)
    if chosen["sharing"] != "layerwise" or chosen["causal"]:  # which the attention refuses
        return dict(options), None
    of_shared = AttentionOptions(projection=chosen["projection"], length_scaling=chosen["length_scaling"])
    # The others are for the attentions to check, which do not know the map that they are given.
    Slots.check_options({**DEFAULTS, **of_shared, "sharing": "layerwise", "slot_mass": chosen["slot_mass"]})
    rest = {name: value for name, value in options.items() if name not in ("sharing", "length_scaling")}
    return {**rest, "projection": None}, {**of_shared}


def shared_map(
    options: dict[str, Any] | None, max_len: int, ks: Sequence[int], width: int, **factory: Any
) -> SequenceMap | None:
    """The map that all layers share, by the options of :func:`split_sharing`; None without one, and without slots."""
    return build_map(max_len, ks[0], width, **options, **factory) if options is not None and any(ks) else None


def final_norm(
    wanted: bool,
    d_model: int,
    layer_norm_eps: float,
    bias: bool = True,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> nn.LayerNorm | None:
    """The norm after the last layer, or None."""
    return nn.LayerNorm(d_model, layer_norm_eps, bias=bias, device=device, dtype=dtype) if wanted else None

"""The maps of a sequence to slots, fixed by position or chosen by the input: how they are built and resized."""

from typing import Any, Literal

from torch import nn

from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.nn.options import DEFAULTS
from torch_linformer.nn.projection import SequenceProjection

SequenceMap = SequenceProjection | DynamicProjection


def build_map(
    max_len: int,
    k: int,
    width: int,
    *,
    projection: Any,
    num_heads: int | None = None,
    length_scaling: bool = DEFAULTS["length_scaling"],
    **factory: Any,
) -> SequenceMap:
    """The map of this ``projection``; ``width`` is that of what a dynamic one scores, ``factory`` device and dtype."""
    if projection == "dynamic":
        return DynamicProjection(max_len, k, width, num_heads=num_heads, **factory)
    options: dict[str, Any] = {"projection": projection, "num_heads": num_heads, "length_scaling": length_scaling}
    return SequenceProjection(max_len, k, **options, **factory)


def maps_in(owner: nn.Module) -> list[SequenceMap]:
    """Every map in ``owner``."""
    return [module for module in owner.modules() if isinstance(module, SequenceMap)]


def resize_maps(owner: nn.Module, max_len: int, mode: Literal["interpolate", "keep"]) -> None:
    """``resize_max_len`` of every map in ``owner``, or of none where one of them refuses."""
    maps = maps_in(owner)
    if not maps:
        raise ValueError(
            f"nothing to resize: this {type(owner).__name__} owns no map of a whole sequence. A causal one reads any "
            "length, and one with projection=None is given its map"
        )
    for module in maps:
        module.check_resize(max_len, mode)
    for module in maps:
        module.resize_max_len(max_len, mode)

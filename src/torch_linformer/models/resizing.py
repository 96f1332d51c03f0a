"""What is asked before a model changes its length, so that it changes as a whole or not at all."""

from numbers import Integral

from torch import nn

from torch_linformer.nn.maps import maps_in


def check_new_length(max_len: int, mode: str, k: int | list[int], name: str) -> None:
    """Raise ``ValueError`` for an unknown mode, or a length that is no number or below ``k``, the field ``name``."""
    if mode not in ("interpolate", "keep"):
        raise ValueError(f"mode must be 'interpolate' or 'keep', got {mode!r}")
    least = max(1, k if isinstance(k, int) else max(k))
    if not isinstance(max_len, Integral):
        raise ValueError(f"max_len must be a whole number, got {max_len!r}")
    if max_len < least:
        raise ValueError(f"max_len must be at least {name} = {least}, got {max_len}")


def check_maps(owner: nn.Module, max_len: int, mode: str) -> None:
    """Raise ``ValueError`` where one of the maps to slots in ``owner`` cannot be resized."""
    for module in maps_in(owner):
        module.check_resize(max_len, mode)

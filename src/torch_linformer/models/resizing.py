"""What is asked before a model changes its length, so that it changes as a whole or not at all."""

from torch import nn

from torch_linformer.nn.attention.slot_maps import maps_in


def check_maps(owner: nn.Module, max_len: int, mode: str) -> None:
    """Raise ``ValueError`` where one of the maps to slots in ``owner`` cannot be resized."""
    for module in maps_in(owner):
        module.check_resize(max_len, mode)

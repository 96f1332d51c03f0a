"""Padding masks as users of ``torch.nn`` give them."""

import torch
from torch import Tensor

from torch_linformer.functional.projection import check_padding_mask


def bool_padding_mask(key_padding_mask: Tensor | None, key: Tensor) -> Tensor | None:
    """Bool ``(B, M)`` for ``key`` ``(B, M, C)`` from a bool or float mask, checked.

    In a float mask −inf is padding, and so is the lowest finite number, which some libraries write for it.
    """
    if key_padding_mask is None:
        return None
    if key_padding_mask.is_floating_point():
        key_padding_mask = key_padding_mask <= torch.finfo(key_padding_mask.dtype).min
    if key_padding_mask.dim() == 1:
        key_padding_mask = key_padding_mask.unsqueeze(0)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[1])
    return key_padding_mask

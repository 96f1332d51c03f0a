"""Padding masks as users of ``torch.nn`` give them."""

from torch import Tensor

from torch_linformer.functional.padding import Padding, check_padding_mask
from torch_linformer.functional.pytorch import assert_async

# Added to a score it leaves no weight, not even in float64: exp(-1000) is 0. The −1e4 of older code is rounded to more
# in bfloat16, so the bound lies well above it.
LOWEST = -1e3

KeyPaddingMask = Tensor | Padding | None


def read_padding(key_padding_mask: KeyPaddingMask, key: Tensor, *, ordered: bool) -> Padding | None:
    """The padding of ``key`` ``(B, M, C)`` from a mask ``(B, M)``, checked; what was read before stays as it is.

    Args:
        key_padding_mask: bool (True at padding) or float: 0 at real tokens, and −1000 or less at padding.
        key: the keys.
        ordered: real tokens may have to be moved: their place among each other matters to who attends.

    Raises:
        ValueError: for another dtype or shape, and for a float mask with other numbers.
    """
    if key_padding_mask is None or isinstance(key_padding_mask, Padding):
        return key_padding_mask
    mask = hidden_by(key_padding_mask) if key_padding_mask.is_floating_point() else key_padding_mask
    mask = mask.unsqueeze(0) if mask.dim() == 1 else mask
    check_padding_mask(mask, key.shape[0], key.shape[1])
    return Padding(mask, in_order=not ordered)


def hidden_by(mask: Tensor) -> Tensor:
    """Bool: where a float mask hides; it must be 0 elsewhere. On a GPU, which nothing waits for, that is asserted."""
    hidden = mask <= LOWEST
    message = (
        f"key_padding_mask of {mask.dtype} must be 0 at real tokens and -inf, or any number up to {LOWEST:g}, at "
        "padding; it holds other numbers, which cannot be added to scores here. A bool mask has True at padding"
    )
    try:
        assert_async((hidden | (mask == 0)).all(), message)
    except RuntimeError as error:
        raise ValueError(message) from error
    return hidden

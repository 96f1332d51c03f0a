"""Masks that keep what follows from them."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple

from torch import Tensor

from torch_linformer.functional.kernels.graph import records_a_graph

Derived = TypeVar("Derived")
Arguments = TypeVarTuple("Arguments")
MaskLike = TypeVar("MaskLike", bound="Mask")


class Mask:
    """A bool mask that nobody changes, True at what is hidden, and what follows from it, worked out once.

    The layers of a stack have the same padding: what one of them asks about it, the others ask again.
    """

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._derived: dict[Hashable, Any] = {}

    def derive(self: MaskLike, function: Callable[[MaskLike, *Arguments], Derived], *args: *Arguments) -> Derived:
        """``function(self, *args)``, kept for the next time that it is asked for.

        Not in a recorded graph: it finds equal steps itself, and may not write to what it is given.
        """
        if records_a_graph():
            return function(self, *args)
        key = (function, args)
        if key not in self._derived:
            self._derived[key] = function(self, *args)
        derived: Derived = self._derived[key]
        return derived


def kept(method: Callable[[MaskLike, *Arguments], Derived]) -> Callable[[MaskLike, *Arguments], Derived]:
    """A method of a mask whose results are kept: see :meth:`Mask.derive`."""

    @wraps(method)
    def derived(mask: MaskLike, *args: *Arguments) -> Derived:
        return mask.derive(method, *args)

    return derived


def derive(
    mask: MaskLike | None, function: Callable[[MaskLike | None, *Arguments], Derived], *args: *Arguments
) -> Derived:
    """:meth:`Mask.derive`; without a mask, which would keep it, ``function(None, *args)``."""
    return function(None, *args) if mask is None else mask.derive(function, *args)


def mask_of(mask: Mask | Tensor | None) -> Tensor | None:
    """The tensor of a mask, bool ``(B or 1, N)``; None where nothing is hidden."""
    return mask.mask if isinstance(mask, Mask) else mask


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A mask that keeps what follows from it."""
    return Mask(mask) if isinstance(mask, Tensor) else mask

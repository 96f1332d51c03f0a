"""What the backward pass computes again, with the parameters of the forward pass."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.kernels.graph import lends_parameters


class Parameters:
    """The parameters and buffers of a module, now: ``torch.func.functional_call`` lends it others for a call.

    As a context manager, which may be entered any number of times in turn, it puts them back into the module.
    """

    def __init__(self, module: nn.Module) -> None:
        self._held: list[tuple[dict[str, Any], str, Tensor, int]] = [
            (tensors, name, tensor, tensor._version)
            for part in module.modules()
            for tensors in (part._parameters, part._buffers)
            for name, tensor in tensors.items()
            if tensor is not None
        ]
        self._lent: list[tuple[dict[str, Any], str, Tensor]] = []

    def __enter__(self) -> None:
        for _, name, then, version in self._held:
            if then._version != version and (then.requires_grad or isinstance(then, nn.Parameter)):
                raise RuntimeError(
                    f"{name} of a layer that is computed again has been modified by an inplace operation"
                )
        for tensors, name, then, _ in self._held:
            now = tensors[name]
            if now is not then and _takes_the_place_of(then, now):
                self._lent.append((tensors, name, now))
                tensors[name] = then

    def __exit__(self, *error: object) -> None:
        while self._lent:
            tensors, name, now = self._lent.pop()
            tensors[name] = now


def computed_again(function: Callable[..., Any], owner: nn.Module) -> Callable[..., Any]:
    """``function``, which keeps only its inputs for the backward pass, and is computed again there.

    Args:
        function: what takes part in the graph by its arguments, and by tensors of
        owner: the module whose parameters and buffers it computes with.
    """
    if not lends_parameters():  # where nothing else can be lent
        return partial(checkpoint, function, use_reentrant=False)
    parameters = Parameters(owner)
    return partial(checkpoint, function, use_reentrant=False, context_fn=lambda: (nullcontext(), parameters))


def _takes_the_place_of(then: Tensor, now: Tensor | None) -> bool:
    """False where a parameter was sharded and now is whole, or the other way round."""
    plain = (Tensor, nn.Parameter)
    return now is not None and type(then) in plain and type(now) in plain and then.shape == now.shape

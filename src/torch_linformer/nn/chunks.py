"""A long sequence worked on a chunk at a time, and what the backward pass computes again instead of keeping it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import can_be_cut, can_swap_parameters

PositionWise = Callable[[Tensor], Tensor]


def check_chunk_size(chunk_size: int | None) -> None:
    """Raise ``ValueError`` for a chunk of no positions."""
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None for the whole sequence at once, got {chunk_size}")


def has_hooks(module: nn.Module) -> bool:
    """Whether a hook sees what goes through ``module`` or a module in it, and may keep it."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


def must_be_called(module: nn.Module) -> bool:
    """Whether FSDP2 wraps ``module`` by itself: only a call gathers its parameters, none of its other methods does."""
    fsdp = sys.modules.get("torch.distributed.fsdp")  # loaded by whoever wraps a module, and by nobody else
    return isinstance(module, getattr(fsdp, "FSDPModule", ()))


def cut(length: int, size: int | None) -> Iterator[slice]:
    """``size`` positions at a time, None for all of them; no positions at all are one chunk."""
    if size is None:
        yield slice(0, length)
        return
    for start in range(0, max(length, 1), size):
        yield slice(start, min(start + size, length))


def take(sequence: Tensor, chunk: slice, dim: int) -> Tensor:
    """A view of some positions."""
    return sequence.narrow(dim, chunk.start, chunk.stop - chunk.start)


def chunk_padding(padding: Padding | None, chunk: slice) -> Padding | None:
    """The padding of some positions of rows whose real tokens come first."""
    return None if padding is None else Padding(padding.mask[:, chunk], in_order=True)


class Gathered:
    """A sequence of ``length`` positions in dimension ``dim``, gathered chunk by chunk.

    It is written into ``buffer`` where that has its dtype, and otherwise into a new tensor.
    """

    def __init__(self, length: int, dim: int, buffer: Tensor | None = None) -> None:
        self.length, self.dim = length, dim
        self._output = buffer
        self._overwrites = buffer is not None

    def is_whole(self, chunk: slice) -> bool:
        """Whether ``chunk`` is all of it."""
        return bool(chunk.stop - chunk.start == self.length)

    def write(self, chunk: slice, part: Tensor) -> None:
        """Put ``part`` where ``chunk`` says."""
        if self.is_whole(chunk) and not self._overwrites:
            self._output = part
            return
        if self._output is None or self._output.dtype != part.dtype:
            shape = [self.length if axis == self.dim else size for axis, size in enumerate(part.shape)]
            self._output = part.new_empty(shape)
        take(self._output, chunk, self.dim).copy_(part)

    def sequence(self) -> Tensor:
        """The whole, once every chunk is written."""
        assert self._output is not None
        return self._output


def map_chunks(
    function: PositionWise,
    owner: nn.Module,
    sequence: Tensor,
    chunk_size: int | None,
    dim: int,
    *,
    overwrite: bool = False,
) -> Tensor:
    """``function`` of the parameters of ``owner``, which takes every position by itself, over chunks of ``dim``.

    With gradients a chunk keeps only its input and is computed again in the backward pass. Without, ``overwrite``
    lets the result take the place of ``sequence``.
    """
    length = sequence.shape[dim]
    if chunk_size is None or not can_be_cut():
        return function(sequence)
    if torch.is_grad_enabled():
        again = computed_again(function, owner)
        results = [again(take(sequence, chunk, dim)) for chunk in cut(length, chunk_size)]
        return results[0] if len(results) == 1 else torch.cat(results, dim)
    output = Gathered(length, dim, sequence if overwrite else None)
    for chunk in cut(length, chunk_size):
        output.write(chunk, function(take(sequence, chunk, dim)))
    return output.sequence()


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
        function: reads only its arguments, and parameters and buffers of ``owner``.
        owner: a module.
    """
    if not can_swap_parameters():
        return partial(checkpoint, function, use_reentrant=False)
    parameters = Parameters(owner)
    return partial(checkpoint, function, use_reentrant=False, context_fn=lambda: (nullcontext(), parameters))


def _takes_the_place_of(then: Tensor, now: Tensor | None) -> bool:
    """False where a parameter was sharded and now is whole, or the other way round."""
    plain = (Tensor, nn.Parameter)
    return now is not None and type(then) in plain and type(now) in plain and then.shape == now.shape

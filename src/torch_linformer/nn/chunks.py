"""A long sequence worked on a chunk at a time, and what the backward pass computes again instead of keeping it."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import can_be_cut, can_swap_parameters


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
    for start in range(0, max(length, 1), size) if size is not None else (0,):
        yield slice(start, length if size is None else min(start + size, length))


def take(sequence: Tensor, chunk: slice, dim: int) -> Tensor:
    """A view of some positions."""
    return sequence.narrow(dim, chunk.start, chunk.stop - chunk.start)


def chunk_padding(padding: Padding | None, chunk: slice) -> Padding | None:
    """The padding of some positions of rows whose real tokens come first."""
    return None if padding is None else Padding(padding.mask[:, chunk], in_order=True)


def gather(
    parts: Iterable[tuple[slice, Sequence[Tensor]]], length: int, dim: int, buffers: Sequence[Tensor] = ()
) -> list[Tensor]:
    """The sequences of ``length`` positions whose chunks ``parts`` yields, each chunk of all of them at once.

    The first are written into ``buffers`` of their dtype, the others into new tensors.
    """
    outputs = list(buffers)
    for chunk, tensors in parts:
        for number, part in enumerate(tensors):
            if number == len(outputs) or outputs[number].dtype != part.dtype:
                whole = part if part.shape[dim] == length else None
                sizes = [length if axis == dim else size for axis, size in enumerate(part.shape)]
                outputs[number : number + 1] = [part.new_empty(sizes) if whole is None else whole]
            if outputs[number] is not part:
                take(outputs[number], chunk, dim).copy_(part)
        del tensors, part  # so that the next chunk is computed in the same memory
    return outputs


def map_chunks(
    function: Callable[[Tensor], Tensor],
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
    if chunk_size is None or not can_be_cut():
        return function(sequence)
    length, chunks = sequence.shape[dim], cut(sequence.shape[dim], chunk_size)
    if torch.is_grad_enabled():
        again = computed_again(owner)
        results = [again(function, take(sequence, chunk, dim)) for chunk in chunks]
        return results[0] if len(results) == 1 else torch.cat(results, dim)
    parts = ((chunk, [function(take(sequence, chunk, dim))]) for chunk in chunks)
    return gather(parts, length, dim, [sequence] if overwrite else [])[0]


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
        plain = (Tensor, nn.Parameter)
        for tensors, name, then, _ in self._held:
            now = tensors[name]
            # One that has been sharded since, or made whole, stays: FSDP sees to it.
            is_plain = type(then) in plain and type(now) in plain
            if now is not then and is_plain and then.shape == now.shape:
                self._lent.append((tensors, name, now))
                tensors[name] = then

    def __exit__(self, *error: object) -> None:
        while self._lent:
            tensors, name, now = self._lent.pop()
            tensors[name] = now


def computed_again(owner: nn.Module) -> Callable[..., Any]:
    """Calls a function, of which only the arguments are kept for the backward pass: it is computed again there.

    It reads only its arguments, and parameters and buffers of ``owner``.
    """
    if not can_swap_parameters():
        return partial(checkpoint, use_reentrant=False)
    parameters = Parameters(owner)
    return partial(checkpoint, use_reentrant=False, context_fn=lambda: (nullcontext(), parameters))

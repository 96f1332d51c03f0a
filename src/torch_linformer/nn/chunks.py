"""A long sequence worked on a chunk at a time, so that nothing but the hidden states themselves grows with it."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from torch_linformer.functional.dynamic import Pooled
from torch_linformer.functional.padding import Padding, mask_of, reorder, zero_padding
from torch_linformer.functional.projection import check_length, scale_to_length
from torch_linformer.functional.torch_state import records_a_graph
from torch_linformer.nn.dynamic_projection import DynamicProjection, real_tokens
from torch_linformer.nn.options import DENSE
from torch_linformer.nn.projection import SequenceProjection
from torch_linformer.nn.recomputing import computed_again

PositionWise = Callable[[Tensor], Tensor]


def check_chunk_size(chunk_size: int | None) -> None:
    """Raise ``ValueError`` for a chunk of no positions."""
    if chunk_size is not None and chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, or None for the whole sequence at once, got {chunk_size}")


def runs_in_chunks(chunk_size: int | None) -> bool:
    """Whether inference goes chunk by chunk. A graph over all lengths cannot have as many steps as chunks."""
    return chunk_size is not None and not torch.is_grad_enabled() and not records_a_graph()


def is_watched(module: nn.Module) -> bool:
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


class Chunks:
    """A sequence ``(B, N, C)``, read ``size`` positions at a time, its real tokens first and zeros at padding.

    Attributes:
        padding: of the sequence as it is read.
        is_copy: its real tokens were moved, so that it is nobody else's and may be written over.
    """

    def __init__(self, sequence: Tensor, padding: Padding | None, size: int) -> None:
        if padding is not None and padding.is_piece:
            raise ValueError("a piece of the rows is not read in chunks: leave chunk_size out here")
        self.is_copy = padding is not None and not padding.in_order
        self.sequence = sequence if padding is None else reorder(sequence, padding.order, dim=1)
        self.padding = None if padding is None else padding.justified
        self.size, self.length = size, sequence.shape[1]

    def cut_at(self, multiple: int) -> Iterator[slice]:
        """The chunks, which begin at multiples of ``multiple``: no window lies in two of them."""
        return cut(self.length, max(self.size // multiple, 1) * multiple)

    def read(self, chunk: slice, norm: nn.LayerNorm | None = None) -> Tensor:
        """One chunk, normed if there is a norm."""
        return self.normed(self.sequence[:, chunk], mask_of(self.padding_of(chunk)), norm)

    def normed(self, piece: Tensor, padding: Tensor | None, norm: nn.LayerNorm | None) -> Tensor:
        """Positions ``(B, m, C)`` with zeros at padding ``(B or 1, m)``, normed if there is a norm."""
        piece = zero_padding(piece, padding)
        return piece if norm is None else cast(Tensor, norm(piece))

    def padding_of(self, chunk: slice) -> Padding | None:
        return None if self.padding is None else Padding(self.padding.mask[:, chunk], in_order=True)


class SlotsOfChunks:
    """The slots a projection makes of sequences that come chunk by chunk."""

    def __init__(self, projection: SequenceProjection, chunks: Chunks) -> None:
        check_length(chunks.length, projection.max_len)
        self.projection, self.chunks = projection, chunks
        self._parts: list[list[Tensor]] = []

    def add(self, chunk: slice, scored: Tensor, pooled: Sequence[Tensor]) -> None:
        """Take the positions of ``chunk`` of each sequence, ``(B, m, C)`` or ``(B, H, m, D)``."""
        padding = self.chunks.padding_of(chunk)
        slots = [self.projection(piece, padding, all_slots=False, chunk=chunk) for piece in pooled]
        if self.projection.projection not in DENSE:
            self._parts.append(slots)
            return
        self._dtype = slots[0].dtype
        # Roundings of a sum grow with its terms: this one is kept in no less than float32.
        slots = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in slots]
        sums = self._parts[0] if self._parts else None
        self._parts = [slots if sums is None else [x.add_(y) for x, y in zip(sums, slots, strict=True)]]

    def total(self) -> list[Tensor]:
        """The slots ``(B, ·, C)`` or ``(B, H, ·, D)`` that each whole sequence reaches."""
        if self.projection.projection not in DENSE:
            return [torch.cat(each, dim=-2) for each in zip(*self._parts, strict=True)]
        slots = self._parts[0]
        if self.projection.length_scaling:
            max_len, length, padding = self.projection.max_len, self.chunks.length, self.chunks.padding
            slots = [scale_to_length(x, max_len, length, padding) for x in slots]
        return [x.to(self._dtype) for x in slots]


class DynamicSlotsOfChunks:
    """The slots that a map chosen by the input makes of sequences that come chunk by chunk: a softmax over all of them.

    Arguments and methods are those of :class:`SlotsOfChunks`.
    """

    def __init__(self, projection: DynamicProjection, chunks: Chunks) -> None:
        check_length(chunks.length, projection.max_len)
        self.projection, self.chunks = projection, chunks
        self.tokens = real_tokens(chunks.sequence, chunks.padding)
        self._part: Pooled | None = None

    def add(self, chunk: slice, scored: Tensor, pooled: Sequence[Tensor]) -> None:
        padding = self.chunks.padding_of(chunk)
        part = self.projection(scored, pooled, padding, chunk=chunk, tokens=self.tokens)
        self._part = part if self._part is None else self._part.joined(part)
        self._like = [x[..., :0, :] for x in pooled]

    def total(self) -> list[Tensor]:
        assert self._part is not None
        return self.projection.slots_like(self._part, self._like)


class Gathered:
    """A sequence of ``length`` positions in dimension ``dim``, gathered piece by piece.

    It is written into ``buffer`` where that has its dtype, and otherwise into a new tensor.
    """

    def __init__(self, length: int, dim: int, buffer: Tensor | None = None) -> None:
        self.length, self.dim = length, dim
        self._output = buffer
        self._overwrites = buffer is not None

    def is_whole(self, chunk: slice) -> bool:
        """Whether ``chunk`` is all of it."""
        return bool(chunk.stop - chunk.start == self.length)

    def write(self, chunk: slice, piece: Tensor) -> None:
        """Put ``piece`` where ``chunk`` says."""
        if self.is_whole(chunk) and not self._overwrites:
            self._output = piece
            return
        if self._output is None or self._output.dtype != piece.dtype:
            shape = [self.length if axis == self.dim else size for axis, size in enumerate(piece.shape)]
            self._output = piece.new_empty(shape)
        take(self._output, chunk, self.dim).copy_(piece)

    def sequence(self) -> Tensor:
        """The whole, once every piece is written."""
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
    if chunk_size is None or records_a_graph():
        return function(sequence)
    if torch.is_grad_enabled():
        pieces = (take(sequence, chunk, dim) for chunk in cut(length, chunk_size))
        again = computed_again(function, owner)
        results = [again(piece) for piece in pieces]
        return results[0] if len(results) == 1 else torch.cat(results, dim)
    output = Gathered(length, dim, sequence if overwrite else None)
    for chunk in cut(length, chunk_size):
        output.write(chunk, function(take(sequence, chunk, dim)))
    return output.sequence()

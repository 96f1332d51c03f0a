"""What a context reads: the keys and values of M positions, before or after their linear maps, whole or in chunks."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding, length_of, mask_of, zero_padding
from torch_linformer.functional.softmax import ExactPlaces
from torch_linformer.nn.chunks import chunk_padding, cut
from torch_linformer.nn.linear import run_linear


class Pair(NamedTuple):
    """A sequence for the keys and one for the values: inputs ``(B, M, C)``, or heads ``(B, H, M, D)``."""

    key: Tensor
    value: Tensor


class HeadMaps(NamedTuple):
    """The linear maps from inputs to the heads of keys and values."""

    key: nn.Linear
    value: nn.Linear
    num_heads: int
    head_dim: int

    @property
    def has_bias(self) -> bool:
        return self.key.bias is not None or self.value.bias is not None

    def heads(self, inputs: Pair) -> Pair:
        """``(B, H, M, D)`` of inputs ``(B, M, C)``."""
        return self.split(Pair(run_linear(self.key, inputs.key), run_linear(self.value, inputs.value)))

    def split(self, channels: Pair) -> Pair:
        """``(B, M, H · D)`` to ``(B, H, M, D)``."""
        return Pair(*(x.view(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for x in channels))


class Source:
    """What keys and values are made of: a sequence for each, in the order of real tokens that the context needs.

    Args:
        inputs: ``(B, M, C)``, or heads ``(B, H, M, D)``, which are their own inputs; with zeros at padding.
        padding: of these positions.
        maps: the linear maps of inputs to heads; None for heads.
        chunk_size: positions read at once; None for all. Zeros are then put at padding only as it is read, after
        norm: of the inputs, if there is one: it has a bias.
    """

    def __init__(
        self,
        inputs: Pair,
        padding: Padding | None,
        maps: HeadMaps | None = None,
        chunk_size: int | None = None,
        norm: nn.LayerNorm | None = None,
    ) -> None:
        self._inputs, self.padding, self.maps = inputs, padding, maps
        self.chunk_size, self._norm = chunk_size, norm

    @property
    def like(self) -> Tensor:
        """A sequence ``(B, M, ·)`` of the batch, the length, the dtype and the device of what is read."""
        return self._inputs.key if self._inputs.key.dim() == 3 else self._inputs.key[:, 0]

    @property
    def is_one_input(self) -> bool:
        """Whether keys and values are made of the same inputs."""
        return self._inputs.key is self._inputs.value

    @property
    def length(self) -> int:
        """Positions of the whole rows, of which these may be a piece."""
        return length_of(self.like, self.padding)

    def chunks(self, multiple: int) -> Iterator[slice]:
        """The chunks in which it is read, each beginning at a multiple of ``multiple``."""
        size = None if self.chunk_size is None else max(self.chunk_size // multiple, 1) * multiple
        return cut(self.like.shape[1], size)

    def padding_of(self, chunk: slice) -> Padding | None:
        return self.padding if self.chunk_size is None else chunk_padding(self.padding, chunk)

    def inputs(self, chunk: slice | None = None) -> Pair:
        """Inputs of a chunk, or all of them."""
        if chunk is None or self.chunk_size is None:
            return self._inputs
        return self._normed(self._inputs.key[:, chunk], mask_of(self.padding_of(chunk)))

    def heads(self, inputs: Pair) -> Pair:
        """Heads ``(B, H, m, D)`` of the :meth:`inputs` of a chunk."""
        return inputs if self.maps is None else self.maps.heads(inputs)

    def all_heads(self) -> Pair:
        """Heads of all positions."""
        if self.chunk_size is None:
            return self.heads(self._inputs)
        return join([self.heads(self.inputs(chunk)) for chunk in self.chunks(1)])

    def tokens(self, places: ExactPlaces) -> Pair:
        """Heads ``(B, H, T, D)`` of some tokens."""
        if self.maps is None:
            heads = self._inputs.key.shape[1]
            rows = (places.take(x.transpose(1, 2).flatten(2)) for x in self._inputs)
            return Pair(*(torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in rows))
        keys = places.take(self._inputs.key)
        if self.chunk_size is not None:
            return self.heads(self._normed(keys, mask_of(places.missing)))
        return self.heads(Pair(keys, keys if self.is_one_input else places.take(self._inputs.value)))

    def _normed(self, positions: Tensor, mask: Tensor | None) -> Pair:
        positions = zero_padding(positions if self._norm is None else self._norm(positions), mask)
        return Pair(positions, positions)


def join(heads: list[Pair]) -> Pair:
    """The heads of chunks, one after the other."""
    return heads[0] if len(heads) == 1 else Pair(*(torch.cat(x, dim=2) for x in zip(*heads, strict=True)))

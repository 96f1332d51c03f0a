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

    @property
    def widths(self) -> list[tuple[int, int]]:
        """Inputs and outputs of both maps."""
        return [(linear.in_features, linear.out_features) for linear in (self.key, self.value)]

    def heads(self, inputs: Pair) -> Pair:
        """``(B, H, M, D)`` of inputs ``(B, M, C)``."""
        return self.split(Pair(run_linear(self.key, inputs.key), run_linear(self.value, inputs.value)))

    def split(self, channels: Pair) -> Pair:
        """``(B, M, H · D)`` to ``(B, H, M, D)``."""
        return Pair(*(x.view(*x.shape[:-1], self.num_heads, self.head_dim).transpose(1, 2) for x in channels))


class Source:
    """Inputs ``(B, M, C)`` of keys and values, and the linear maps that make heads of them.

    Args:
        inputs: with zeros at padding; the context's order of real tokens is theirs.
        padding: of these positions.
        maps: of this attention.
    """

    def __init__(self, inputs: Pair, padding: Padding | None, maps: HeadMaps | None) -> None:
        self._inputs, self.padding, self.maps = inputs, padding, maps

    @property
    def like(self) -> Tensor:
        """A sequence ``(B, M, ·)`` of the batch, the length, the dtype and the device of what is read."""
        return self._inputs.key

    @property
    def is_one_input(self) -> bool:
        """Whether keys and values are made of the same inputs."""
        return self._inputs.key is self._inputs.value

    @property
    def length(self) -> int:
        """Positions of the whole rows, of which these may be a piece."""
        return length_of(self.like, self.padding)

    def chunks(self, multiple: int) -> Iterator[slice]:
        """The chunks in which it is read, one by default, each beginning at a multiple of ``multiple``."""
        yield slice(0, self.like.shape[1])

    def is_whole(self, chunk: slice) -> bool:
        """Whether ``chunk`` is all there is."""
        return bool(chunk.stop - chunk.start == self.like.shape[1])

    def padding_of(self, chunk: slice) -> Padding | None:
        return self.padding

    def inputs(self, chunk: slice) -> Pair:
        """Inputs of a chunk."""
        return self._inputs

    def heads(self, inputs: Pair) -> Pair:
        """Heads ``(B, H, m, D)`` of the :meth:`inputs` of a chunk."""
        assert self.maps is not None
        return self.maps.heads(inputs)

    def all_heads(self) -> Pair:
        """Heads of all positions."""
        parts = [self.heads(self.inputs(chunk)) for chunk in self.chunks(1)]
        return parts[0] if len(parts) == 1 else Pair(*(torch.cat(x, dim=2) for x in zip(*parts, strict=True)))

    def tokens(self, places: ExactPlaces) -> Pair:
        """Heads ``(B, H, T, D)`` of some tokens."""
        keys = places.take(self._inputs.key)
        return self.heads(Pair(keys, keys if self.is_one_input else places.take(self._inputs.value)))


class ChunkedSource(Source):
    """A sequence ``(B, N, C)`` that is read ``size`` positions at a time, and normed if there is a norm.

    Zeros are put at padding as it is read.
    """

    def __init__(
        self, sequence: Tensor, padding: Padding | None, maps: HeadMaps, size: int, norm: nn.LayerNorm | None
    ) -> None:
        super().__init__(Pair(sequence, sequence), padding, maps)
        self.size, self.norm = size, norm

    def chunks(self, multiple: int) -> Iterator[slice]:
        return cut(self.like.shape[1], max(self.size // multiple, 1) * multiple)

    def padding_of(self, chunk: slice) -> Padding | None:
        return chunk_padding(self.padding, chunk)

    def inputs(self, chunk: slice) -> Pair:
        return self._normed(self.like[:, chunk], mask_of(self.padding_of(chunk)))

    def tokens(self, places: ExactPlaces) -> Pair:
        return self.heads(self._normed(places.take(self.like), mask_of(places.missing)))

    def _normed(self, positions: Tensor, mask: Tensor | None) -> Pair:
        if self.norm is not None:
            positions = self.norm(positions)
        positions = zero_padding(positions, mask)  # last, because a norm has a bias
        return Pair(positions, positions)


class HeadSource(Source):
    """Keys and values of heads ``(B, H, M, D)``, which are their own inputs."""

    def __init__(self, keys: Tensor, values: Tensor, padding: Padding | None) -> None:
        super().__init__(Pair(keys, values), padding, None)

    @property
    def like(self) -> Tensor:
        return self._inputs.key[:, 0]

    def heads(self, inputs: Pair) -> Pair:
        return inputs

    def tokens(self, places: ExactPlaces) -> Pair:
        heads = self._inputs.key.shape[1]
        rows = (places.take(x.transpose(1, 2).flatten(2)) for x in self._inputs)
        return Pair(*(torch.unflatten(x, -1, (heads, -1)).transpose(1, 2) for x in rows))

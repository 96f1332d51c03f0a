r"""The matrices of an inspection as the page carries them: means over blocks of tokens, in 16-bit floats.

A page for 4,096 tokens must not exceed a few megabytes, but a single head of 256 slots has a million weights. So the
page carries the factors :math:`\bar P` and F instead of their N × N product, and its script multiplies what is in view.
Where the factors do not fit either, it carries the means of their rows over blocks of 2, 4, 8 … tokens, the smallest
blocks that fit. The mean of :math:`\bar P F^\top` over a block is the product of those means, so what the page shows of
a block is exact up to rounding: half a unit in the 11th bit of each factor. Every array is scaled by a power of two, so
that small weights keep all their bits.
"""

import base64
import gzip
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_linformer.analysis.inspection.attention_maps import LayerAttention

MOST_BYTES = 3_000_000  # of all arrays, compressed
_TOP = 2.0**14  # the largest number of an array lies between this and twice as much


class Arrays:
    """Distinct arrays, compressed; each is stored once however many layers and heads share it."""

    def __init__(self) -> None:
        self.packed: list[dict[str, Any]] = []
        self.size = 0
        self._places: dict[tuple[tuple[int, ...], bytes], int] = {}

    def add(self, matrix: Tensor) -> int:
        """Store an array, and return its number."""
        largest = float(matrix.abs().max())
        scale = float(2.0 ** np.floor(np.log2(_TOP / largest))) if largest > 0 else 1.0
        halves = (matrix.double() * scale).numpy().astype("<f2").tobytes()
        key = (tuple(matrix.shape), halves)
        if key not in self._places:
            # The bytes of exponents are alike, those of fractions are not: separated they compress better.
            data = gzip.compress(halves[0::2] + halves[1::2], compresslevel=6, mtime=0)
            self._places[key] = len(self.packed)
            self.packed.append(
                {"shape": list(matrix.shape), "scale": scale, "data": base64.b64encode(data).decode("ascii")}
            )
            self.size += len(data)
        return self._places[key]


def pack_layers(layers: dict[int, LayerAttention], most_bytes: int = MOST_BYTES) -> dict[str, Any]:
    """``block`` (tokens in a block), ``arrays``, and ``layers``, whose matrices are numbers of arrays, one a head."""
    length = next(iter(layers.values())).weights.shape[1]
    block = 1
    # Blocks too small to be worth a try: compression hardly halves 16-bit floats. Slots are not divided into blocks.
    while block < length and most_bytes < sum(
        layer.weights.numel() // (block**2 if layer.is_ordinary else block) for layer in layers.values()
    ):
        block *= 2
    while True:
        arrays = Arrays()
        packed = [_pack_layer(number, layer, block, arrays) for number, layer in layers.items()]
        if arrays.size <= most_bytes or block >= length:
            return {"block": block, "arrays": arrays.packed, "layers": packed}
        block *= 2


def _pack_layer(number: int, layer: LayerAttention, block: int, arrays: Arrays) -> dict[str, Any]:
    weights = [block_means(matrix, block) for matrix in layer.weights]
    if layer.is_ordinary:
        weights = [block_means(matrix.mT, block).mT for matrix in weights]
    window_weights = [layer.window_weights(head) for head in range(len(weights))]
    return {
        "number": number,
        "ordinary": layer.is_ordinary,
        "slots": layer.num_slots,
        "exact": layer.exact.tolist(),
        "reach": layer.reach,
        "weights": [arrays.add(matrix) for matrix in weights],
        "projK": _pack_heads(layer.proj_k, block, arrays),
        "projV": _pack_heads(layer.proj_v, block, arrays),
        "near": [arrays.add(block_band(matrix, block)) for matrix in window_weights if matrix is not None],
    }


def _pack_heads(matrices: Tensor | None, block: int, arrays: Arrays) -> Sequence[int]:
    if matrices is None:
        return []
    if matrices.stride(0) == 0:  # one for all heads
        return [arrays.add(block_means(matrices[0], block))] * matrices.shape[0]
    return [arrays.add(block_means(matrix, block)) for matrix in matrices]


def block_means(matrix: Tensor, block: int) -> Tensor:
    """Means over every ``block`` rows of ``(N, S)``, ``(⌈N / block⌉, S)``; the last block may have fewer rows."""
    if block == 1:
        return matrix
    return torch.stack([rows.mean(dim=0) for rows in torch.split(matrix, block)])


def block_band(band: Tensor, block: int) -> Tensor:
    """Means over blocks of a local window's map: ``(N, 2r + 1)`` to ``(⌈N / block⌉, 2m + 1)``.

    Column c of row I is the mean of ``spread_window(near)`` over the tokens of block I and those of block I + c − m.
    """
    length, reach = band.shape[0], band.shape[1] // 2
    blocks, farthest = -(-length // block), (block - 1 + reach) // block
    row = torch.arange(length).unsqueeze(-1).expand_as(band)
    column = row + torch.arange(-reach, reach + 1)
    inside = (column >= 0) & (column < length)
    from_block, to_block = row[inside] // block, column[inside] // block
    sums = band.new_zeros(blocks, 2 * farthest + 1)
    sums.index_put_((from_block, to_block - from_block + farthest), band[inside], accumulate=True)
    tokens = torch.full((blocks,), float(block)).to(band)
    tokens[-1] = length - block * (blocks - 1)
    of_columns = (torch.arange(blocks).unsqueeze(-1) + torch.arange(-farthest, farthest + 1)).clamp(0, blocks - 1)
    return sums / (tokens.unsqueeze(-1) * tokens[of_columns])

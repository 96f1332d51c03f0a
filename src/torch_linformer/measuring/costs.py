"""What an attention or a layer costs on paper: multiplications, and the intermediate results they leave."""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch

from torch_linformer.nn.options import Sharing

Order = Literal["compress_first", "project_last"]


class Sizes(Protocol):
    """What a cost depends on; a case of a benchmark and a :class:`LayerSizes` both say it."""

    @property
    def length(self) -> int: ...
    @property
    def k(self) -> int: ...
    @property
    def batch(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def feedforward(self) -> int: ...
    @property
    def torch_dtype(self) -> torch.dtype: ...


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """One layer on one sequence.

    Attributes:
        length: tokens N.
        k: slots K.
        width: model width C.
        heads: heads H.
        feedforward: width of the feed-forward F.
        batch: rows B.
        torch_dtype: of the intermediate results.
    """

    length: int
    k: int
    width: int
    heads: int
    feedforward: int
    batch: int = 1
    torch_dtype: torch.dtype = torch.float32


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one forward step.

    Attributes:
        multiplications: of the matrix products; a multiplication and its addition are two floating point operations.
        bytes: of all intermediate results, each counted once: what training keeps of them, more than inference does.
    """

    multiplications: int
    bytes: int

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(multiplications=self.multiplications + other.multiplications, bytes=self.bytes + other.bytes)


def full_attention_cost(sizes: Sizes) -> Cost:
    """Ordinary attention with its (N, N) scores and weights kept: 4·N·C² + 2·N²·C multiplications a row."""
    n, c = sizes.length, sizes.width
    return _cost(sizes, 4 * n * c**2 + 2 * n**2 * c, 5 * n * c + 2 * sizes.heads * n**2)


def linformer_attention_cost(sizes: Sizes, sharing: Sharing = "headwise", order: Order = "compress_first") -> Cost:
    """Linformer attention with dense E and F, channels mixed after (``compress_first``) or before the projection.

    Queries and output take 2·N·C² multiplications a row and the attention over slots 2·N·K·C, in every mode. Keys and
    values take N·K·C + K·C² each compressed first, where one compressed sequence serves both with ``kv`` and
    ``layerwise``, and N·C² + N·K·C each projected last.

    Raises:
        ValueError: for ``none`` compressed first: a head's own matrix cannot come before the heads are made.
    """
    n, k, c = sizes.length, sizes.k, sizes.width
    if order == "project_last":
        multiplications, elements = 2 * n * c**2 + 2 * n * k * c, 2 * n * c + 2 * k * c
    elif sharing == "none":
        raise ValueError("sharing 'none' has no order compress_first: every head has a matrix of its own")
    else:
        compressed = 1 if sharing in ("kv", "layerwise") else 2
        multiplications = compressed * n * k * c + 2 * k * c**2
        elements = compressed * k * c + 2 * k * c
    around = 2 * n * c**2 + 2 * n * k * c
    return _cost(sizes, around + multiplications, 3 * n * c + 2 * sizes.heads * n * k + elements)


def cheapest_attention_cost(sizes: Sizes, sharing: Sharing = "headwise") -> Cost:
    """Linformer attention in the order with fewer multiplications, which is the one that is computed."""
    last = linformer_attention_cost(sizes, sharing, "project_last")
    if sharing == "none":
        return last
    return min(linformer_attention_cost(sizes, sharing, "compress_first"), last, key=lambda cost: cost.multiplications)


def feedforward_cost(sizes: Sizes) -> Cost:
    """The position-wise feed-forward: 2·N·C·F multiplications a row."""
    n, c, hidden = sizes.length, sizes.width, sizes.feedforward
    # Its hidden values count twice: before and after the nonlinearity.
    return _cost(sizes, 2 * n * c * hidden, 2 * n * hidden + n * c)


def layer_ratio(*layers: Sizes, sharing: Sharing = "kv", feedforward: bool = True) -> tuple[float, float]:
    """How many times the multiplications and the bytes of our layers ordinary ones have, all layers together.

    Without ``feedforward`` only their attentions are counted.
    """
    around = sum((feedforward_cost(sizes) for sizes in layers if feedforward), Cost(multiplications=0, bytes=0))
    full = sum((full_attention_cost(sizes) for sizes in layers), around)
    ours = sum((cheapest_attention_cost(sizes, sharing) for sizes in layers), around)
    return full.multiplications / ours.multiplications, full.bytes / ours.bytes


def _cost(sizes: Sizes, multiplications: int, elements: int) -> Cost:
    bytes_ = sizes.batch * elements * sizes.torch_dtype.itemsize
    return Cost(multiplications=sizes.batch * multiplications, bytes=bytes_)

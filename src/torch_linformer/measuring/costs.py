"""What an attention or a layer costs on paper: multiplications, and the intermediate results they leave."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch

from torch_linformer.choices import Sharing
from torch_linformer.functional.products import SlotProducts, count_multiplications
from torch_linformer.nn.options import ONE_MAP, PER_HEAD

Order = Literal["compress_first", "project_last"]


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """One layer on one batch."""

    length: int  # tokens N
    k: int  # slots K
    batch: int = 1  # rows B
    width: int  # of the model, C
    heads: int  # H
    feedforward: int = 0  # width F of the feed-forward; 0 for an attention only
    dtype: str = "float32"  # of the intermediate results: float32, bfloat16 or float16

    @property
    def torch_dtype(self) -> torch.dtype:
        """``dtype`` as torch has it."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


class Cost(NamedTuple):
    """Cost of one forward step."""

    multiplications: int  # of the matrix products; a multiplication and its addition are two floating point operations
    bytes: int  # of all intermediate results, each counted once: what training keeps of them, more than inference does


def full_attention_cost(sizes: LayerSizes) -> Cost:
    """Ordinary attention with its (N, N) scores and weights kept: 4·N·C² + 2·N²·C multiplications a row."""
    n, c = sizes.length, sizes.width
    return _cost(sizes, 4 * n * c**2 + 2 * n**2 * c, 5 * n * c + 2 * sizes.heads * n**2)


def linformer_attention_cost(sizes: LayerSizes, sharing: Sharing = "headwise", order: Order | None = None) -> Cost:
    """Linformer attention with dense E and F, the products of keys and values in one of the two orders.

    Queries and output take 2·N·C² multiplications a row and the attention over slots 2·N·K·C, in every mode. Keys and
    values take N·K·C + K·C² each compressed first, where one compressed sequence serves both with ``kv`` and
    ``layerwise``, and N·C² + N·K·C each projected last. Without an ``order`` it is the one with fewer multiplications,
    which is the one that is computed.

    Raises:
        ValueError: for ``none`` or ``kv_per_head`` compressed first: a head's own matrix cannot come before the heads
            are made.
    """
    if order is None:
        orders: tuple[Order, ...] = ("project_last",) if sharing in PER_HEAD else ("compress_first", "project_last")
        return min(linformer_attention_cost(sizes, sharing, order) for order in orders)
    if sharing in PER_HEAD and order == "compress_first":
        raise ValueError(f"sharing {sharing!r} has no order compress_first: every head has a matrix of its own")
    n, k, c = sizes.length, sizes.k, sizes.width
    one_compressed = sharing in ONE_MAP
    both_orders = count_multiplications(n, SlotProducts(lambda length: k, [(c, c), (c, c)], k, one_compressed))
    counted = both_orders[order == "project_last"]
    between = 2 * n * c if order == "project_last" else (1 if one_compressed else 2) * k * c
    multiplications = 2 * n * c**2 + 2 * n * k * c + counted
    return _cost(sizes, multiplications, 3 * n * c + 2 * sizes.heads * n * k + between + 2 * k * c)


def feedforward_cost(sizes: LayerSizes) -> Cost:
    """The position-wise feed-forward: 2·N·C·F multiplications a row."""
    n, c, hidden = sizes.length, sizes.width, sizes.feedforward
    # Its hidden values count twice: before and after the nonlinearity.
    return _cost(sizes, 2 * n * c * hidden, 2 * n * hidden + n * c)


def layer_ratio(*layers: LayerSizes, sharing: Sharing = "kv", feedforward: bool = True) -> tuple[float, float]:
    """Multiplications and bytes of ordinary layers, each over those of ours, all layers together.

    Without ``feedforward`` only their attentions are counted.
    """

    def total(attention: Callable[[LayerSizes], Cost], unit: int) -> int:
        return sum(attention(sizes)[unit] + feedforward * feedforward_cost(sizes)[unit] for sizes in layers)

    ours = partial(linformer_attention_cost, sharing=sharing)
    multiplications, size = (total(full_attention_cost, unit) / total(ours, unit) for unit in (0, 1))
    return multiplications, size


def _cost(sizes: LayerSizes, multiplications: int, elements: int) -> Cost:
    return Cost(sizes.batch * multiplications, sizes.batch * elements * sizes.torch_dtype.itemsize)

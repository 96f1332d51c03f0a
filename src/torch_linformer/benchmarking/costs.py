"""What an attention or a layer costs on paper: multiplications, and the intermediate results they leave."""

from dataclasses import dataclass
from typing import Literal

from torch_linformer.benchmarking.suite import Case
from torch_linformer.nn.projection import Sharing

Order = Literal["compress_first", "project_last"]


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


def full_attention_cost(case: Case) -> Cost:
    """Ordinary attention with its (N, N) scores and weights kept: 4·N·C² + 2·N²·C multiplications a row."""
    n, c = case.length, case.width
    return _cost(case, 4 * n * c**2 + 2 * n**2 * c, 5 * n * c + 2 * case.heads * n**2)


def linformer_attention_cost(case: Case, sharing: Sharing = "headwise", order: Order = "compress_first") -> Cost:
    """Linformer attention with dense E and F, channels mixed after (``compress_first``) or before the projection.

    Queries and output take 2·N·C² multiplications a row and the attention over slots 2·N·K·C, in every mode. Keys and
    values take N·K·C + K·C² each compressed first, where one compressed sequence serves both with ``kv`` and
    ``layerwise``, and N·C² + N·K·C each projected last.

    Raises:
        ValueError: for ``none`` compressed first: a head's own matrix cannot come before the heads are made.
    """
    n, k, c = case.length, case.k, case.width
    if order == "project_last":
        multiplications, elements = 2 * n * c**2 + 2 * n * k * c, 2 * n * c + 2 * k * c
    elif sharing == "none":
        raise ValueError("sharing 'none' has no order compress_first: every head has a matrix of its own")
    else:
        compressed = 1 if sharing in ("kv", "layerwise") else 2
        multiplications = compressed * n * k * c + 2 * k * c**2
        elements = compressed * k * c + 2 * k * c
    around = 2 * n * c**2 + 2 * n * k * c
    return _cost(case, around + multiplications, 3 * n * c + 2 * case.heads * n * k + elements)


def cheapest_attention_cost(case: Case, sharing: Sharing = "headwise") -> Cost:
    """Linformer attention in the order with fewer multiplications, which is the one that is computed."""
    last = linformer_attention_cost(case, sharing, "project_last")
    if sharing == "none":
        return last
    return min(linformer_attention_cost(case, sharing, "compress_first"), last, key=lambda cost: cost.multiplications)


def feedforward_cost(case: Case) -> Cost:
    """The position-wise feed-forward: 2·N·C·F multiplications a row."""
    n, c, hidden = case.length, case.width, case.feedforward
    # Its hidden values count twice: before and after the nonlinearity.
    return _cost(case, 2 * n * c * hidden, 2 * n * hidden + n * c)


def layer_ratio(case: Case, sharing: Sharing = "kv") -> tuple[float, float]:
    """How many times the multiplications and the bytes of our layer an ordinary one has."""
    around = feedforward_cost(case)
    full, ours = full_attention_cost(case) + around, cheapest_attention_cost(case, sharing) + around
    return full.multiplications / ours.multiplications, full.bytes / ours.bytes


def _cost(case: Case, multiplications: int, elements: int) -> Cost:
    bytes_ = case.batch * elements * case.torch_dtype.itemsize
    return Cost(multiplications=case.batch * multiplications, bytes=bytes_)

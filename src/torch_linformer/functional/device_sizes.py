"""How much is computed at a time: one decision, by the type of device.

On a CPU it was measured (docs/log.md): what is worked on at once stays in the caches, and what is written is no larger
than memory that is there already. A GPU wants the opposite, few kernels over much data. Its sizes are chosen by
arithmetic and have not been measured. A block of 128 queries copies (K + c + 2r) / c keys and values a query: with K
256 and r 32 these are 6 for c = 64 and 3.5 for c = 128, for a sixth more scores; wider blocks save less than their
scores cost. 2^27 scores are 512 MB in float32. A segment of causal attention is 64 chunks of 64 positions, about as
many batches for each product as a large GPU has processors.

What is only ever run on a CPU has its sizes where it is: ``cpu.py``, ``products.py``, ``window.py`` and ``dynamic.py``.
The chunks of causal attention have 64 positions on every device, which the range of float32 limits (docs/causal.md).
"""

from typing import NamedTuple

import torch

from torch_linformer.functional.implementations import UNMEASURED, Implementation, compute, register
from torch_linformer.functional.pytorch import runs_in_chunks


class Sizes(NamedTuple):
    """Sizes of one type of device.

    Attributes:
        window_block: queries whose windows are computed together with slots.
        window_scores: scores of slots and windows at a time; None for all.
        pooled_scores: scores of slots chosen by the input, at a time.
        segment: positions of causal attention whose chunks are computed side by side, in a loop over segments.
        inference_rows: queries at a time from their projection to the output; None for all.
    """

    window_block: int
    window_scores: int | None
    pooled_scores: int
    segment: int
    inference_rows: int | None


CPU = Sizes(window_block=64, window_scores=2**21, pooled_scores=2**20, segment=512, inference_rows=1024)
OTHERS = Sizes(window_block=128, window_scores=None, pooled_scores=2**27, segment=4096, inference_rows=None)


def sizes_for(device: torch.device) -> Sizes:
    """The sizes of a device."""
    return CPU if device.type == "cpu" else OTHERS


def _why_no_chunks(length: int, device: torch.device) -> str | None:
    rows = sizes_for(device).inference_rows
    return None if runs_in_chunks(rows) else "only inference outside of graphs, on a CPU, goes chunk by chunk"


_CHUNKS = Implementation(
    lambda length, device: sizes_for(device).inference_rows,
    "inference on a CPU, no graph",
    _why_no_chunks,
    lambda length, device: length > (sizes_for(device).inference_rows or length),
    measured="docs/log.md",
)
_AT_ONCE = Implementation(lambda length, device: None, measured=f"docs/log.md; {UNMEASURED} off a CPU")
QUERIES = register("queries", {"chunks": _CHUNKS, "at once": _AT_ONCE}, is_plan=True)


def queries_at_once(length: int, device: torch.device) -> int | None:
    """Queries from their projection to the output at a time; None for all of them."""
    number: int | None = compute(QUERIES, length, device)
    return number

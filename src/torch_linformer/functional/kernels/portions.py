"""How many queries are worked on at a time."""

import torch

from torch_linformer.functional.kernels.device_sizes import sizes_for
from torch_linformer.functional.kernels.graph import runs_in_chunks
from torch_linformer.functional.kernels.implementations import UNMEASURED, Implementation, Operation, choose, register


def _why_no_chunks(length: int, device: torch.device) -> str | None:
    rows = sizes_for(device).inference_rows
    return None if runs_in_chunks(rows) else "only inference outside of graphs, on a CPU, goes chunk by chunk"


QUERIES = register(
    Operation(
        "queries",
        (
            Implementation(
                "chunks",
                "inference on a CPU, no graph",
                _why_no_chunks,
                lambda length, device: length > (sizes_for(device).inference_rows or length),
                measured="docs/log.md",
            ),
            Implementation("at once", measured=f"docs/log.md; {UNMEASURED} off a CPU"),
        ),
        is_plan=True,
    )
)


def queries_at_once(length: int, device: torch.device) -> int | None:
    """Queries from their projection to the output at a time; None for all of them."""
    return sizes_for(device).inference_rows if choose(QUERIES, length, device) == "chunks" else None

"""Batches in parts that fit into memory: what they add up to does not depend on how a batch is cut."""

from typing import Any

import torch
from torch import Tensor

from torch_linformer.opening import processes

Batch = dict[str, Any]
TOKENS_AT_ONCE = 16_384  # with padding; more are computed in turn


def parts_of(batch: Batch, tokens: int) -> list[Batch]:
    """The rows of a batch in parts of at most so many tokens with padding, at least a row each.

    Longest rows first, without padding that no row of a part needs; a batch that fits is left as it is. All processes
    make equally many parts, if they have equally many rows.

    Args:
        batch: tensors ``(B, N)`` by name, with an ``attention_mask``.
        tokens: those of a part.
    """
    mask: Tensor = batch["attention_mask"]
    rows = min(processes.gathered(max(1, tokens // mask.shape[1])))
    if len(mask) <= rows:
        return [batch]
    order = torch.argsort(mask.sum(dim=1), descending=True, stable=True)
    parts = []
    for numbers in torch.split(order, rows):
        real = mask[numbers].any(dim=0)
        parts.append({name: x[numbers][:, real] for name, x in batch.items()})
    return parts

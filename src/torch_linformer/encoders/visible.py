"""Which positions a query sees, as transformers' mask of a layer says: all, those at most so far away, or fewer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torch_linformer.nn.padding import LOWEST

CAUSAL = "is causal: its tokens see only what comes before them, and a slot mixes all positions"
PAIRS = (
    "masks pairs of positions, and slots have none: only padding, and windows of as many tokens on either side, can be "
    "masked"
)


def reach_of_function(kind: str, visible: Callable[..., Any], window: int) -> int | None:
    """How far a query of ``kind`` sees on either side, as a mask function of transformers says; None for everything.

    Args:
        kind: the class of the attention, for messages.
        visible: ``(batch, head, query, key)`` to whether the query sees the key.
        window: no window is larger than twice this, or than a few tokens.

    Raises:
        ValueError: it is causal, or masks other pairs.
    """
    length = 4 * window + 9
    query, key = torch.arange(length)[:, None], torch.arange(length)
    first = torch.zeros((), dtype=torch.long)
    try:
        rows = [(visible(first, first, query[i], key) & (key >= 0)).tolist() for i in (0, length // 2, length - 1)]
    except (IndexError, RuntimeError):  # a function of this batch
        raise ValueError(f"{kind} {PAIRS}") from None
    return _reach(kind, rows)


def reach_of_mask(kind: str, mask: Tensor) -> int | None:
    """The same of a mask ``(B, 1 or H, 1 or N, N)`` of rows without padding: bool, or what is added to scores."""
    pairs = mask if mask.dtype == torch.bool else mask > LOWEST
    first = pairs.flatten(0, -3)[0].expand(pairs.shape[-1], -1)
    return _reach(kind, [first[i].tolist() for i in (0, len(first) // 2, len(first) - 1)])


def _reach(kind: str, rows: list[list[bool]]) -> int | None:
    """That of three rows of a mask: of the first query, of one in the middle, and of the last."""
    if all(map(all, rows)):
        return None
    length = len(rows[0])
    middle = length // 2
    before, after = rows[1][:middle], rows[1][middle + 1 :]
    reach = sum(after)
    if not reach and sum(before) and not any(rows[0][1:]):
        raise ValueError(f"{kind} {CAUSAL}")
    window = [[abs(key - query) <= reach for key in range(length)] for query in (0, middle, length - 1)]
    if rows != window:
        raise ValueError(f"{kind} {PAIRS}")
    return reach

"""The cases of a grid, and which of them ordinary attention is not run on."""

from collections.abc import Iterator, Sequence
from typing import Any

from runner.suite import Case, Grid
from torch_linformer.measuring.costs import full_attention_cost
from torch_linformer.measuring.machine import available_bytes
from torch_linformer.reporting.tables import format_bytes, format_count

# Tokens; beyond these a CPU needs minutes a step.
EAGER_LIMIT = 8192
SDPA_LIMIT = 16384
CAUSAL_LIMIT = 65536  # of SDPA, which skips the pairs that a causal mask hides


def grid_cases(grid: Grid, lengths: Sequence[int], ks: Sequence[int], **facts: Any) -> Iterator[Case]:
    """For each length and batch one case without slots, and one with each K up to the length."""
    for length in sorted(set(lengths)):
        for batch in sorted(set(grid.batches or (1,))):
            for k in (0, *sorted(set(ks))):
                if k <= length:
                    yield Case(length=length, k=k, batch=batch, device=grid.device, dtype=grid.dtype, **facts)


def require_cases(cases: list[Case], lengths: Sequence[int], ks: Sequence[int]) -> list[Case]:
    """The cases in the order of their lengths.

    Raises:
        ValueError: no case has slots, because every K is too large.
    """
    if not any(case.k for case in cases):
        raise ValueError(
            f"no length of {list(lengths)} is long enough for a K of {list(ks)}: give longer ones or a smaller K"
        )
    return sorted(cases, key=lambda case: (case.length, case.batch, case.k))


def beyond_full_attention(case: Case, *, eager: bool, causal: bool = False) -> str | None:
    """Why ordinary attention is not run on a case; None where it is, as always on a GPU, which raises by itself."""
    if case.device != "cpu":
        return None
    limit = EAGER_LIMIT if eager else CAUSAL_LIMIT if causal else SDPA_LIMIT
    if case.length > limit:
        return f"more than {format_count(limit)} tokens take too long on a CPU"
    needed, free = full_attention_cost(case).bytes, available_bytes()
    if eager and needed > free:
        return f"scores and weights of all pairs need {format_bytes(needed)}, and {format_bytes(free)} are free"
    return None

"""Seconds of a step, on a device that may still be computing when a call has returned."""

import math
import time
from collections.abc import Callable

import torch

MOST_GROWTH = 10  # times as many calls as in the round before: what one call seemed to take may be wrong


def mean_seconds(step: Callable[[], object], device: str, calls: int = 1) -> float:
    """The mean time of a call, until the device has finished."""
    _finish(device)
    started = time.perf_counter()
    for _ in range(calls):
        step()
    _finish(device)
    return (time.perf_counter() - started) / calls


def calls_in_a_round(step: Callable[[], object], device: str, at_least: float) -> tuple[int, float]:
    """How many calls make a round of ``at_least`` so many seconds, and the mean time of a call in it.

    The first call is not counted: if it is the second of its kind, it records a CUDA graph. Then rounds grow until one
    is long enough: calls of microseconds on a GPU, timed one by one, mostly measure the wait for its end.
    """
    mean_seconds(step, device)
    calls = 1
    while True:
        seconds = mean_seconds(step, device, calls)
        if calls * seconds >= at_least:
            return calls, seconds
        needed = math.ceil(1.1 * at_least / max(seconds, 1e-9))
        calls = min(MOST_GROWTH * calls, max(calls + 1, needed))


def _finish(device: str) -> None:
    """Wait until a GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()

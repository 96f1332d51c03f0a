"""Seconds of a step, on a device that may still be computing when a call has returned."""

import time
from collections.abc import Callable

import torch


def mean_seconds(step: Callable[[], object], device: str, calls: int = 1) -> float:
    """The mean time of a call, until the device has finished."""
    _finish(device)
    started = time.perf_counter()
    for _ in range(calls):
        step()
    _finish(device)
    return (time.perf_counter() - started) / calls


def _finish(device: str) -> None:
    """Wait until a GPU has finished."""
    if device == "cuda":
        torch.cuda.synchronize()
    elif device == "mps":
        torch.mps.synchronize()

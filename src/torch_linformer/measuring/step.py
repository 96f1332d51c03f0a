"""What steps take: their seconds, on a device that may still be computing when a call has returned, and peak memory.

Peak memory means everywhere here: the most that steps hold at once, beyond what was held before the first. Libraries,
parameters and inputs are held before and do not count; activations, gradients, temporary results and the state of an
optimizer do. Measure in a fresh process: in one that ran similar steps before, memory that the allocator kept would
hide those of the steps.
"""

import contextlib
import ctypes
import gc
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from torch_linformer.measuring.machine import available_bytes, process_bytes

MARGIN = 512 * 2**20  # bytes left for other processes


class PeakMemory:
    """Counts from its construction on: build a model and its inputs, make one of these, run steps, ask for ``bytes``.

    On a GPU these are the bytes that torch's allocator gave out; elsewhere the resident set of this process without
    mapped files, because code is loaded when it first runs. Without ``/proc`` mapped files are included.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        # What libraries load only once: torch's first backward pass imports 35 MB, cuBLAS takes a workspace.
        x = torch.ones(2, 2, device=device, requires_grad=True)
        torch.autograd.backward(x @ x, torch.ones_like(x))
        gc.collect()
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            release_memory()  # which building left in the allocator: the steps could reuse it unseen
            with contextlib.suppress(OSError):  # a kernel that does not allow this: the peak may be that of building
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        self.before = self._held("VmRSS")

    def bytes(self) -> int:
        """The peak since then, beyond what was held then."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self.before
        return max(0, self._held("VmHWM") - self.before)  # mapped files are subtracted as of now

    def _held(self, name: str) -> int:
        if self.device == "cuda":
            return torch.cuda.memory_allocated()
        total, files = process_bytes(name), process_bytes("RssFile")
        if total is None or files is None:
            largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return largest if sys.platform == "darwin" else largest * 1024
        return total - files


class SavedBytes(saved_tensors_hooks):
    """Counts what forward passes of a module in the block keep for their backward pass, beside its parameters.

    It needs no fresh process, and is the same in every run.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(self._count, lambda tensor: tensor)
        self._seen = {p.untyped_storage().data_ptr() for p in module.parameters()}
        self.bytes = 0

    def __enter__(self) -> Self:  # type: ignore[override]
        super().__enter__()
        return self

    def _count(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


@contextlib.contextmanager
def limited_memory(device: str) -> Iterator[None]:
    """Make allocations of this process fail before the machine runs out of memory.

    Not with CUDA, which reserves far more addresses than it uses; its own allocator fails as it should.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    available, used = available_bytes(), process_bytes("VmSize")
    if device == "cuda" or used is None:
        yield
        return
    limit = used + max(available - MARGIN, available // 2)
    resource.setrlimit(resource.RLIMIT_AS, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def release_memory() -> None:
    """Give back what the allocator of a CPU keeps for later."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)


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

"""Peak memory, by the one meaning it has here: what steps need at their height beyond what was held before the first.

Libraries, parameters and inputs were there before and do not count; activations, gradients, temporary results and the
state of an optimizer do. The process must have run nothing like the steps before, or what the allocator kept of it
would hide them: measure in a fresh process.
"""

import contextlib
import ctypes
import gc
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from torch_linformer.measuring.machine import available_bytes, process_bytes

MARGIN = 512 * 2**20  # bytes left to the rest of the machine


class PeakMemory:
    """Counts from here on: build a model and its inputs, make one of these, run steps, ask for ``bytes``.

    On a GPU these are the bytes that torch's allocator gave out; elsewhere the resident set of this process without
    files, because code is read in when it first runs. Where there is no ``/proc``, the resident set with them.
    """

    def __init__(self, device: str) -> None:
        self.device = device
        _load_backward(device)
        gc.collect()
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        else:
            _forget_the_past()
        self.before = self._held("VmRSS")

    def bytes(self) -> int:
        """The height of what ran since, beyond what was held then."""
        if self.device == "cuda":
            torch.cuda.synchronize()
            return torch.cuda.max_memory_allocated() - self.before
        return max(0, self._held("VmHWM") - self.before)  # files that were read in meanwhile are taken off at the end

    def _held(self, name: str) -> int:
        if self.device == "cuda":
            return torch.cuda.memory_allocated()
        total, files = process_bytes(name), process_bytes("RssFile")
        if total is None or files is None:
            largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return largest if sys.platform == "darwin" else largest * 1024
        return total - files


@contextlib.contextmanager
def limited_memory(device: str) -> Iterator[None]:
    """Let this process fail to allocate memory rather than drive the machine out of it.

    CUDA reserves far more addresses than it uses, so its programs cannot be limited this way; its own allocator
    fails as it should.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    available, used = available_bytes(), process_bytes("VmSize")
    if device == "cuda" or used is None:
        yield
        return
    most = used + max(available - MARGIN, available // 2)
    hard = limits[1]
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def die_first() -> None:
    """Where memory ends nevertheless, let the kernel end this process and not another."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def _load_backward(device: str) -> None:
    """Load what the libraries load once: torch's first backward pass imports 35 MB, cuBLAS takes a workspace."""
    x = torch.ones(2, 2, device=device, requires_grad=True)
    (x @ x).backward(torch.ones_like(x))


def _forget_the_past() -> None:
    """Give back what building left in the allocator, where the steps could hide in it, and begin a new peak."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # a kernel that does not let a process do so: the peak may be the building's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

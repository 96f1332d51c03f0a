"""Peak memory of one step, in a process of its own, which also finds out whether the step can be run at all."""

import contextlib
import ctypes
import gc
import multiprocessing
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from pathlib import Path

import psutil
import torch

from torch_linformer.bench.step import OUT_OF_MEMORY, Step, explain
from torch_linformer.bench.suite import Case, Suite
from torch_linformer.measuring.machine import process_bytes

MARGIN = 512 * 2**20  # bytes left to the rest of the machine


@dataclass(frozen=True)
class Peak:
    """Bytes of memory a step needed, or why it could not be run."""

    memory: int | None = None
    error: str | None = None


def probe(suite: Suite, contender: str, case: Case, threads: int) -> Peak:
    """Run one step in a fresh process, from nothing: the module is built there, and nothing was warmed up.

    The process gets the suite and looks the contender up by name, because contenders hold closures, which cannot be
    sent. It fails by itself before the machine is out of memory; where it is killed nevertheless, that was why.
    """
    context = _context(suite)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, suite, contender, case, threads), daemon=True)
    process.start()
    sender.close()  # the process alone holds it now: its death ends the wait
    try:
        return receiver.recv()
    except EOFError:
        process.join()
        return Peak(error=_cause_of_death(process.exitcode))
    finally:
        process.kill()
        process.join()
        receiver.close()


@contextlib.contextmanager
def limited_memory(device: str) -> Iterator[None]:
    """Let this process fail to allocate memory rather than drive the machine out of it.

    CUDA reserves far more addresses than it uses, so its programs cannot be limited this way; its own allocator
    fails as it should.
    """
    limits = resource.getrlimit(resource.RLIMIT_AS)
    available, used = psutil.virtual_memory().available, process_bytes("VmSize")
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


def _context(suite: Suite) -> ForkServerContext | SpawnContext:
    """Processes forked from one that has everything imported and has not yet computed anything in parallel."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # sympy is what torch's first backward pass imports: here once, and not in every process.
    context.set_forkserver_preload([__name__, "sympy", type(suite).__module__])
    return context


def _serve(sender: Connection, suite: Suite, name: str, case: Case, threads: int) -> None:
    """The process: build, note what is held, run, and send what it took."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; it ends this process
    warnings.simplefilter("ignore")  # the parent, which runs the same, shows them
    with contextlib.suppress(OSError):  # where memory ends nevertheless, this process ends and not another
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    torch.set_num_threads(threads)
    try:
        with limited_memory(case.device):
            contender = next(each for each in suite.contenders() if each.name == name)
            peak = Peak(memory=_peak(Step(contender, case)))
    except Exception as error:
        peak = Peak(error=explain(error))
    with contextlib.suppress(BrokenPipeError):  # the parent was interrupted, and nobody waits for the answer
        sender.send(peak)


def _peak(step: Step) -> int | None:
    """Bytes at the height of one step, beyond what was held before it."""
    _wake(step.case.device)
    gc.collect()
    if step.case.device == "cuda":
        return _cuda_peak(step)
    if sys.platform == "darwin":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        step.run()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    _forget_the_past()
    before = _data("VmRSS")
    step.run()
    peak = _data("VmHWM")
    return None if before is None or peak is None else peak - before


def _wake(device: str) -> None:
    """Load what the libraries load once: torch's first backward pass imports 35 MB, cuBLAS takes a workspace."""
    x = torch.ones(2, 2, device=device, requires_grad=True)
    (x @ x).backward(torch.ones_like(x))


def _cuda_peak(step: Step) -> int:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step.run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def _forget_the_past() -> None:
    """Give back what building left in the allocator, where the step could hide in it, and begin a new peak."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than GNU's
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):  # a kernel that does not let a process do so: the peak may be the building's
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _data(name: str) -> int | None:
    """Bytes of the resident set (now or at its peak) without files: code is read in when it first runs."""
    total, files = process_bytes(name), process_bytes("RssFile")
    return None if total is None or files is None else total - files


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return OUT_OF_MEMORY  # what the kernel does to a process when memory ends
    if exit_code is not None and exit_code < 0:
        return f"its process died ({signal.Signals(-exit_code).name})"
    return f"its process ended with status {exit_code}"

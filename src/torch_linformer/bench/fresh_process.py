"""One step in a process of its own: its peak memory, and whether it can run at all."""

import contextlib
import multiprocessing
import signal
import warnings
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext

import torch

from torch_linformer.bench.step import OUT_OF_MEMORY, Step, explain
from torch_linformer.bench.suite import Case, Suite
from torch_linformer.measuring.memory import PeakMemory, die_first, limited_memory


@dataclass(frozen=True)
class Peak:
    """Peak memory of a step in bytes, or why it could not run."""

    memory: int | None = None
    error: str | None = None


def probe(suite: Suite, contender: str, case: Case, threads: int) -> Peak:
    """Run one step in a fresh process, which builds the module and has run nothing before.

    The process gets the suite and finds the contender by name, because contenders hold closures, which cannot be sent.
    Its allocations fail before the machine is out of memory; if it is killed nevertheless, that was the reason.
    """
    context = fresh_processes(suite)
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(sender, suite, contender, case, threads), daemon=True)
    process.start()
    sender.close()  # now only the process holds it, and its death ends the wait
    try:
        peak: Peak = receiver.recv()
        return peak
    except EOFError:
        process.join()
        return Peak(error=cause_of_death(process.exitcode))
    finally:
        process.kill()
        process.join()
        receiver.close()


def fresh_processes(suite: Suite) -> ForkServerContext:
    """Processes forked from one that has imported everything and has computed nothing in parallel yet."""
    context = multiprocessing.get_context("forkserver")
    # torch's first backward pass imports sympy: this way once, and not in every process.
    context.set_forkserver_preload([__name__, "sympy", type(suite).__module__])
    # Begun while Ctrl-C is held back, it holds it back for good, and so do its processes: none says a word of it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # here it arrives now
    return context


def _serve(sender: Connection, suite: Suite, name: str, case: Case, threads: int) -> None:
    """The process: build, run, and send the peak."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C; for a server that others began
    warnings.simplefilter("ignore")  # the parent runs the same step and shows them
    die_first()
    torch.set_num_threads(threads)
    try:
        with limited_memory(case.device):
            contender = next(each for each in suite.contenders() if each.name == name)
            step = Step(contender, case)
            memory = PeakMemory(case.device)
            step.run()
            peak = Peak(memory=memory.bytes())
    except Exception as error:
        peak = Peak(error=explain(error))
    with contextlib.suppress(BrokenPipeError):  # the parent was interrupted and no longer waits
        sender.send(peak)


def cause_of_death(exit_code: int | None) -> str:
    """Why a process that was to answer has ended."""
    if exit_code == -signal.SIGKILL:
        return OUT_OF_MEMORY  # then the kernel kills
    if exit_code is not None and exit_code < 0:
        return f"its process died ({signal.Signals(-exit_code).name})"
    return f"its process ended with status {exit_code}"

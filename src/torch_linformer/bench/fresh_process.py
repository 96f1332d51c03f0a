"""One step in a process of its own: its peak memory, and whether it can be run at all."""

import contextlib
import multiprocessing
import signal
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext

import torch

from torch_linformer.bench.step import OUT_OF_MEMORY, Step, explain
from torch_linformer.bench.suite import Case, Suite
from torch_linformer.measuring.memory import PeakMemory, die_first, limited_memory


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


def _context(suite: Suite) -> ForkServerContext | SpawnContext:
    """Processes forked from one that has everything imported and has not yet computed anything in parallel."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # sympy is what torch's first backward pass imports: here once, and not in every process.
    context.set_forkserver_preload([__name__, "sympy", type(suite).__module__])
    return context


def _serve(sender: Connection, suite: Suite, name: str, case: Case, threads: int) -> None:
    """The process: build, run, and send what it took."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer; it ends this process
    warnings.simplefilter("ignore")  # the parent, which runs the same, shows them
    die_first()
    torch.set_num_threads(threads)
    try:
        with limited_memory(case.device):
            contender = next(each for each in suite.contenders() if each.name == name)
            peak = Peak(memory=_peak(Step(contender, case)))
    except Exception as error:
        peak = Peak(error=explain(error))
    with contextlib.suppress(BrokenPipeError):  # the parent was interrupted, and nobody waits for the answer
        sender.send(peak)


def _peak(step: Step) -> int:
    peak = PeakMemory(step.case.device)
    step.run()
    return peak.bytes()


def _cause_of_death(exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return OUT_OF_MEMORY  # what the kernel does to a process when memory ends
    if exit_code is not None and exit_code < 0:
        return f"its process died ({signal.Signals(-exit_code).name})"
    return f"its process ended with status {exit_code}"

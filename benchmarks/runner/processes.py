"""Steps in processes of their own: the peak memory of one, and those that several compute together."""

import contextlib
import multiprocessing
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runner.suite import Case, Contender, Measurement, Suite
from runner.timing import OUT_OF_MEMORY, Step, explain
from torch_linformer.measuring.step import PeakMemory, limited_memory, mean_seconds, release_memory


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
    process = context.Process(target=_serve_probe, args=(sender, suite, contender, case, threads), daemon=True)
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
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # by which it finds what it imports
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if path is not None:
            os.environ["PYTHONPATH"] = path
        signal.pthread_sigmask(signal.SIG_SETMASK, before)  # here it arrives now
    return context


def _serve_probe(sender: Connection, suite: Suite, name: str, case: Case, threads: int) -> None:
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


def die_first() -> None:
    """Where the machine runs out of memory nevertheless, let the kernel kill this process and no other."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


def cause_of_death(exit_code: int | None) -> str:
    """Why a process that was to answer has ended."""
    if exit_code == -signal.SIGKILL:
        return OUT_OF_MEMORY  # then the kernel kills
    if exit_code is not None and exit_code < 0:
        return f"its process died ({signal.Signals(-exit_code).name})"
    return f"its process ended with status {exit_code}"


WAITING = timedelta(hours=1)  # the longest wait of one process for another


def time_ranks(
    suite: Suite, pairs: Sequence[tuple[Contender, Case]], repeat: int, budget: float, threads: int
) -> Iterator[Measurement]:
    """A row for each pair; the cases of one contender take turns.

    A round is one step, and takes as long as the slowest process; the first one is checked and not counted. Memory is
    the most that a process holds at once in all of them.

    Args:
        suite: theirs.
        pairs: who computes what.
        repeat: rounds.
        budget: seconds for each pair; a slow one takes part in fewer rounds, but at least one.
        threads: CPU threads of each process.
    """
    for name in dict.fromkeys(contender.name for contender, _ in pairs):
        with tempfile.TemporaryDirectory() as folder:
            cases = [case for contender, case in pairs if contender.name == name]
            groups = [_Group(suite, name, case, threads, Path(folder) / str(i)) for i, case in enumerate(cases)]
            try:
                for group in groups:
                    group.prepare()
                for _ in range(repeat):
                    for group in groups:
                        group.time_a_round(budget)
                yield from (group.row() for group in groups)
            finally:
                for group in groups:
                    group.end()


class _Group:
    """The processes of one case, as the one sees them that asks for their steps."""

    def __init__(self, suite: Suite, name: str, case: Case, threads: int, store: Path) -> None:
        self.name, self.case = name, case
        self.error: str | None = None
        self.seconds: list[float] = []  # of each round
        context = fresh_processes(suite)
        self.processes, self.connections = [], list[Connection]()
        for rank in range(case.ranks):
            here, there = context.Pipe()
            arguments = there, suite, name, case, rank, threads, str(store)
            self.processes.append(context.Process(target=_serve_rank, args=arguments, daemon=True))
            self.connections.append(here)
            self.processes[-1].start()
            there.close()  # now only the process holds it, and its death ends the wait

    def prepare(self) -> None:
        """Wait until each process has built what it computes, and let them take the step that is not counted."""
        self._ask(None)
        self._ask("check")

    def time_a_round(self, budget: float) -> None:
        """One more round, if there is time for it."""
        if not self.seconds or sum(self.seconds) + self.seconds[-1] <= budget:
            self.seconds += [max(answers) for answers in [self._ask("time")] if answers]

    def row(self) -> Measurement:
        """The median and quartiles of the rounds, the most memory and bytes of a process; or the error."""
        last = self._ask("finish")
        if self.error is not None:
            return Measurement(contender=self.name, case=self.case, error=self.error)
        memory, sent, messages = (max(values) for values in zip(*last, strict=True))
        return Measurement.of_rounds(self.name, self.case, self.seconds, memory=memory, sent=sent, messages=messages)

    def end(self) -> None:
        """Let none of them live on, whatever it is doing."""
        for process, connection in zip(self.processes, self.connections, strict=True):
            process.kill()
            process.join()
            connection.close()

    def _ask(self, question: str | None) -> list[Any]:
        """What each process answers, in their order; nothing once one of them has failed."""
        if self.error is not None:
            return []
        if question is not None:
            for connection in self.connections:
                with contextlib.suppress(BrokenPipeError):  # it died since: that is its answer
                    connection.send(question)
        answers: dict[int, Any] = {}
        while len(answers) < len(self.connections):
            # The first to fail knows why; the others only lose their connection to it.
            ready = wait([each for rank, each in enumerate(self.connections) if rank not in answers])
            for rank in [rank for rank, each in enumerate(self.connections) if each in ready]:
                answers[rank] = self._answer(rank)
                if isinstance(answers[rank], str):
                    self.error = answers[rank]
                    return []
        return [answers[rank] for rank in sorted(answers)]

    def _answer(self, rank: int) -> Any:
        try:
            return self.connections[rank].recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join()
            return cause_of_death(self.processes[rank].exitcode)


def _serve_rank(
    connection: Connection, suite: Suite, name: str, case: Case, rank: int, threads: int, store: str
) -> None:
    """A process: builds its part, then takes a step for each question. A string that it answers is its error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    warnings.simplefilter("ignore")
    die_first()
    torch.set_num_threads(threads)
    cuda = case.device == "cuda"
    try:
        if cuda:
            torch.cuda.set_device(rank)
        backend = "nccl" if cuda else "gloo"
        dist.init_process_group(
            backend, init_method=f"file://{store}", rank=rank, world_size=case.ranks, timeout=WAITING
        )
        with limited_memory(case.device):
            contender = next(each for each in suite.contenders() if each.name == name)
            step = Step(contender, case)
            memory = PeakMemory(case.device)
            connection.send(None)
            while (question := connection.recv()) != "finish":
                dist.barrier()
                outputs: list[torch.Tensor] = []
                seconds = mean_seconds(lambda: outputs.append(step.run()), case.device)  # noqa: B023
                if question == "check":
                    step.check(outputs.pop())
                step.clear()
                release_memory()  # which the others need in their turns
                connection.send(seconds)
            assert step.workload.sent is not None
            connection.send((memory.bytes(), *step.workload.sent()))
    except (EOFError, BrokenPipeError):  # nobody waits any more
        return
    except Exception as error:
        connection.send(explain(error))

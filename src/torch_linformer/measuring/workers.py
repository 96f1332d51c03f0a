"""Seconds and peak memory of steps, each in a process of its own, all in turn.

``python -m torch_linformer.measuring.workers`` imports what the steps need and forks such a process for each. It is
started by that name and not by ``multiprocessing``, which would run a script that asks for a measurement again if its
main part is not guarded.
"""

import contextlib
import gc
import importlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from statistics import fmean, median
from typing import Any

from torch_linformer.measuring.step import PeakMemory, die_first, limited_memory, mean_seconds
from torch_linformer.reporting.tables import format_duration

REASON = 60  # characters of why a step failed, at most
TURNS = 3  # timed, after one that is not
PATIENCE = 120.0  # seconds for a turn; a step that takes longer, as full attention can, counts as one that failed
NO_TIME = "no time left"
TURN = 0.3  # seconds of steps, at least one: a shorter turn would measure how long a process takes to wake up


@dataclass(frozen=True)
class StepRequest:
    """A step to measure.

    Attributes:
        builder: ``module:function``, which takes the arguments and returns the step, a function without arguments.
        arguments: by name, of types that JSON can hold.
        device: where it computes.
    """

    builder: str
    arguments: dict[str, Any]
    device: str


@dataclass(frozen=True)
class MeasuredStep:
    """The median of a step's turns, and the peak memory of all its steps (:class:`PeakMemory`)."""

    seconds: float
    peak_bytes: int


def measure_in_turn(
    requests: Sequence[StepRequest], patience: float = PATIENCE, seconds: float = math.inf
) -> list[MeasuredStep | str]:
    """Each step's time and memory; or, for one that failed or took too long, why, in a few words.

    Each runs in a process that has run nothing before; they take turns of at most ``patience`` seconds, so that a noisy
    machine slows all of them alike. All turns together take about ``seconds`` at most: a first one is stopped then, and
    no other begins that would not be over. A step of which one turn was timed has its cost, any other one has failed.
    """
    # Others are forked from nobody: CUDA does not go on in a fork of a process that has asked for it, nor do the
    # frameworks of macOS.
    forked = sys.platform == "linux" and all(request.device == "cpu" for request in requests)
    groups = [requests] if forked else [[one] for one in requests]
    with contextlib.ExitStack() as processes:
        workers = [worker for group in groups for worker in processes.enter_context(_started(group))]
        ends = time.monotonic() + seconds
        for turn in range(1 + TURNS):
            for worker in workers:
                left = ends - time.monotonic()
                if turn == 0 and left < patience:
                    worker.turn(max(left, 0.0), NO_TIME)
                elif worker.took < left:
                    worker.turn(patience, f"took over {format_duration(patience)}")
        return [worker.finish() for worker in workers]


@contextlib.contextmanager
def _started(requests: Sequence[StepRequest]) -> Iterator[list["_Worker"]]:
    """A worker for each request, all forked from one process."""
    pipes = [Pipe() for _ in requests]
    theirs, null = [write_end.fileno() for _, write_end in pipes], subprocess.DEVNULL
    modules = sorted({request.builder.partition(":")[0] for request in requests})
    command = [sys.executable, "-m", __name__, json.dumps(theirs), *modules]
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null, pass_fds=theirs):
        for _, write_end in pipes:
            write_end.close()  # now only the processes hold them, and their death ends the wait
        try:
            yield [_Worker(here, request) for (here, _), request in zip(pipes, requests, strict=True)]
        finally:
            for here, _ in pipes:
                here.close()


class _Worker:
    """The parent's end of a measuring process, which answers each turn with the seconds of a step."""

    def __init__(self, connection: Connection, request: StepRequest) -> None:
        self.connection = connection
        self.seconds: list[float] = []
        self.took = 0.0  # seconds of the last turn, of which a step may be a part
        self.failure, self.ended = "no process started", False
        self.process: float | None = None  # its number, once it is there
        self.process = self._ask(asdict(request))

    def turn(self, patience: float, late: str) -> None:
        began = time.monotonic()
        answer = self._ask("turn", patience, late)
        self.took = time.monotonic() - began
        if answer is not None:
            self.seconds.append(answer)

    def finish(self) -> MeasuredStep | str:
        peak = self._ask("finish")
        if peak is None or len(self.seconds) < 2:
            return self.failure
        return MeasuredStep(median(self.seconds[1:]), int(peak))

    def _ask(self, question: object, patience: float | None = None, late: str = "") -> float | None:
        """The number that the process answers; None once it has ended, as it must after so many seconds, ``late``."""
        if self.ended:
            return None
        with contextlib.suppress(BrokenPipeError):  # what it said before it ended can still be read
            self.connection.send(question)
        in_time = self.process is None or self.connection.poll(patience)
        if self.process is not None:
            self.failure = "its process was killed" if in_time else late
        if not in_time:
            os.kill(int(self.process or 0), signal.SIGKILL)
        try:
            answer: float | str = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.ended = True
            return None
        if isinstance(answer, str):
            self.failure, self.ended = answer, True
            return None
        self.failure = NO_TIME  # unless it is timed
        return answer


def _serve(ends: Sequence[int], modules: Sequence[str]) -> None:
    """The process that the others are forked from; a single worker it is itself."""
    gc.disable()  # what is imported is kept, and shared with the forks as long as nobody looks through it
    for module in ("sympy", *modules):  # torch's first backward pass imports sympy
        with contextlib.suppress(Exception):  # who needs it says so
            importlib.import_module(module)
    gc.freeze()
    for own in ends:
        if len(ends) == 1 or not os.fork():
            gc.enable()
            for other in ends:
                if other != own:
                    os.close(other)
            _run(Connection(own))
            return
    for end in ends:
        os.close(end)
    for _ in ends:
        os.wait()


def _run(connection: Connection) -> None:
    """A worker: gets its request, says who it is, then runs a turn of steps for each question until ``finish``."""
    die_first()
    request = StepRequest(**connection.recv())
    connection.send(os.getpid())
    module, _, name = request.builder.partition(":")
    try:
        build: Callable[..., Callable[[], object]] = getattr(importlib.import_module(module), name)
        with limited_memory(request.device):
            step = build(**request.arguments)
            peak = PeakMemory(request.device)
            while connection.recv() != "finish":
                seconds = [mean_seconds(step, request.device)]
                while sum(seconds) < TURN:
                    seconds.append(mean_seconds(step, request.device))
                connection.send(fmean(seconds))
            connection.send(peak.bytes())
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        connection.send("out of memory" if "memory" in reason.lower() else reason[:REASON])


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]), sys.argv[2:])

"""Seconds and peak memory of steps, each in a process of its own, all in turn.

``python -m torch_linformer.measuring.workers`` is such a process. It is started by that name and not by
``multiprocessing``, which would run a script that asks for a measurement again if its main part is not guarded.
"""

import importlib
import json
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from torch_linformer.measuring.memory import PeakMemory, die_first, limited_memory
from torch_linformer.measuring.timing import mean_seconds

TURNS = 3  # timed, after one that is not
PATIENCE = 120.0  # seconds for a turn; a step that takes longer, as full attention can, counts as one that failed
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


def measure_in_turn(requests: Sequence[StepRequest], patience: float = PATIENCE) -> list[MeasuredStep | None]:
    """Each step's time and memory; None for one that failed, for lack of memory for instance, or took too long.

    Each runs in a fresh process; they take turns of at most ``patience`` seconds, so that a noisy machine slows all of
    them alike.
    """
    workers = [_Worker(request) for request in requests]
    for _ in range(1 + TURNS):
        for worker in workers:
            worker.turn(patience)
    return [worker.finish() for worker in workers]


class _Worker:
    """The parent's end of a measuring process, which answers each turn with the seconds of a step."""

    def __init__(self, request: StepRequest) -> None:
        self.seconds: list[float] = []
        command = [sys.executable, "-m", __name__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ask(asdict(request))

    def turn(self, patience: float) -> None:
        answer = self._ask("turn", patience)
        if answer is not None:
            self.seconds.append(answer)

    def finish(self) -> MeasuredStep | None:
        peak = self._ask("finish")
        self.process.communicate()
        if peak is None or len(self.seconds) <= TURNS:
            return None
        return MeasuredStep(median(self.seconds[1:]), int(peak))

    def _ask(self, question: object, patience: float | None = None) -> float | None:
        """The number that the process answers; None once it has ended, which it must after so many seconds."""
        assert self.process.stdin and self.process.stdout
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
            if not select.select([self.process.stdout], [], [], patience)[0]:
                self.process.kill()
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            return None


def _serve() -> None:
    """The process: reads a request, then runs a turn of steps for each line until ``finish``."""
    die_first()
    request = StepRequest(**json.loads(input()))
    module, _, name = request.builder.partition(":")
    build: Callable[..., Callable[[], object]] = getattr(importlib.import_module(module), name)
    with limited_memory(request.device):
        step = build(**request.arguments)
        peak = PeakMemory(request.device)
        print(0.0, flush=True)
        while json.loads(input()) != "finish":
            seconds = [mean_seconds(step, request.device)]
            while sum(seconds) < TURN:
                seconds.append(mean_seconds(step, request.device))
            print(fmean(seconds), flush=True)
        print(peak.bytes(), flush=True)


if __name__ == "__main__":
    _serve()

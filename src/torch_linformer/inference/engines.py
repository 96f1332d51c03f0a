"""Where the answers to many documents are computed: in this process, in several, or in the workers of Ray Data."""

import multiprocessing
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.queues import Queue
from typing import TypeVar

import torch

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import Answer
from torch_linformer.inference.input_documents import InputDocuments
from torch_linformer.inference.on_ray import on_ray
from torch_linformer.inference.output_parts import EVERYTHING, Gap
from torch_linformer.inference.predictor import Predictor
from torch_linformer.inference.worker import begin, computed
from torch_linformer.opening.devices import resolve_device

ENGINES = ("local", "ray")
AHEAD = 2  # groups a worker: one to compute, one that waits

Group = TypeVar("Group")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes; it changes no answer but for roundings.

    Attributes:
        name: ``local``, or ``ray`` for Ray Data.
        workers: processes of this machine, or workers of Ray.
        ray_address: of a cluster of Ray; None starts one on this machine.
    """

    name: str = "local"
    workers: int = 1
    ray_address: str | None = None

    def check(self, files: Sequence[str], device: str, compiled: bool = False) -> None:
        """Raise ``InputError`` where it cannot be as it is asked for, perhaps with a compiled model."""
        if self.name not in ENGINES:
            raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {self.name!r}")
        if self.workers < 1:
            raise InputError(f"--workers must be 1 or more, got {self.workers}")
        if compiled and (self.name != "local" or self.workers > 1):
            raise InputError("--compile is for a single process: leave out --workers and --engine ray")
        if self.ray_address is not None and self.name != "ray":
            raise InputError("--ray-address is for --engine ray")
        if self.name == "ray" and "-" in files:
            raise InputError("--engine ray reads files, which its workers can open, and no standard input")
        threads = torch.get_num_threads()
        if self.ray_address is None and self.workers > threads:
            raise InputError(f"--workers {self.workers} cannot share {threads} threads (OMP_NUM_THREADS): take fewer")
        if self.name == "local" and self.workers > 1 and resolve_device(device) != "cpu":
            raise InputError("--workers share the threads of a CPU: add --device cpu, or leave --workers out")

    def answers(
        self,
        predictor: Predictor,
        documents: InputDocuments,
        report: ReadReport,
        max_errors: int = 0,
        gaps: Sequence[Gap] = EVERYTHING,
    ) -> Iterator[list[Answer]]:
        """The answers to the documents of the gaps, in their order, of a group at a time.

        ``report`` is brought up to date; ``max_errors`` is how many bad records it takes.
        """
        if self.name == "ray":
            return on_ray(predictor, documents, report, max_errors, gaps, self.workers, self.ray_address)
        groups = documents.groups(report, gaps)
        if self.workers == 1:
            return map(predictor.answers, groups)
        return in_processes(self.workers, predictor.answers, groups)


def in_processes(workers: int, compute: Callable[[Group], Result], groups: Iterable[Group]) -> Iterator[Result]:
    """``compute`` of each group, in their order; each process has a copy of it, and its part of the threads.

    Raises:
        InputError: one of the processes was killed; the others end, too.
    """
    others = set(multiprocessing.active_children())
    share = max(1, torch.get_num_threads() // workers)
    context = _process_context()
    functions: Queue[Callable[[Group], Result]] = context.Queue()
    functions.cancel_join_thread()  # a worker may end before it takes its own
    with _signals_held():  # in the thread that puts them, too
        for _ in range(workers):
            functions.put(compute)
    pool = ProcessPoolExecutor(workers, context, begin, (functions, share))
    waiting: deque[Future[Result]] = deque()
    try:
        for group in groups:
            with _signals_held():
                waiting.append(pool.submit(computed, group))
            if len(waiting) == AHEAD * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise InputError(
            "a worker process was killed, perhaps for lack of memory; what --output has got so far stays, and the same "
            "command with --resume goes on"
        ) from None
    finally:
        if waiting:  # an error, or a signal: nobody waits for the rest
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        pool.shutdown(cancel_futures=True)


def _process_context() -> SpawnContext | ForkServerContext:
    """How workers start: as copies of a process that has imported all, once, where copies of it are safe."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch_linformer.inference.predictor"])
    return context


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and its like after the block instead of in it; of processes that are started in it see `worker.begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

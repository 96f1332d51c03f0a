"""A function of columns in several processes of one machine, which share its threads."""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.queues import Queue
from typing import Any

import torch

from torch_linformer.errors import InputError
from torch_linformer.inference.worker import begin, computed

Columns = dict[str, Any]
AHEAD = 2  # batches of columns a worker: one to compute, one that waits


def in_processes(workers: int, compute: Callable[[Columns], Columns], batches: Iterable[Columns]) -> Iterator[Columns]:
    """``compute`` of each batch, in their order; each process has a copy of it, and its part of the threads.

    Raises:
        InputError: one of the processes was killed; the others end, too.
    """
    others = set(multiprocessing.active_children())
    share = max(1, torch.get_num_threads() // workers)
    context = multiprocessing.get_context("spawn")
    functions: Queue[Callable[[Columns], Columns]] = context.Queue()
    functions.cancel_join_thread()  # a worker may end before it takes its own
    with _signals_held():  # in the thread that puts them, too
        for _ in range(workers):
            functions.put(compute)
    pool = ProcessPoolExecutor(workers, context, begin, (functions, share))
    waiting: deque[Future[Columns]] = deque()
    try:
        for batch in batches:
            with _signals_held():
                waiting.append(pool.submit(computed, batch))
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


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and its like after the block instead of in it; of processes that are started in it see `worker.begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

"""A function of columns in several processes of one machine, which share its threads."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import torch

from torch_linformer.errors import InputError

Columns = dict[str, Any]
AHEAD = 2  # batches of columns a worker: one to compute, one that waits

_compute: Callable[[Columns], Columns]  # of a worker


def in_processes(workers: int, compute: Callable[[Columns], Columns], batches: Iterable[Columns]) -> Iterator[Columns]:
    """``compute`` of each batch, in their order; each process has a copy of it, and its part of the threads.

    Raises:
        InputError: one of the processes was killed; the others end, too.
    """
    others = set(multiprocessing.active_children())
    share = max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin, (compute, share))
    waiting: deque[Future[Columns]] = deque()
    try:
        for batch in batches:
            with _interrupts_held():
                waiting.append(pool.submit(_computed, batch))
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
        if waiting:  # an error, or Ctrl-C: nobody waits for the rest
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C after the block instead of in it; processes that are started in it never get one."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(compute: Callable[[Columns], Columns], threads: int) -> None:
    global _compute
    torch.set_num_threads(threads)
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of tokenizers
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _compute = compute


def _computed(batch: Columns) -> Columns:
    return _compute(batch)


def _end_with_parent() -> None:
    """A process that is killed tells its children nothing."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

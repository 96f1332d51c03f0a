"""Where the answers to many documents are computed: in this process, in several, or in workers of Ray."""

import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from itertools import cycle
from typing import Any, TypeVar

import torch

from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import Answer
from torch_linformer.inference.predictor import FolderModel
from torch_linformer.opening.devices import resolve_device

ENGINES = ("local", "ray")
AHEAD = 2  # groups a worker: one to compute, one that waits

Group = TypeVar("Group")
Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes; it changes no answer but for roundings."""

    name: str = "local"  # or "ray"
    workers: int = 1  # processes of this machine, or workers of Ray
    ray_address: str | None = None  # of a cluster of Ray; None starts one on this machine

    def check(self, device: str, compiled: bool = False) -> None:
        """Raise ``InputError`` where it cannot be as it is asked for, perhaps with a compiled model."""
        if self.name not in ENGINES:
            raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {self.name!r}")
        if self.workers < 1:
            raise InputError(f"--workers must be 1 or more, got {self.workers}")
        if compiled and (self.name != "local" or self.workers > 1):
            raise InputError("--compile is for a single process: leave out --workers and --engine ray")
        if self.ray_address is not None and self.name != "ray":
            raise InputError("--ray-address is for --engine ray")
        threads = torch.get_num_threads()
        if self.ray_address is None and self.workers > threads:
            raise InputError(f"--workers {self.workers} cannot share {threads} threads (OMP_NUM_THREADS): take fewer")
        if self.name == "local" and self.workers > 1 and resolve_device(device) != "cpu":
            raise InputError("--workers share the threads of a CPU: add --device cpu, or leave --workers out")

    def answers(self, model: FolderModel, groups: Iterable[Sequence[Document]]) -> Iterator[list[Answer]]:
        """The answers to groups of documents, in their order."""
        if self.name == "ray":
            return _on_ray(self.workers, self.ray_address, model, groups)
        if self.workers == 1:
            return map(model.answers, groups)
        sent = type(model), model.folder, tuple(model.options.items())
        return in_processes(self.workers, partial(_answers, *sent), groups)


def _answers(
    kind: type[FolderModel], folder: str, options: tuple[tuple[str, Any], ...], group: Sequence[Document]
) -> list[Answer]:
    return _opened(kind, folder, options).answers(group)


@cache
def _opened(kind: type[FolderModel], folder: str, options: tuple[tuple[str, Any], ...]) -> FolderModel:
    return kind(folder, **dict(options))


def in_processes(workers: int, compute: Callable[[Group], Result], groups: Iterable[Group]) -> Iterator[Result]:
    """``compute`` of each group, in their order, by processes that share the threads.

    Raises:
        InputError: one of the processes was killed; the others end, too.
    """
    others = set(multiprocessing.active_children())
    context: Any = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":  # workers are copies of a process that has imported all, once
        context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(workers, context, _begin, (max(1, torch.get_num_threads() // workers),))

    def submit(group: Group) -> Future[Result]:
        with _signals_held():
            return pool.submit(compute, group)

    try:
        yield from _in_order(submit, Future.result, groups, AHEAD * workers)
    except BaseException as error:  # or a signal, or nobody waits for the rest
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        if isinstance(error, BrokenProcessPool):
            raise InputError(
                "a worker process was killed, perhaps for lack of memory; what --output has got so far stays, and the "
                "same command with --resume goes on"
            ) from None
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _in_order(
    submit: Callable[[Group], Job], result: Callable[[Job], Result], groups: Iterable[Group], ahead: int
) -> Iterator[Result]:
    waiting: deque[Job] = deque()
    for group in groups:
        waiting.append(submit(group))
        if len(waiting) == ahead:
            yield result(waiting.popleft())
    yield from map(result, waiting)


def _begin(threads: int) -> None:
    """Make this process a worker of so many threads, which ends with its parent: a killed one tells it nothing."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # Ctrl-C and a closed terminal are for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of tokenizers
    torch.set_num_threads(threads)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Ctrl-C and its like after the block instead of in it; of processes that are started in it see :func:`_begin`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_ray(
    workers: int, address: str | None, model: FolderModel, groups: Iterable[Sequence[Document]]
) -> Iterator[list[Answer]]:
    """Each worker has a model; one that dies is started again, and gets again what it was given."""
    with _ray(address, workers) as ray:
        gpus = int(resolve_device(model.device) == "cuda")
        remote = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=-1, max_task_retries=-1)(type(model))
        actors = [remote.remote(model.folder, **model.options) for _ in range(workers)]
        turns = cycle(actors)
        yield from _in_order(lambda group: next(turns).answers.remote(group), ray.get, groups, AHEAD * workers)


@contextmanager
def _ray(address: str | None, workers: int) -> Iterator[Any]:
    """Ray, connected; what was connected before stays so."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        import ray
    except ImportError:
        raise InputError('--engine ray needs ray: pip install "torch-linformer[ray]"') from None
    connects = not ray.is_initialized()
    if connects:
        here: dict[str, Any] = {"num_cpus": torch.get_num_threads(), "include_dashboard": False}
        try:
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else here))
        except (ConnectionError, ValueError) as error:
            raise InputError(f"--ray-address {address}: no cluster of Ray answers there ({error})") from None
    try:
        resources: Any = ray.cluster_resources  # untyped
        processors = int(resources().get("CPU", 0))
        if workers > processors:
            raise InputError(f"--workers {workers}: Ray has {processors} processors; take as many at most")
        yield ray
    finally:
        if connects:
            ray.shutdown()

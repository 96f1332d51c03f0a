"""What a worker process does; importing this takes no time, so that from its start on it ends with its parent."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.queues import Queue

_compute: Callable[[Any], Any]


def begin(functions: "Queue[Callable[[Any], Any]]", threads: int) -> None:
    """Make this process one that computes a function, the next of a queue, in so many threads.

    The libraries and the model that it needs take long to load, once it is taken out of the queue. A process that is
    killed meanwhile tells its children nothing, so they watch for its end before.
    """
    global _compute
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})  # Ctrl-C and a closed terminal are for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ["RAYON_NUM_THREADS"] = str(threads)  # of tokenizers
    import torch

    torch.set_num_threads(threads)
    _compute = functions.get()


def computed(group: Any) -> Any:
    """What the function makes of a group of documents."""
    return _compute(group)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)

"""The processes that train one model together, as ``torchrun`` and ``accelerate launch`` start them; usually one."""

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from types import FrameType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

from torch_linformer.errors import ANOTHER_ENDED, InputError, SaidElsewhere

WAITING = timedelta(hours=12)  # the longest wait for the main process, which reads and tokenizes the data for all
T = TypeVar("T")

_of_row: dist.ProcessGroup | None = None  # the processes that share each row with this one; None where rows are whole


def join(device: str, batch_size: int, context_parallel: int = 1, fsdp: bool = False, command: str = "train") -> None:
    """Meet the other processes, if there are any; sets of ``context_parallel`` share each row, and the sets a batch.

    With ``fsdp`` all of them share the weights too. ``command`` is for messages.

    Raises:
        InputError: they cannot share a batch equally, or rows, or have no way to talk to each other.
    """
    global _of_row
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size % context_parallel:
        raise InputError(
            f"--context-parallel {context_parallel} is computed by {context_parallel} processes, or a multiple of "
            f"them, and there {'is' if world_size == 1 else 'are'} {world_size}: "
            f"torchrun --nproc-per-node {context_parallel} -m torch_linformer.cli train ..."
        )
    if fsdp and world_size == 1:
        raise InputError(
            "--fsdp shares the weights among processes, and there is 1: "
            f"torchrun --nproc-per-node 2 -m torch_linformer.cli {command} --fsdp ..."
        )
    parts = world_size // context_parallel
    if batch_size % parts:
        sharers = f"{parts} processes" if context_parallel == 1 else f"{parts} sets of {context_parallel} processes"
        raise InputError(f"--batch-size {batch_size} cannot be shared by {sharers}: take a multiple of {parts}")
    if world_size > 1 and not dist.is_initialized():
        if device not in ("cpu", "cuda"):
            raise InputError(
                f"--device {device}: {world_size} processes train together on a CPU or on CUDA devices only"
            )
        PartialState(cpu=device == "cpu", timeout=WAITING)
        signal.signal(signal.SIGTERM, _end)
    _of_row = None
    if context_parallel > 1:
        _of_row, _ = dist.new_subgroups(context_parallel, timeout=WAITING)  # type: ignore[no-untyped-call]


def _end(signum: int, frame: FrameType | None) -> None:
    raise InputError(ANOTHER_ENDED)


def leave() -> None:
    """Take an orderly end: a process that is still talking to one that is gone may abort."""
    if dist.is_initialized():
        dist.destroy_process_group()


def count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_initialized() else 1


def of_row() -> dist.ProcessGroup | None:
    """The processes that share each row with this one, in the order of its pieces; None where rows are whole."""
    return _of_row


def pieces() -> int:
    """How many processes share each row that they train on; one after the other, by their numbers."""
    return 1 if _of_row is None else dist.get_world_size(_of_row)


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_main() -> bool:
    """Whether this process does what is done once: files, screen, whatever is scored or measured at the end."""
    return rank() == 0


def on_main(work: Callable[[], T]) -> T:
    """The result of ``work``, which the main process does for all; a copy of it in the others.

    Raises:
        SaidElsewhere: in the other processes, where it raises anything in the main one.
    """
    if count() == 1:
        return work()
    outcome: list[Any] = [None, True]
    try:
        if is_main():
            outcome = [work(), False]
    finally:
        dist.broadcast_object_list(outcome, src=0)
    if outcome[1]:
        raise SaidElsewhere
    result: T = outcome[0]
    return result


def wait() -> None:
    """Go on when all processes have come so far."""
    if count() > 1:
        dist.barrier()


def total(values: Tensor) -> Tensor:
    """The sum over all processes; of the same shape in each."""
    if count() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def gathered(value: T) -> list[T]:
    """What each process has, in their order."""
    values: list[Any] = [value]
    if count() > 1:
        values = [None] * count()
        dist.all_gather_object(values, value)
    return values


def mean_over_all(mean: Tensor, items: Tensor, of: Tensor | None = None) -> Tensor:
    r"""A loss whose mean over the processes is that over all their items, and so are its gradients.

    .. math:: \frac{1}{R} \sum_r \ell_r' = \frac{\sum_r n_r \ell_r}{\sum_r n_r}
        \quad \text{with} \quad \ell_r' = \frac{R\, n_r \ell_r}{\sum_r n_r}

    ``items`` is how many there are in this process, or their total weight; ``of`` those of its whole batch, of which
    these are a part (these if None): the losses of the parts add up to the batch's.
    """
    if count() == 1 and of is None:
        return mean
    # A mean over nothing is NaN.
    return torch.where(items > 0, mean, 0.0) * items * count() / total(items if of is None else of).clamp(min=1e-30)


def rows_of_all(rows: Tensor) -> Tensor:
    """Rows ``(n, …)`` of all processes, in their order; those of this one keep their gradients."""
    if count() == 1:
        return rows
    parts = [part.to(rows.device) for part in gathered(rows.detach().cpu())]
    parts[rank()] = rows
    return torch.cat(parts)

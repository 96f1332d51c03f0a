"""What went wrong, in the words of who runs a command."""

import errno

from torch_linformer.errors import ANOTHER_ENDED

# Writers in other languages report a full disk only as text; the last two are torch.save, which gives no reason.
DISK_FULL = ("No space left on device", "PytorchStreamWriter failed writing", "unexpected pos ")
# RuntimeErrors of torch, on a CPU and on a GPU.
MEMORY_FULL = ("can't allocate memory", "not enough memory", "out of memory")
# RuntimeErrors of torch.distributed, by gloo and by NCCL.
PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "remote process exited")


def explain(error: BaseException) -> str:
    """What went wrong, in one line."""
    if _is_disk_full(error):
        return "the disk is full: make room, then run the same command again, with --resume where it began a run"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_FULL)
    ):
        return "not enough memory: lower --batch-size or --max-length, or take a smaller model (--debug shows where)"
    if isinstance(error, RuntimeError) and any(text in str(error) for text in PEER_GONE):
        return ANOTHER_ENDED
    if hasattr(error, "format_message"):  # a wrong option, reported by whichever click typer is built on
        return f"{error.format_message()} (add --help for what there is)"
    message = " ".join(str(error).split())
    if isinstance(error, (ValueError, OSError)) and message:
        return message
    return f"{type(error).__name__}: {message} (--debug shows where)"


def _is_disk_full(error: BaseException | None) -> bool:
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # an error raised again can be its own cause
        if getattr(error, "errno", None) == errno.ENOSPC or any(text in str(error) for text in DISK_FULL):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False

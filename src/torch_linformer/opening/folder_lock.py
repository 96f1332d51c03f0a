"""A run's folder belongs to one process at a time, and is left as it was found by one that leaves nothing in it."""

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from torch_linformer.errors import InputError

LOCK_FILE = ".lock"  # names who holds it; the lock itself is the kernel's, which a dead process does not hold


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Make a folder if it is not there and keep other processes out; it goes again if it is empty in the end.

    Raises:
        InputError: another process holds it, or nothing can be written there.
    """
    made = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        file = _lock(output)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written to ({error.strerror}); name another folder") from None
    try:
        yield
    finally:
        Path(file.name).unlink(missing_ok=True)  # while it is held: nobody else can have taken it
        file.close()
        with suppress(OSError):  # the first that is not empty
            for folder in made:
                folder.rmdir()


def _lock(output: Path) -> TextIO:
    while True:
        output.mkdir(parents=True, exist_ok=True)
        try:
            file = open(output / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 - open for as long as it is held
        except FileNotFoundError:  # its holder has just ended and removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another one"
            file.close()
            raise InputError(
                f"--output {output}: process {holder} is at work there; wait for its end, or name another folder"
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            file.truncate(0)  # of one that was killed
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # its holder has just ended and removed it: a lock on it would keep nobody out

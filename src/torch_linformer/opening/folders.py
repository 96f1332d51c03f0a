"""Folders that belong to one process at a time, and folders that appear complete or not at all."""

import fcntl
import os
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from torch_linformer.errors import InputError
from torch_linformer.reporting.files import flush

LOCK_FILE = ".lock"  # names the holder; the lock itself is the kernel's, and ends with the process


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Make a folder if it is missing and keep other processes out; in the end it is removed if it is empty."""
    created = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        file = _lock(output)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written to ({error.strerror}); name another folder") from None
    try:
        yield
    finally:
        Path(file.name).unlink(missing_ok=True)  # while still held, so that no other process can hold it
        file.close()
        with suppress(OSError):  # the first that is not empty
            for folder in created:
                folder.rmdir()


def _lock(output: Path) -> TextIO:
    while True:
        output.mkdir(parents=True, exist_ok=True)
        try:
            file = open(output / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 - stays open while it is held
        except FileNotFoundError:  # the holder has just ended and removed the folder
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
            file.truncate(0)  # a killed process leaves its name
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # the holder has just ended and removed the file: a lock on it would keep nobody out


def check_free(output: Path) -> None:
    """Raise ``InputError`` where a folder cannot be made: something is there, or nothing can be written there."""
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output {output}: is not empty; name another folder")
    check_writable(output)


def check_writable(output: Path) -> None:
    """Raise ``InputError`` where no file or folder can be made at ``output``: before the work, rather than after it."""
    if output.is_char_device() or output.is_fifo():  # /dev/stdout
        return
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise InputError(f"--output {output}: cannot be written to, because of {existing}; name another place")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A temporary folder to fill, which is renamed when the block ends without an error, and otherwise removed."""
    check_free(output)
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        os.replace(temporary, output)
        flush(output.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

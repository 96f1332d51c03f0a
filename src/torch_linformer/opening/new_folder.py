"""A folder that appears complete or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_linformer.errors import InputError
from torch_linformer.reporting.files import flush


def check_free(output: Path) -> None:
    """Raise ``InputError`` where a folder cannot be made: something is there, or nothing can be written there."""
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output {output}: is not empty; name another folder")
    check_writable(output)


def check_writable(output: Path) -> None:
    """Raise ``InputError`` where no file or folder can be made at ``output``: before the work, rather than after it."""
    if output.is_char_device() or output.is_fifo():  # /dev/stdout
        return
    there = next(folder for folder in output.absolute().parents if folder.exists())
    if not (there.is_dir() and os.access(there, os.W_OK | os.X_OK)):
        raise InputError(f"--output {output}: cannot be written to, because of {there}; name another place")


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

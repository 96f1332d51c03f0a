"""A folder that appears whole or not at all."""

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_linformer.training.errors import InputError


def check_free(output: Path) -> None:
    """Raise ``InputError`` where a folder cannot be made because something is there."""
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output {output}: is not empty; name another folder")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A temporary folder to fill, which gets its name when the block ends without an error, and else is removed.

    Raises:
        InputError: the name is taken.
    """
    check_free(output)
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        os.replace(temporary, output)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

"""What is not there is refused before the libraries are imported that would find out: they take seconds."""

import glob
from collections.abc import Iterable
from pathlib import Path

from torch_linformer.data.reading.formats import COMPRESSED_SUFFIXES, TABLE_SUFFIXES, unreadable
from torch_linformer.errors import InputError


def check_model(name: str | None) -> None:
    """Raise ``InputError`` for a model that is neither here nor, by its name, on the hub."""
    if name is not None and _is_missing(name):
        raise InputError(f"{name}: no such folder, and no model of that name could be fetched")


def check_data(*names: str | None) -> None:
    """Raise ``InputError`` for data that are neither here nor, by their name, on the hub; None and fractions pass."""
    for name in filter(None, names):
        is_file = Path(name).suffix.lower() in (*TABLE_SUFFIXES, *COMPRESSED_SUFFIXES)
        if _is_missing(name) or (is_file and "://" not in name and not Path(name).exists()):
            raise unreadable(name, FileNotFoundError())


def check_files(names: Iterable[str]) -> None:
    """Raise ``InputError`` for a file or folder that is not there; patterns and standard input pass."""
    for name in names:
        if name != "-" and not glob.has_magic(name) and not Path(name).exists():
            raise unreadable(name, FileNotFoundError())


def _is_missing(name: str) -> bool:
    """Whether a name is that of a path, and not of something on the hub (``name`` or ``owner/name``), and not there."""
    path = Path(name)
    beside = len(path.parts) == 2 and path.parent.is_dir()
    is_path = "://" not in name and (path.is_absolute() or name.startswith(".") or len(path.parts) > 2 or beside)
    return is_path and not path.exists()

"""What the files of a folder are: parts of a data set, tables of one kind, or texts in a folder for each label."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_linformer.data.reading.formats import TABLE_SUFFIXES, file_suffix

# What the parts of a data set are called, as `datasets` recognizes them.
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_PART = re.compile(r"(?P<name>[a-z]+)([-_.]\d+(-of-\d+)?)?", re.IGNORECASE)  # train, train-00000-of-00002


@dataclass(frozen=True)
class FolderFile:
    """A file, and the name of the folder that it lies in, directly below the one that is read, if any."""

    path: Path
    label: str | None


def parts_of(root: Path) -> dict[str, list[Path]]:
    """The entries of each part of a folder that holds a data set in parts; empty for any other folder.

    It does where there is one for training and one for validation or test.
    """
    parts: dict[str, list[Path]] = {}
    for entry in entries(root):
        stem = entry.name if entry.is_dir() else entry.name.partition(".")[0]
        name = _PART.fullmatch(stem)
        part = next((part for part, names in PARTS.items() if name and name["name"].lower() in names), None)
        if part is not None and (entry.is_dir() or (file_suffix(entry) in TABLE_SUFFIXES and not is_special(entry))):
            parts.setdefault(part, []).append(entry)
    return {part: parts[part] for part in PARTS if part in parts} if "train" in parts and len(parts) > 1 else {}


def folder_files(root: Path) -> Iterator[FolderFile]:
    """Every file below `root`, sorted; hidden files and folders are passed over."""
    for entry in entries(root):
        if entry.is_dir():
            yield from (FolderFile(file, entry.name) for file in _files_below(entry))
        else:
            yield FolderFile(entry, None)


def is_special(path: Path) -> bool:
    """Whether a path is a pipe, a socket or a device: reading it may never end."""
    return path.exists() and not (path.is_file() or path.is_dir())


def shard_suffix(files: Sequence[Path]) -> str | None:
    """The suffix of a folder's files if they are all tables of one kind; None otherwise."""
    suffixes = {file_suffix(file) for file in files}
    return suffixes.pop() if len(suffixes) == 1 and suffixes <= {*TABLE_SUFFIXES} else None


def entries(folder: Path) -> list[Path]:
    """The files and folders in a folder that are not hidden, sorted."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _files_below(folder: Path) -> Iterator[Path]:
    """Its own files first, then those of its folders, but not of links to folders, which may lead in circles."""
    for entry in sorted(entries(folder), key=Path.is_dir):
        if not entry.is_dir():
            yield entry
        elif not entry.is_symlink():
            yield from _files_below(entry)

"""What the files of a folder are: parts of a data set, tables of one kind, or texts in a folder for each label."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch_linformer.data.reading.formats import PART_SUFFIXES, TABLE_SUFFIXES, file_suffix

# What the parts of a data set are called, as `datasets` recognizes them, and CoNLL-2003.
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "testa"),
    "test": ("test", "testing", "eval", "evaluation", "testb"),
}
_FOLDER_OF_PART = re.compile(r"[a-z]+([-_.]\d+(-of-\d+)?)?", re.IGNORECASE)  # train, train-00000-of-00002
_BETWEEN_WORDS = re.compile(r"[-_. \d]+")  # of a file's name: reviews_train.csv, de_gsd-ud-dev.conllu, wiki.test.tokens
_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx")  # what Windows and macOS leave in folders
_TEXTS_OF_PARTS = (".txt", ".tokens")
ABOUT_DATA = re.compile(r"(readme|licen[sc]e|copying|notice|citation|changelog|authors)\b.*", re.IGNORECASE)


@dataclass(frozen=True)
class FolderFile:
    """A file, and the name of the folder that it lies in, directly below the one that is read, if any."""

    path: Path
    label: str | None


def parts_of(root: Path) -> dict[str, list[Path]]:
    """The entries of each part of a folder that holds a data set in parts; empty for any other folder.

    It does where there is one for training and one for validation or test: folders, tables, or all of its texts.
    """
    inside = entries(root)
    texts = [entry for entry in inside if _is_text(entry)]
    for candidates in ([entry for entry in inside if entry not in texts], texts):
        parts: dict[str, list[Path]] = {}
        for entry in candidates:
            parts.setdefault(_part(entry), []).append(entry)
        others = parts.pop("", [])
        if "train" in parts and len(parts) > 1 and not (candidates is texts and others):
            return {part: parts[part] for part in PARTS if part in parts}
    return {}


def _is_text(entry: Path) -> bool:
    """Whether an entry is a text that may be a part, and none about the data."""
    return entry.is_file() and file_suffix(entry) in _TEXTS_OF_PARTS and not ABOUT_DATA.fullmatch(entry.name)


def _part(entry: Path) -> str:
    """The part that an entry is called after; "" where it is none, or may be two."""
    if entry.is_dir():
        may_be_part = _FOLDER_OF_PART.fullmatch(entry.name) is not None
    else:
        is_table = file_suffix(entry) in (*TABLE_SUFFIXES, *PART_SUFFIXES) and not is_special(entry)
        may_be_part = is_table or _is_text(entry)
    words = {*_BETWEEN_WORDS.split(entry.name.lower())} if may_be_part else set[str]()
    called = [part for part, names in PARTS.items() if words & {*names}]
    return called[0] if len(called) == 1 else ""


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
    """The files and folders in a folder that are not hidden, nor a system's own, sorted."""
    inside = (entry for entry in folder.iterdir() if entry.name.lower() not in _OF_SYSTEMS)
    return sorted(entry for entry in inside if not entry.name.startswith("."))


def _files_below(folder: Path) -> Iterator[Path]:
    """Its own files first, then those of its folders, but not of links to folders, which may lead in circles."""
    for entry in sorted(entries(folder), key=Path.is_dir):
        if not entry.is_dir():
            yield entry
        elif not entry.is_symlink():
            yield from _files_below(entry)

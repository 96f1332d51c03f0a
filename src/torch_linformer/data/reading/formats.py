"""The formats of files, by their suffixes; files opened as bytes, compressed or not; what the files of a folder are."""

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError, first_line

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", *CONLL_SUFFIXES)
PART_SUFFIXES = (".train", ".dev", ".test", ".testa", ".testb")  # of words with tags, as CoNLL-2003 is divided
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
BINARY_SUFFIXES = frozenset(
    {".7z", ".arrow", ".bin", ".doc", ".docx", ".epub", ".feather", ".gif", ".h5", ".jpeg", ".jpg", ".npy", ".npz"}
    | {".odt", ".orc", ".pdf", ".pickle", ".pkl", ".png", ".ppt", ".pptx", ".pt", ".safetensors", ".sqlite", ".tar"}
    | {".tgz", ".xz", ".zip", *SHEETS}
)
_FORMATS = f"{', '.join(TABLE_SUFFIXES)}, plain text, or a folder with one folder per label"
SNIFFED_BYTES = 8192  # git looks this far for the NUL byte that no text holds
MOST_UNFOLDED = 200  # times the size of a file; text is compressed to a third or a tenth, much repeated to less
# What the parts of a data set are called, as `datasets` recognizes them, and CoNLL-2003.
PARTS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "testa"),
    "test": ("test", "testing", "eval", "evaluation", "testb"),
}
_FOLDER_OF_PART = re.compile(r"[a-z]+([-_.]\d+(-of-\d+)?)?", re.IGNORECASE)  # train, train-00000-of-00002
_BETWEEN_WORDS = re.compile(r"[-_. \d]+")  # of a file's name: reviews_train.csv, de_gsd-ud-dev.conllu, wiki.test.tokens
_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx")  # what Windows and macOS leave in folders
VECTORS = "linformer_search.json"  # in a folder of vectors that a search has written: it holds no documents
_TEXTS_OF_PARTS = (".txt", ".tokens")
ABOUT_DATA = re.compile(r"(readme|licen[sc]e|copying|notice|citation|changelog|authors)\b.*", re.IGNORECASE)


def file_suffix(path: Path) -> str:
    """The suffix in lower case, without that of a compressed file: ".csv" for posts.CSV.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def file_stem(path: Path) -> str:
    """The name without its suffixes of format and compression."""
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path).stem


@contextmanager
def open_bytes(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """A file as bytes, uncompressed.

    One that unfolds to more than the memory and `MOST_UNFOLDED` times its size is an `InputError`.
    """
    if path.suffix.lower() not in COMPRESSED_SUFFIXES:
        with path.open("rb") as file:
            yield file
        return
    try:
        with io.BufferedReader(_Unfolded(path)) as stream:
            yield stream
    except OSError as error:
        raise InputError(f"{path}: not a readable {path.suffix} file ({first_line(error)}); write it again") from None


class NotText(InputError):
    """A file is not text."""


def not_text(name: str | Path) -> NotText:
    """The error for a file that cannot be read as text."""
    return NotText(f"{name}: not text, nor another known format; known are {_FORMATS}, and these as .gz, .bz2, .zst")


def unreadable(name: str | Path, error: OSError) -> InputError:
    """The error for a file that is missing or cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file or folder")
    return InputError(f"{name}: cannot be read ({error.strerror or first_line(error)})")


def most_unfolded(path: Path) -> int:
    """The bytes to which a file may unfold: those of the memory, or `MOST_UNFOLDED` times its own."""
    from torch_linformer.measuring.machine import memory_bytes

    return max(MOST_UNFOLDED * path.stat().st_size, memory_bytes())


class _Unfolded(io.RawIOBase):
    """A compressed file as the bytes that were compressed, up to as many as may be."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path, self.left = path, most_unfolded(path)
        self.stream = pyarrow.input_stream(str(path), compression="detect")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.left -= len(data)
        if self.left < 0:
            raise InputError(f"{self.path}: unfolds to more than {MOST_UNFOLDED} times its size; unfold it yourself")
        return len(data)

    def close(self) -> None:
        self.stream.close()
        super().close()


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
    """The files and folders in a folder that are not hidden, nor a system's own or a search's, sorted."""
    inside = (entry for entry in folder.iterdir() if entry.name.lower() not in _OF_SYSTEMS)
    return sorted(entry for entry in inside if not (entry.name.startswith(".") or (entry / VECTORS).is_file()))


def _files_below(folder: Path) -> Iterator[Path]:
    """Its own files first, then those of its folders, but not of links to folders, which may lead in circles."""
    for entry in sorted(entries(folder), key=Path.is_dir):
        if not entry.is_dir():
            yield entry
        elif not entry.is_symlink():
            yield from _files_below(entry)

"""The formats of files, by their suffixes, and files opened as bytes, compressed or not."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
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

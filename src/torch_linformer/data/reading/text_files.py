"""A file opened as text, and what a reader makes of it: rows."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from torch_linformer.errors import InputError

CONLL_SUFFIXES = (".conll", ".iob", ".iob2", ".bio")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", *CONLL_SUFFIXES)
_BINARY_SUFFIXES = frozenset(
    {".7z", ".arrow", ".bin", ".bz2", ".doc", ".docx", ".epub", ".feather", ".gif", ".gz", ".h5", ".jpeg"}
    | {".jpg", ".npy", ".npz", ".ods", ".odt", ".orc", ".pdf", ".pickle", ".pkl", ".png", ".ppt", ".pptx"}
    | {".pt", ".safetensors", ".sqlite", ".tar", ".tgz", ".xls", ".xlsx", ".xz", ".zip", ".zst"}
)
_FORMATS = f"{', '.join(TABLE_SUFFIXES)}, plain text, or a folder with one folder per label"
SNIFFED_BYTES = 8192  # git looks this far for the NUL byte that no text holds

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """The values of one row, and where it stands, in words for a person: "reviews.csv, row 17"."""

    values: dict[str, object]
    where: str

    def cell(self, column: str | None) -> object:
        """The value in a column; None where there is no such column."""
        return None if column is None else self.values.get(column)


class BadRow(NamedTuple):
    """Where a row stands that cannot be read, and what is wrong with it."""

    where: str
    problem: InputError


@contextmanager
def opened(path: Path) -> Iterator[io.BufferedReader]:
    """A text file as bytes, after its byte order mark; a file that is not text is an `InputError`."""
    if path.suffix.lower() in _BINARY_SUFFIXES:
        raise not_text(path)
    with path.open("rb") as stream:
        head = stream.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
        if b"\0" in head:
            raise not_text(path)
        if head.startswith(BYTE_ORDER_MARK):
            stream.seek(len(BYTE_ORDER_MARK))
        yield stream


def decode(data: bytes) -> str:
    """UTF-8 as text; a byte that is not UTF-8 becomes a lone surrogate."""
    return data.decode("utf-8", "surrogateescape")


def not_text(name: str | Path) -> InputError:
    """The error for a file that cannot be read as text."""
    return InputError(f"{name}: not a text file in UTF-8, nor another known format; known are {_FORMATS}")

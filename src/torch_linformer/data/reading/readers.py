"""Rows of the user's files, one at a time, whatever the format; nothing is read before it is needed.

| what                    | one row                   | values                                         |
|-------------------------|---------------------------|------------------------------------------------|
| .csv .tsv               | one line of the table     | the cells, as text, under the header's names   |
| .jsonl .ndjson          | one line                  | the JSON object on it                          |
| .json                   | one line, or one item     | as above, or an array of objects (read whole)  |
| .json of SQuAD          | one question              | id, question, context, answers (read whole)    |
| .parquet                | one row                   | the columns (needs pyarrow)                    |
| .conll .iob .iob2 .bio  | one document, or sentence | tokens, tags; which of the two: `conll`        |
| a folder of tables      | one row of one of them    | as above, if all files have the same suffix    |
| any other folder        | one file                  | text, and label for a file inside `label/`     |
| any other file          | the file                  | text                                           |

Text is UTF-8, with or without a byte order mark. A byte that is not UTF-8 becomes U+FFFD; the rows that hold one
are counted, because silence would hide a file saved in another encoding.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from torch_linformer.data.reading.table_readers import TABLE_READERS, read_json_lines
from torch_linformer.data.reading.text_files import (
    BYTE_ORDER_MARK,
    SNIFFED_BYTES,
    BadRow,
    Row,
    decode,
    not_text,
    opened,
)
from torch_linformer.errors import InputError

SAMPLE_ROWS = 100  # rows looked at to recognize the columns
_PIECE_BYTES = 2**20  # of a text of which only parts are needed at once
# Bytes that are not UTF-8 are decoded to lone surrogates; JSON escapes such as \ud800 can make them too.
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass
class ReadReport:
    """What was noticed of the rows read so far.

    Attributes:
        replaced: how many had bytes that are not UTF-8.
        empty: how many were skipped without text.
        bad: how many could not be read.
        on_bad: called with where such a row stands and what is wrong; without it the first one is raised.
    """

    replaced: int = 0
    empty: int = 0
    bad: int = 0
    on_bad: Callable[[str, InputError], object] | None = None

    def leave_out(self, where: str, problem: InputError) -> None:
        """Go on without a row that cannot be read, or raise ``problem``."""
        if self.on_bad is None:
            raise problem
        self.bad += 1
        self.on_bad(where, problem)


def iter_rows(path: str | Path, report: ReadReport | None = None, *, whole: bool = True) -> Iterator[Row]:
    """The rows of a file or folder in order; the suffix chooses the format (the module's table).

    Rows are counted from 1, without the header and blank lines. `report` is brought up to date before each row is
    given. Unless they are to be `whole`, files of text come in pieces of a megabyte, cut at the end of a line where
    there is one: any size of file will do.
    """
    path = Path(path)
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    rows = _read_folder(path, whole) if path.is_dir() else _read_file(path, whole)
    return _cleaned(rows, str(path), report or ReadReport())


def iter_stream(stream: BinaryIO, report: ReadReport | None = None) -> Iterator[Row]:
    """The rows of standard input: JSON lines if the first line that is not blank holds a JSON object.

    Otherwise everything up to the end is one document, under `text`. An empty stream has no rows.
    """
    return _cleaned(_read_stream(stream, "standard input"), "standard input", report or ReadReport())


def folder_files(root: Path) -> Iterator[tuple[str | None, Path]]:
    """(label, path) of every file below `root`, sorted; hidden files and folders are passed over.

    The label is the name of the folder directly below `root`, and None for a file in `root` itself.
    """
    for entry in _entries(root):
        if entry.is_dir():
            yield from ((entry.name, file) for file in _files_below(entry))
        else:
            yield None, entry


def unreadable(name: str | Path, error: OSError) -> InputError:
    """The error for a file that is missing or cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file or folder")
    return InputError(f"{name}: cannot be read ({error.strerror})")


def shard_suffix(files: Sequence[Path]) -> str | None:
    """The suffix of a folder's files, in lower case, if they are all tables of one kind; None otherwise."""
    suffixes = {file.suffix.lower() for file in files}
    return suffixes.pop() if len(suffixes) == 1 and suffixes <= TABLE_READERS.keys() else None


def _cleaned(rows: Iterator[Row | BadRow], name: str, report: ReadReport) -> Iterator[Row]:
    try:
        for row in rows:
            if isinstance(row, BadRow):
                report.leave_out(*row)
                continue
            values, where = row
            clean = {str(_clean(column)): _clean(value) for column, value in values.items()}
            report.replaced += list(clean.values()) != list(values.values())
            yield Row(clean, where)
    except OSError as error:
        raise unreadable(error.filename or name, error) from None
    except RecursionError:
        raise InputError(f"{name}: holds a value nested too deeply to be read; flatten it") from None


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _files_below(folder: Path) -> Iterator[Path]:
    """Its own files first, then those of its folders, but not of links to folders, which may lead in circles."""
    for entry in sorted(_entries(folder), key=Path.is_dir):
        if not entry.is_dir():
            yield entry
        elif not entry.is_symlink():
            yield from _files_below(entry)


def _entries(folder: Path) -> list[Path]:
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def _read_folder(root: Path, whole: bool) -> Iterator[Row | BadRow]:
    files = list(folder_files(root))
    is_table = shard_suffix([path for _, path in files]) is not None
    for label, path in files:
        for row in _read_file(path, whole, as_text=not is_table):
            if is_table or label is None or isinstance(row, BadRow):
                yield row
            else:
                yield Row({**row.values, "label": label}, row.where)


def _read_file(path: Path, whole: bool, as_text: bool = False) -> Iterator[Row | BadRow]:
    """Its rows, up to where it is damaged, if it is."""
    reader = None if as_text else TABLE_READERS.get(path.suffix.lower())
    try:
        yield from _read_text(path, whole) if reader is None else reader(path)
    except InputError as problem:
        yield BadRow(str(path), problem)
    except OSError as error:
        yield BadRow(str(path), unreadable(path, error))


def _read_text(path: Path, whole: bool) -> Iterator[Row]:
    with opened(path) as stream:
        if whole:
            yield Row({"text": decode(stream.read())}, str(path))
            return
        # A line ends a piece, unless it is longer than one; the bytes of a character stay together.
        while piece := stream.read(_PIECE_BYTES):
            piece += stream.readline(_PIECE_BYTES)
            while piece[-1] >= 0x80 and (more := stream.peek(1)[:1]) and more[0] & 0xC0 == 0x80:
                piece += stream.read(1)
            yield Row({"text": decode(piece)}, str(path))


def _read_stream(stream: BinaryIO, name: str) -> Iterator[Row | BadRow]:
    head: list[bytes] = []
    for line in stream:
        head.append(line if head else line.removeprefix(BYTE_ORDER_MARK))
        if head[-1].strip():
            break
    if not head:
        return
    try:
        is_json = isinstance(json.loads(decode(head[-1])), dict)
    except (ValueError, RecursionError):
        is_json = False
    if is_json:
        yield from read_json_lines(chain(head, stream), name)
        return
    data = b"".join(head) + stream.read()
    if b"\0" in data[:SNIFFED_BYTES]:
        raise not_text(name)
    yield Row({"text": decode(data)}, name)

"""Rows of the user's files, one at a time, whatever the format; nothing is read before it is needed.

| what                    | one row                   | values                                         |
|-------------------------|---------------------------|------------------------------------------------|
| .csv .tsv               | one line of the table     | the cells, as text, under the header's names   |
| .jsonl .ndjson          | one line                  | the JSON object on it                          |
| .json                   | one line, or one item     | as above, or an array of objects (read whole)  |
| .json of SQuAD          | one question              | id, question, context, answers (read whole)    |
| .parquet                | one row                   | the columns (needs pyarrow)                    |
| .conll .iob .iob2 .bio  | one document, or sentence | tokens, tags; which of the two: `conll`        |
| a folder                | one file                  | text, and label for a file inside `label/`     |
| any other file          | the file                  | text                                           |

Text is UTF-8, with or without a byte order mark. A byte that is not UTF-8 becomes U+FFFD; how many rows that
happened in is counted, because silence would hide a file saved in another encoding.
"""

import csv
import io
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, starmap
from pathlib import Path
from typing import BinaryIO, NamedTuple

from torch_linformer.training.conll import conll_rows
from torch_linformer.training.errors import InputError
from torch_linformer.training.squad import find_squad, squad_rows

_CONLL_SUFFIXES = (".conll", ".iob", ".iob2", ".bio")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", *_CONLL_SUFFIXES)
_BINARY_SUFFIXES = frozenset(
    {".7z", ".arrow", ".bin", ".bz2", ".doc", ".docx", ".epub", ".feather", ".gif", ".gz", ".h5", ".jpeg"}
    | {".jpg", ".npy", ".npz", ".ods", ".odt", ".orc", ".pdf", ".pickle", ".pkl", ".png", ".ppt", ".pptx"}
    | {".pt", ".safetensors", ".sqlite", ".tar", ".tgz", ".xls", ".xlsx", ".xz", ".zip", ".zst"}
)
_FORMATS = f"{', '.join(TABLE_SUFFIXES)}, plain text, or a folder with one folder per label"
_SNIFFED_BYTES = 8192  # git looks this far for the NUL byte that no text holds
_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise
_PARQUET_BATCH = 64  # rows in memory at once; a row may be a book
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# Bytes that are not UTF-8 are decoded to lone surrogates; JSON escapes such as \ud800 can make them too.
_SURROGATE = re.compile("[\ud800-\udfff]")


class Row(NamedTuple):
    """The values of one row, and where it stands, in words for a person: "reviews.csv, row 17"."""

    values: dict[str, object]
    where: str


@dataclass
class ReadReport:
    """What a reader has met so far: rows given, and those among them with bytes that are not UTF-8."""

    rows: int = 0
    replaced: int = 0


def iter_rows(path: str | Path, report: ReadReport | None = None) -> Iterator[Row]:
    """Yield the rows of a file or folder in order; the suffix chooses the format (the module's table).

    Rows are counted from 1, the header left out; blank lines are no rows. `report` is brought up to date
    before each row is given.

    Raises:
        InputError: nothing is there (at once); or, when the iteration comes to it, the format is not known or
            a row is malformed.
    """
    path = Path(path)
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return _counted(_choose_reader(path), str(path), ReadReport() if report is None else report)


def iter_stream(stream: BinaryIO, report: ReadReport | None = None, *, name: str = "standard input") -> Iterator[Row]:
    """Yield the rows of a binary stream: JSON lines if the first line that is not blank holds a JSON object;
    otherwise everything up to the end is one document, under `text`. An empty stream has no rows.

    Raises:
        InputError: a malformed line, or bytes that are not text.
    """
    return _counted(_read_stream(stream, name), name, ReadReport() if report is None else report)


def folder_files(root: Path) -> Iterator[tuple[str | None, Path]]:
    """Yield (label, path) of every file below `root`, sorted; hidden files and folders are passed over.

    The label is the name of the folder directly below `root`, and None for a file in `root` itself.
    """
    for entry in sorted(root.iterdir()):
        if entry.name.startswith("."):
            continue
        if not entry.is_dir():
            yield None, entry
            continue
        for base, folders, names in os.walk(entry, onerror=_raise):
            folders[:] = sorted(folder for folder in folders if not folder.startswith("."))
            for name in sorted(names):
                if not name.startswith("."):
                    yield entry.name, Path(base, name)


def unreadable(name: str | Path, error: OSError) -> InputError:
    """Say in one line that `name` is missing, or why it cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file or folder")
    return InputError(f"{name}: cannot be read ({error.strerror})")


def _choose_reader(path: Path) -> Iterator[Row]:
    if path.is_dir():
        return _read_folder(path)
    match path.suffix.lower():
        case ".csv":
            return _read_csv(path, ",")
        case ".tsv":
            return _read_csv(path, "\t")
        case ".jsonl" | ".ndjson" | ".json":
            return _read_json(path)
        case ".parquet":
            return _read_parquet(path)
        case suffix if suffix in _CONLL_SUFFIXES:
            return _read_conll(path)
        case _:
            return _read_text(path)


def _counted(rows: Iterator[Row], name: str, report: ReadReport) -> Iterator[Row]:
    try:
        for values, where in rows:
            clean = {str(_clean(column)): _clean(value) for column, value in values.items()}
            report.rows += 1
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


def _read_csv(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    with _opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="surrogateescape", newline="")
        table = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            lines = filter(None, table)  # a blank line is an empty list
            header = next(lines, [])
            twice = sorted({column for column in header if header.count(column) > 1})
            if twice:
                raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")
            for number, cells in enumerate(lines, start=1):
                if len(cells) != len(header):
                    raise InputError(
                        f"{path}, row {number} (line {table.line_num}): expected {len(header)} cells as in"
                        f" the header, found {len(cells)}; put quotes around cells that hold the delimiter"
                    )
                yield Row(dict(zip(header, cells, strict=True)), f"{path}, row {number}")
        except csv.Error as error:
            raise InputError(f"{path}, line {table.line_num}: {error}; check the quotes there") from None


def _read_json(path: Path) -> Iterator[Row]:
    with _opened(path) as stream:
        lines = iter(stream)
        first = next((line for line in lines if line.removeprefix(_BYTE_ORDER_MARK).strip()), b"")
        first = first.removeprefix(_BYTE_ORDER_MARK).strip()
        stream.seek(0)
        if first.startswith(b"["):
            yield from _read_json_array(stream, str(path))
            return
        # SQuAD is one object, on one line or over many; only a line that may begin it is worth reading it all.
        if first.startswith(b"{") and (b'"paragraphs"' in first or not first.endswith(b"}")):
            content = find_squad(stream.read().removeprefix(_BYTE_ORDER_MARK), str(path))
            if content is not None:
                yield from starmap(Row, squad_rows(content, str(path)))
                return
            stream.seek(0)
        yield from _read_json_lines(stream, str(path))


def _read_json_lines(lines: Iterable[bytes], name: str) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        values = _parse_json(line, where, "write one JSON object on each line")
        if not isinstance(values, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(values).__name__}")
        yield Row(values, where)


def _read_json_array(stream: BinaryIO, name: str) -> Iterator[Row]:
    items = _parse_json(stream.read().removeprefix(_BYTE_ORDER_MARK), name, "write one array of JSON objects")
    for number, values in enumerate(items if isinstance(items, list) else [items], start=1):
        where = f"{name}, item {number}"
        if not isinstance(values, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(values).__name__}")
        yield Row(values, where)


def _parse_json(data: bytes, where: str, remedy: str) -> object:
    try:
        return json.loads(data.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error}); {remedy}") from None


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as table:
            batches = table.iter_batches(batch_size=_PARQUET_BATCH)
            rows = chain.from_iterable(batch.to_pylist() for batch in batches)
            for number, values in enumerate(rows, start=1):
                yield Row(values, f"{path}, row {number}")
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: not a readable Parquet file ({reason}); write it again") from None


def _read_conll(path: Path) -> Iterator[Row]:
    with _opened(path) as stream:
        yield from starmap(Row, conll_rows(stream, str(path)))


def _read_folder(root: Path) -> Iterator[Row]:
    for label, path in folder_files(root):
        for row in _read_text(path):
            yield row if label is None else Row({**row.values, "label": label}, row.where)


def _read_text(path: Path) -> Iterator[Row]:
    with _opened(path) as stream:
        yield Row({"text": _decode(stream.read())}, str(path))


def _read_stream(stream: BinaryIO, name: str) -> Iterator[Row]:
    head = []
    for line in stream:
        head.append(line)
        if line.removeprefix(_BYTE_ORDER_MARK).strip():
            break
    if not head:
        return
    try:
        is_json = isinstance(json.loads(head[-1].decode("utf-8-sig", "surrogateescape")), dict)
    except (ValueError, RecursionError):
        is_json = False
    if is_json:
        yield from _read_json_lines(chain(head, stream), name)
        return
    data = b"".join(head) + stream.read()
    if b"\0" in data[:_SNIFFED_BYTES]:
        raise _not_text(name)
    yield Row({"text": _decode(data)}, name)


@contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    if path.suffix.lower() in _BINARY_SUFFIXES:
        raise _not_text(path)
    with path.open("rb") as stream:
        if b"\0" in stream.peek(_SNIFFED_BYTES)[:_SNIFFED_BYTES]:
            raise _not_text(path)
        yield stream


def _decode(data: bytes) -> str:
    return data.removeprefix(_BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")


def _not_text(name: str | Path) -> InputError:
    return InputError(f"{name}: not a text file in UTF-8, nor another known format; known are {_FORMATS}")


def _raise(error: OSError) -> None:
    raise error

"""Rows of tables: CSV, JSON lines and arrays, SQuAD, Parquet, CoNLL columns."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from torch_linformer.data.reading.conll import conll_rows
from torch_linformer.data.reading.parquet import parquet_rows
from torch_linformer.data.reading.squad import find_squad, squad_rows
from torch_linformer.data.reading.text_files import CONLL_SUFFIXES, BadRow, Row, decode, opened
from torch_linformer.errors import InputError

_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise


def _read_csv(path: Path, delimiter: str) -> Iterator[Row | BadRow]:
    csv.field_size_limit(_LONGEST_CELL)
    with opened(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="surrogateescape", newline="")
        table = csv.reader(text, delimiter=delimiter, strict=True)
        try:
            lines = filter(None, table)  # a blank line is an empty list
            header = next(lines, [])
            twice = sorted({column for column in header if header.count(column) > 1})
            if twice:
                raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")
            for number, cells in enumerate(lines, start=1):
                where = f"{path}, row {number}"
                if len(cells) == len(header):
                    yield Row(dict(zip(header, cells, strict=True)), where)
                    continue
                problem = InputError(
                    f"{where} (line {table.line_num}): expected {len(header)} cells as in"
                    f" the header, found {len(cells)}; put quotes around cells that hold the delimiter"
                )
                yield BadRow(where, problem)
        except csv.Error as error:
            raise InputError(f"{path}, line {table.line_num}: {error}; check the quotes there") from None


def _read_json(path: Path) -> Iterator[Row | BadRow]:
    with opened(path) as stream:
        start = stream.tell()
        first = next((line.strip() for line in stream if line.strip()), b"")
        stream.seek(start)
        if first.startswith(b"["):
            items = _parse_json(stream.read(), str(path), "write one array of JSON objects")
            for number, values in enumerate(items if isinstance(items, list) else [items], start=1):
                yield _object(values, f"{path}, item {number}")
            return
        # SQuAD is one object, on one line or over many; only a line that may begin it is worth reading it all.
        if first.startswith(b"{") and (b'"paragraphs"' in first or not first.endswith(b"}")):
            content = find_squad(stream.read(), str(path))
            if content is not None:
                yield from squad_rows(content, str(path))
                return
            stream.seek(start)
        yield from read_json_lines(stream, str(path))


def read_json_lines(lines: Iterable[bytes], name: str) -> Iterator[Row | BadRow]:
    """Rows of JSON lines; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                yield _object(_parse_json(line, where, "write one JSON object on each line"), where)
            except InputError as problem:
                yield BadRow(where, problem)


def _object(values: object, where: str) -> Row:
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(values).__name__}")
    return Row(values, where)


def _parse_json(data: bytes, where: str, remedy: str) -> object:
    try:
        return json.loads(decode(data))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error}); {remedy}") from None


# What reads the rows of files with a suffix, in lower case.
TABLE_READERS: dict[str, Callable[[Path], Iterator[Row | BadRow]]] = {
    ".csv": partial(_read_csv, delimiter=","),
    ".tsv": partial(_read_csv, delimiter="\t"),
    ".parquet": parquet_rows,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
    **dict.fromkeys(CONLL_SUFFIXES, conll_rows),
}

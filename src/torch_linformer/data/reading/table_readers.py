"""Rows of tables: CSV, JSON lines and arrays, SQuAD, Parquet, CoNLL columns."""

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import starmap
from pathlib import Path
from typing import BinaryIO

from torch_linformer.data.reading.conll import conll_rows
from torch_linformer.data.reading.parquet import parquet_rows
from torch_linformer.data.reading.squad import find_squad, squad_rows
from torch_linformer.data.reading.text_files import BYTE_ORDER_MARK, CONLL_SUFFIXES, Row, opened
from torch_linformer.errors import InputError

_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise


def table_reader(suffix: str) -> Callable[[Path], Iterator[Row]] | None:
    """What reads the rows of files with a suffix, in lower case; None for files that are no tables."""
    match suffix:
        case ".csv":
            return lambda path: _read_csv(path, ",")
        case ".tsv":
            return lambda path: _read_csv(path, "\t")
        case ".jsonl" | ".ndjson" | ".json":
            return _read_json
        case ".parquet":
            return parquet_rows
        case _ if suffix in CONLL_SUFFIXES:
            return _read_conll
        case _:
            return None


def _read_csv(path: Path, delimiter: str) -> Iterator[Row]:
    csv.field_size_limit(_LONGEST_CELL)
    with opened(path) as stream:
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
    with opened(path) as stream:
        lines = iter(stream)
        first = next((line for line in lines if line.removeprefix(BYTE_ORDER_MARK).strip()), b"")
        first = first.removeprefix(BYTE_ORDER_MARK).strip()
        stream.seek(0)
        if first.startswith(b"["):
            yield from _read_json_array(stream, str(path))
            return
        # SQuAD is one object, on one line or over many; only a line that may begin it is worth reading it all.
        if first.startswith(b"{") and (b'"paragraphs"' in first or not first.endswith(b"}")):
            content = find_squad(stream.read().removeprefix(BYTE_ORDER_MARK), str(path))
            if content is not None:
                yield from starmap(Row, squad_rows(content, str(path)))
                return
            stream.seek(0)
        yield from read_json_lines(stream, str(path))


def read_json_lines(lines: Iterable[bytes], name: str) -> Iterator[Row]:
    """Rows of JSON lines; blank ones are none."""
    for number, line in enumerate(lines, start=1):
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        values = _parse_json(line, where, "write one JSON object on each line")
        if not isinstance(values, dict):
            raise InputError(f"{where}: expected a JSON object, found {type(values).__name__}")
        yield Row(values, where)


def _read_json_array(stream: BinaryIO, name: str) -> Iterator[Row]:
    items = _parse_json(stream.read().removeprefix(BYTE_ORDER_MARK), name, "write one array of JSON objects")
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


def _read_conll(path: Path) -> Iterator[Row]:
    with opened(path) as stream:
        yield from starmap(Row, conll_rows(stream, str(path)))

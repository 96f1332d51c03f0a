"""Rows of tables of text: CSV, TSV, and others divided by a character."""

from collections.abc import Iterator
from pathlib import Path

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.dialects import divide, find_dialect
from torch_linformer.data.reading.encodings import check_decoded, open_text
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row
from torch_linformer.errors import InputError


def delimited_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """The rows of a table, counted from 1 without the header and blank lines; how they are divided: `dialects`."""
    dialect = find_dialect(path, options)
    for note in dialect.notes:
        report.note(note)
    kept = [(number, name) for number, name in enumerate(dialect.names) if name is not None]
    with open_text(path, options, report) as stream:
        records = divide(stream, dialect.delimiter, dialect.quoting)
        if dialect.header:
            next(records, None)
        for number, (line, cells) in enumerate(records, start=1):
            where = f"{path}, row {number}"
            try:
                if not isinstance(cells, list):
                    raise InputError(f"{where} (line {line}): {cells}; check the quotes there, or try --quoting none")
                if len(cells) != len(dialect.names):
                    raise InputError(
                        f"{where} (line {line}): expected {len(dialect.names)} cells"
                        f"{' as in the header' if dialect.header else ''}, found {len(cells)}; put quotes around cells "
                        "that hold the delimiter"
                    )
                for cell in cells:
                    check_decoded(cell, where, options.encoding)
            except InputError as problem:
                yield BadRow(where, problem)
                continue
            yield Row({name: cells[column] for column, name in kept}, where)

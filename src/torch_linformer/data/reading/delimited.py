"""Rows of tables of text: CSV, TSV, and others divided by a character; rows of one word made sentences."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch_linformer.data.reading.columns import ChosenColumns, listed
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.dialects import Dialect, Record, divide, find_dialect, open_table
from torch_linformer.data.reading.encodings import check_decoded
from torch_linformer.data.reading.rows import BadRow, CellRow, ReadReport, Row, is_missing
from torch_linformer.errors import InputError

_SENTENCE = re.compile(r"sent(ence)?[ _-]*(#|id|idx|no|nr|num(ber)?)?", re.IGNORECASE)


def sentence_column(rows: Sequence[Row], columns: ChosenColumns, source: str) -> str | None:
    """The column that tells the sentence of each row, where the rows of a table are words; None where they are not.

    Raises:
        InputError: there is no such column.
    """
    words = [row.values.get(columns.text) for row in rows]
    if len(rows) < 2 or not all(isinstance(word, str) and len(word.split()) < 2 for word in words):
        return None
    names = list(rows[0].values)
    fitting = [name for name in names if _SENTENCE.fullmatch(name.strip()) and name not in columns[:2]]
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        f"{source}: one word a row; call the column that numbers the sentences 'sentence', or write one sentence a row "
        f"or CoNLL; columns: {listed(names)}"
    )


def joined_sentences(rows: Iterable[Row], columns: ChosenColumns, sentence: str) -> Iterator[Row]:
    """A row for each sentence, with the lists of its words and tags; an empty cell goes on with the sentence.

    Other columns have the values of its first word.
    """
    used = [column for column in (columns.text, columns.label) if column is not None]
    number: object = None
    lists: dict[str, list[object]] = {}
    first: Row | None = None
    for row in rows:
        value = row.cell(sentence)
        if first is None or not (is_missing(value) or value == number):
            if first is not None:
                yield first._replace(values={**first.values, **lists})
            number, lists, first = value, {column: [] for column in used}, row
        for column in used:
            lists[column].append(row.cell(column))
    if first is not None:
        yield first._replace(values={**first.values, **lists})


def delimited_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """The rows of a table, counted from 1 without the header and blank lines; how they are divided: `dialects`."""
    dialect = find_dialect(path, options)
    for note in dialect.notes:
        report.note(note)
    kept = [(number, name) for number, name in enumerate(dialect.names) if name is not None]
    with open_table(path, options, report) as lines:
        records = divide(lines, dialect.delimiter, dialect.quoting)
        header = next(records, (0, []))[1] if dialect.header else []
        repeated = 0
        for number, (line, cells) in enumerate(records, start=1):
            where = f"{path}, row {number}"
            names = [cells[0].lstrip("\ufeff"), *cells[1:]] if kept[1:] and isinstance(cells, list) else []
            if names and names == header:
                repeated += 1  # several files were put after each other
                continue
            if names and isinstance(header, list) and sorted(names) == sorted(header):
                raise InputError(f"{where} (line {line}): names the columns in another order; divide the file there")
            try:
                row = _checked(cells, dialect, f"{where} (line {line})", options)
                for cell in row:
                    check_decoded(cell, where, options.encoding)
            except InputError as problem:
                yield BadRow(where, problem)
                continue
            yield CellRow({name: row[column] for column, name in kept}, where)
    if repeated:
        rows = f"{repeated:,} row{'' if repeated == 1 else 's'}"
        report.note(f"{path}: left out {rows} with the names of the columns again")


def _checked(cells: Record, dialect: Dialect, where: str, options: DataOptions) -> list[str]:
    """The cells of a row, if there are as many as columns."""
    if not isinstance(cells, list):
        other = ", or leave out --quoting quotes" if options.quoting == "quotes" else ""
        raise InputError(f"{where}: {cells}; check the quotes there (one within a quoted cell is doubled){other}")
    if len(cells) == len(dialect.names):
        return cells
    expected = f"{len(dialect.names)} cells{' as in the header' if dialect.header else ''}"
    many = len(cells) > len(dialect.names)
    remedy = "put quotes around cells that hold the delimiter" if many else "write empty cells too"
    raise InputError(f"{where}: expected {expected}, found {len(cells)}; {remedy}")

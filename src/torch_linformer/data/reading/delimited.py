"""Rows of tables of text: CSV, TSV, and others divided by a character.

A way to divide a table is right if all rows of the whole file have as many cells. Sniffers that look at the beginning
of a file, or for what is usual, take a quote in the middle of it for the beginning of a long cell (docs/log.md,
2026-11-27). A sample that ends within a long cell has more lines of that cell than whole rows.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.data.reading.data_options import DELIMITERS, DataOptions
from torch_linformer.data.reading.formats import File, file_suffix
from torch_linformer.data.reading.rows import (
    LABEL_COLUMNS,
    SAMPLE_ROWS,
    TEXT_COLUMNS,
    Row,
    check_once,
    counts_rows,
    is_number,
    known,
)
from torch_linformer.errors import InputError

ONE_CELL = DELIMITERS["none"]
QUOTINGS: dict[str, dict[str, Any]] = {
    "quotes": {},  # at the beginning of a cell hold it together, and are doubled within
    "escaped": {"escapechar": "\\", "doublequote": False},
    "spaced": {"skipinitialspace": True},  # cells may begin with a space that is no part of them
    "text": {"quoting": csv.QUOTE_NONE},
}
_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise
_CHECKED_ROWS = 1000  # after each of which a way that loses too much is given up
_MOST_LOST = 0.5  # of the lines, if the delimiter is to be one
_SOME, _MOST, _NEARLY_ALL = 0.1, 0.5, 0.9  # shares of what quotes stand around, or hold together
_HELD_ROWS = 3  # rows of several lines that are not held together by chance
_SWALLOWED_LINES = 3  # lines within a row that would each be one
_OFTEN = 0.3  # share of rows from which on spaces before quotes are meant
_SEPARATOR_LINE = re.compile(r'"?sep=(?P<delimiter>.)"?\s*', re.IGNORECASE)  # the first line, for Excel
_DETACHED = re.compile(r' +".*" *\Z', re.DOTALL)  # a cell with quotes that do not hold it together
_DIVIDING = re.compile("[" + "".join(map(re.escape, DELIMITERS.values())) + "]")  # where a title hides the delimiter
_LONGEST_NAME, _NAME_WORDS = 64, 5  # characters and words of a column's name
_NO_VALUE = ("", "na", "n/a", "#n/a", "null", "none", "nil", "?", "-", ".")  # what stands for a number that is missing


def table_rows(file: File) -> Iterator[Row]:
    """The rows of a table, counted from 1 without the header and blank lines."""
    dialect = _find_dialect(file)
    for note in dialect.notes:
        file.note(note)
    kept = [(number, name) for number, name in enumerate(dialect.names) if name is not None]
    records, width = _divide(file, dialect.delimiter, dialect.quoting), len(dialect.names)
    first = next(records, (0, []))[1] if dialect.header else []
    header = {*first} if isinstance(first, list) and len(kept) > 1 else set[str]()
    for number, (line, cells) in enumerate(records, start=1):
        if isinstance(cells, csv.Error):
            other = (
                ", or leave out --quoting quotes" if file.options.quoting == "quotes" else ", or name --quoting none"
            )
            problem = f"{cells}; check the quotes there (one within a quoted cell is doubled){other}"
        elif header and cells[-1] in header and {cells[0].lstrip("\ufeff"), *cells[1:]} == header:
            problem = "names the columns again; remove the line, or divide the file there"
        elif len(cells) != width:
            expected = f"{width} cells{' as in the header' if dialect.header else ''}"
            many = len(cells) > width
            remedy = "put quotes around cells that hold the delimiter" if many else "write empty cells too"
            problem = f"expected {expected}, found {len(cells)}; {remedy}"
        else:
            values = {name: cells[at] for at, name in kept}
            yield Row(f"{file.path}, row {number}", values, "cells", encoding=file.encoding)
            continue
        where = f"{file.path}, row {number}"
        yield Row(where, InputError(f"{where} (line {line}): {problem}"))


def is_divided_by_tabs(lines: Sequence[str]) -> bool:
    """Whether the lines of a text of unknown kind are a table: they have as many tabs, one at least."""
    return len(lines) >= 5 and "\t" in lines[0] and len({line.count("\t") for line in lines}) == 1


def _divide(file: File, delimiter: str, quoting: str) -> Iterator[tuple[int, list[str] | csv.Error]]:
    """The cells of each row that is not blank, or what is wrong with them, and the number of its last line."""
    csv.field_size_limit(_LONGEST_CELL)
    with file.open() as stream:
        first = stream.readline()  # the one for Excel is as blank, so that the others keep their numbers
        lines = chain(["\n" if _SEPARATOR_LINE.fullmatch(first) else first], stream)
        table = csv.reader(lines, delimiter=delimiter, strict=True, **QUOTINGS[quoting])
        while True:
            try:
                for cells in table:
                    if cells:
                        yield table.line_num, cells
                return
            except csv.Error as error:  # costs the lines so far: the next row is read afresh
                yield table.line_num, error


# How cells are divided


class _Tally(NamedTuple):
    """What dividing a whole file in one way gives.

    Attributes:
        rows: how many, and
        width: cells of those that most lines lie in.
        lines: how many, and
        lost: those in rows of another width, in none, or swallowed; rows whose spaces or quotes are out of place.
        swallowed: lines within rows that would each be a row.
        held: rows of several lines.
        meant: share of the lines in them, unless they are few; of quotes as text, of rows with one at an end of a cell.
        apart: whether all rows have a space after each delimiter.
    """

    delimiter: str
    quoting: str
    rows: int
    width: int
    lines: int
    lost: int
    swallowed: int
    held: int
    meant: float
    apart: bool


class Dialect(NamedTuple):
    """How a table is divided, what its columns are called (None: left out), and sentences about that."""

    delimiter: str
    quoting: str
    header: bool
    names: tuple[str | None, ...]
    notes: tuple[str, ...]


def _find_dialect(file: File) -> Dialect:
    state = file.path.stat()
    return _dialect_of(file.path, file.options, file.encoding, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _dialect_of(path: Path, options: DataOptions, encoding: str | None, size: int, modified: int) -> Dialect:
    file, notes = File(path, options, print, encoding), list[str]()
    usual = "," if file_suffix(path) == ".csv" else "\t"
    best = _best_tally(file, usual)
    records = (cells for _, cells in _divide(file, best.delimiter, best.quoting) if isinstance(cells, list))
    first, *others = [*islice(records, SAMPLE_ROWS + 1)] or [[]]
    quotes = any('"' in cell for row in (first, *others) for cell in row)
    others = [row for row in others if len(row) == best.width]
    header = _is_header(path, first, others) if options.header is None else options.header
    names: list[str | None] = [str(number) for number in range(1, best.width + 1)]
    if header:
        names = _column_names(path, first, others)
        words = [word for word, mark in DELIMITERS.items() if len(names) == 1 and mark in (names[0] or "")]
        if words and options.separator != ONE_CELL:
            raise InputError(
                f"{path}: comes out as one column, named {names[0]!r:.60}: --delimiter {' or '.join(words)} divides it "
                "and names the rows that do not fit, --delimiter none takes it for one column"
            )
        for number, name in enumerate(names):
            if name is None and any(row[number] for row in others):
                notes.append(f"column {number + 1} has no name and counts the rows: left out")
    else:
        why = "as asked" if options.header is False else "its first row looks like the others"
        notes.append(f"no header ({why}); columns are called 1 to {best.width}; --header takes it for one")
    if best.delimiter == ONE_CELL and options.delimiter is None:
        notes.append("no delimiter found: one column")
    elif best.delimiter != usual and options.delimiter is None:
        word = {mark: name for name, mark in DELIMITERS.items()}.get(best.delimiter, repr(best.delimiter))
        notes.append(f"cells are divided by a {word} ({best.delimiter!r}); --delimiter names another")
    if best.quoting == "spaced":
        notes.append("spaces between a delimiter and a cell are left out")
    if options.quoting == "auto" and best.quoting == "text" and quotes:
        notes.append('quotes (") were read as plain text; if that is wrong, add --quoting quotes')
    return Dialect(best.delimiter, best.quoting, header, tuple(names), tuple(f"{path}: {note}" for note in notes))


def _best_tally(file: File, usual: str) -> _Tally:
    """The way to divide a file that loses least of it.

    Raises:
        InputError: two delimiters fit equally.
    """
    marks, quotes, separator = set[str](), 0, file.options.separator
    with file.open() as stream:
        first = stream.readline()
        told = _SEPARATOR_LINE.fullmatch(first)
        separator = separator or (told and told["delimiter"])
        for line in stream if told else chain([first], stream):  # of the first row, which quotes may hold together
            quotes += line.count('"')
            marks |= {mark for mark in DELIMITERS.values() if mark in line}
            if line.strip() and not quotes % 2:
                break
    delimiters = [mark for mark in dict.fromkeys((usual, *DELIMITERS.values())) if mark in marks]
    strings = _strings_in(file, {'"', '\\"', *(f'{mark} "' for mark in (separator, *delimiters))})
    tallies: list[_Tally] = []
    for mark in () if separator else delimiters:
        tally = _best_quoting(file, mark, strings, min((each.lost for each in tallies), default=math.inf))
        if tally is not None and tally.width > 1 and tally.lost <= _MOST_LOST * tally.lines:
            tallies.append(tally)
            if mark == usual and not tally.lost and (tally.quoting != "text" or '"' not in strings):
                break
    if not tallies:
        tally = _best_quoting(file, separator or ONE_CELL, strings, math.inf)
        assert tally is not None
        return tally
    best = min(tallies, key=_loss)
    equal = [each.delimiter for each in tallies if _loss(each) == _loss(best)]
    if len(equal) > 1 and equal[0] != usual:
        several = " and by ".join(map(repr, equal))
        raise InputError(f"{file.path}: all rows are whole divided by {several}: name the right one with --delimiter")
    return best


def _loss(tally: _Tally) -> tuple[int, bool]:
    """The less, the better; of those that lose as little, quotes are heeded where they hold much together."""
    return tally.lost, tally.meant <= _MOST


def _strings_in(file: File, marks: set[str]) -> set[str]:
    """Those of some strings of at most three characters that a file holds."""
    found, end = set[str](), ""
    with file.open() as stream:
        for chunk in iter(partial(stream.read, 2**20), ""):
            found |= {mark for mark in marks - found if mark in end + chunk[:2] or mark in chunk}
            end = chunk[-2:]
    return found


def _best_quoting(file: File, delimiter: str, strings: Collection[str], limit: float) -> _Tally | None:
    """Quotes that hold cells together; or as text, where that loses less or makes more rows, and few cells have some.

    Returns:
        None if either way loses more lines than the limit.

    Raises:
        InputError: both are as good, and some cells have quotes.
    """
    if file.options.quoting == "none":
        return _tally(file, delimiter, "text", limit)
    quoted = _tally(file, delimiter, "quotes", limit)
    ways = []
    if quoted is None or quoted.lost:
        ways += ["escaped"] if '\\"' in strings else []
        ways += ["spaced"] if f'{delimiter} "' in strings or (quoted is not None and quoted.apart) else []
    tallies = [quoted, *(_tally(file, delimiter, way, limit) for way in ways)]
    best = min(filter(None, tallies), key=lambda tally: tally.lost, default=None)
    if file.options.quoting == "quotes" or '"' not in strings or (best and not best.lost and not best.held):
        return best
    if best is None or best.lost > _MOST_LOST * best.lines:
        return _tally(file, delimiter, "text", limit) or best
    text = _tally(file, delimiter, "text", min(limit, best.lost))
    if text is None or (text.width < 2 and text.lost):
        return best
    if text.lost == best.lost and (text.width < 2 or text.rows <= best.rows):
        return best
    meant = max(best.meant, text.meant)
    if text.lost < best.lost - best.swallowed and (meant <= _MOST or not best.swallowed):
        return text if meant <= _MOST else best._replace(meant=meant)  # of which some rows are bad
    if _SOME <= meant <= _NEARLY_ALL:
        raise InputError(
            f"{file.path}: all rows are as whole either way: {best.rows:,} rows where quotes hold cells together, "
            f"{text.rows:,} where they are text: name the right way with --quoting"
        )
    return best._replace(meant=meant) if meant > _NEARLY_ALL else text


def _tally(file: File, delimiter: str, quoting: str, limit: float) -> _Tally | None:
    """What one way gives; None if more lines are lost than the limit."""
    lines = Counter[int]()  # by the cells of their rows
    first = first_lines = rows = last = held = held_lines = swallowed = quoted = detached = 0
    apart, as_text = delimiter != "\t", quoting == "text"
    for number, cells in _divide(file, delimiter, quoting):
        length, last = number - last, number
        rows += 1
        if isinstance(cells, list):
            lines[len(cells)] += length
            if not first:
                first, first_lines = len(cells), length
            if as_text:
                quoted += any(cell[:1] == '"' or cell[-1:] == '"' for cell in cells)
            elif length > 1 and any("\n" in cell or "\r" in cell for cell in cells):
                held, held_lines = held + 1, held_lines + length
                swallowed += _rows_within(cells, delimiter) if length > _SWALLOWED_LINES else 0
            detached += any(cell[:1] == " " and _DETACHED.match(cell) is not None for cell in cells)
            apart = apart and len(cells) > 1 and all(cell[:1] == " " for cell in cells[1:])
        if not rows % _CHECKED_ROWS and last - max(lines.values(), default=0) - first_lines > limit:
            return None
    width = max(lines, key=lines.__getitem__, default=0)
    lost = last - lines[width]
    if first == width - 1 and lines[first] == first_lines:  # the header of a table with names of rows
        lost -= first_lines
    meant = quoted / max(1, rows) if as_text else (held >= _HELD_ROWS) * held_lines / max(1, last)
    swallowed *= meant <= _MOST
    lost += swallowed + max(detached * (detached > _OFTEN * rows), rows * apart)
    if lost > limit:
        return None
    return _Tally(delimiter, quoting, rows, width, last, lost, swallowed, held, meant, apart)


def _rows_within(cells: Sequence[str], delimiter: str) -> int:
    """The lines within a row that would each be a row of as many cells, if its first, its last and most would."""
    marks, (first, *inner) = len(cells) - 1, delimiter.join(cells).split("\n")
    if not (marks and inner and first.count(delimiter) == inner.pop().count(delimiter) == marks):
        return 0
    rows = sum(line.count(delimiter) == marks for line in inner)
    return rows if rows >= _SWALLOWED_LINES and rows > 0.9 * len(inner) else 0


# What columns are called


def _column_names(path: Path, first: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str | None]:
    """The names of columns; None for one without a name that is empty, or counts the rows."""
    if rows and len(first) == len(rows[0]) - 1:  # without a name for the last, or for those of rows, as R writes them
        if any(row[-1] for row in rows) and not counts_rows([row[0] for row in rows]):
            raise InputError(
                f"{path}: {len(first)} names of columns above rows of {len(rows[0])} cells: put quotes around cells "
                "that hold the delimiter, name the column that has no name, or name --delimiter, --quoting, --no-header"
            )
        first = ["", *first] if any(row[-1] for row in rows) else [*first, ""]
    names: list[str | None] = []
    for number, cell in enumerate(first):
        values = [row[number] for row in rows if number < len(row)]
        unnamed = None if not any(values) or counts_rows(values) else str(number + 1)
        names.append(cell if cell.strip() else unnamed)
    check_once(path, names)
    return names


def _is_header(path: Path, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns, by what stands in the others.

    Raises:
        InputError: it is empty, or another row seems to name them.
    """
    if not any(cell.strip() for cell in first) and rows:
        raise InputError(f"{path}: the first row has only empty cells; remove what stands above the names of columns")
    if _usual(first) or not rows:
        return True
    for number, row in enumerate(rows, start=2):
        if _usual(row if len(row) > 1 else _DIVIDING.split(row[0])) > 1:
            raise InputError(
                f"{path}: row {number}, {', '.join(row)!r:.60}, has names of columns; remove what stands above it, "
                "or say with --header or --no-header what the first row is"
            )
    if len(first) != len(rows[0]):
        return True
    is_long = names_numbers = False
    for cell, column in zip(first, zip(*rows, strict=True), strict=True):
        filled = [value for value in column if value.strip()]
        numbers = bool(filled) and all(map(is_number, filled))
        if cell.strip() and numbers and is_number(cell):
            return False
        # A value that comes again, in a column of few values, is no name.
        if cell.strip() and filled.count(cell) > 1 and 2 * len(set(filled)) <= len(filled):
            return False
        is_long |= len(cell) > _LONGEST_NAME or len(cell.split()) > _NAME_WORDS
        names_numbers |= numbers and cell.strip().lower() not in _NO_VALUE
    return names_numbers or not is_long


def _usual(cells: Sequence[str]) -> int:
    """How many of what texts and labels are usually called are among the cells of a row."""
    return sum(bool(known(cells, kind)) for kind in (TEXT_COLUMNS, LABEL_COLUMNS))

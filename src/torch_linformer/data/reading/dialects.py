"""How the cells of a table of text are divided: found by dividing the whole file in each way that may be meant.

A way is right if all rows have as many cells as the first. Sniffers that look at the beginning of a file, or for what
is usual, take a quote in the middle of it for the beginning of a long cell (docs/log.md, 2026-11-27).
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.data.reading.cells import counts_rows, is_number
from torch_linformer.data.reading.columns import LABEL_COLUMNS, TEXT_COLUMNS
from torch_linformer.data.reading.data_options import DELIMITERS, DataOptions
from torch_linformer.data.reading.encodings import open_text
from torch_linformer.data.reading.formats import file_suffix
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport
from torch_linformer.errors import InputError

NO_DELIMITER = "\x1f"  # a character that no table holds: each line is one cell
_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise
_SAMPLE_CHARACTERS = 2**20  # on which a delimiter is chosen
_MOST_LOST = 0.5  # of the rows, if the delimiter is to be one
_LONGEST_NAME, _NAME_WORDS = 64, 5  # characters and words of a column's name
_LEAST_LINES = 5  # of a table that only its tabs tell
_OPENED = 0.3  # share of rows with quotes around cells, from which on they hold them together
_SWALLOWED_LINES = 3  # lines inside a quoted cell that would each be a row
_SEPARATOR_LINE = re.compile(r'"?sep=(?P<delimiter>.)"?\s*', re.IGNORECASE)  # the first line, for Excel
_NO_VALUE = ("na", "n/a", "#n/a", "null", "none", "nil", "?", "-", ".")  # what stands for a number that is missing

Record = list[str] | csv.Error


class Quoting(NamedTuple):
    """Whether a quote at the beginning of a cell holds it together, and a backslash goes before a quote within."""

    quoted: bool
    escaped: bool = False


@dataclass(frozen=True)
class Tally:
    """What dividing a file in one way gives.

    Attributes:
        rows: how many, and
        width: cells of most of them.
        lost: lines whose rows have other numbers of cells, or none.
        opened: rows with a cell that begins with a quote.
    """

    delimiter: str
    quoting: Quoting
    rows: int
    width: int
    lost: int
    opened: int


@dataclass(frozen=True)
class Dialect:
    """How a table is divided, what its columns are called (None: left out), and sentences about that."""

    delimiter: str
    quoting: Quoting
    header: bool
    names: tuple[str | None, ...]
    notes: tuple[str, ...]


def find_dialect(path: Path, options: DataOptions) -> Dialect:
    """The dialect of a file.

    Raises:
        InputError: two delimiters fit equally, or two columns have the same name.
    """
    state = path.stat()
    return _find_dialect(path, options, state.st_size, state.st_mtime_ns)


def table_lines(stream: Iterable[str]) -> Iterator[str]:
    """The lines of a table; the one that tells Excel the delimiter is blank, so that the others keep their numbers."""
    lines = iter(stream)
    for first in lines:
        yield "\n" if _SEPARATOR_LINE.fullmatch(first) else first
        break
    yield from lines


def is_divided_by_tabs(text: str) -> bool:
    """Whether the beginning of a text of unknown kind is a table: its lines have as many tabs, one at least."""
    lines = [line for line in text.splitlines() if line.strip()][:-1]  # the last may be cut
    return len(lines) >= _LEAST_LINES and "\t" in lines[0] and len({line.count("\t") for line in lines}) == 1


def divide(lines: Iterable[str], delimiter: str, quoting: Quoting) -> Iterator[tuple[int, Record]]:
    """The cells of each row that is not blank, or what is wrong with them, and the number of its last line."""
    csv.field_size_limit(_LONGEST_CELL)
    options: dict[str, Any] = {"quoting": csv.QUOTE_MINIMAL if quoting.quoted else csv.QUOTE_NONE, "strict": True}
    if quoting.escaped:
        options |= {"escapechar": "\\", "doublequote": False}
    table = csv.reader(lines, delimiter=delimiter, **options)
    while True:
        record: Record
        try:
            record = next(table)
        except StopIteration:
            return
        except csv.Error as error:  # costs the line: the next row is read afresh
            record = error
        if record:
            yield table.line_num, record


@lru_cache(maxsize=4096)
def _find_dialect(path: Path, options: DataOptions, size: int, modified: int) -> Dialect:
    report = ReadReport()
    with open_text(path, options, report) as stream:
        sample = stream.read(_SAMPLE_CHARACTERS)
        whole = not stream.read(1)
    told = _SEPARATOR_LINE.match(sample)
    if told is not None and options.delimiter is None:
        options = replace(options, delimiter=told["delimiter"])
    # Not `splitlines`, which ends a line at U+2028 or a form feed too.
    lines = list(table_lines(io.StringIO(sample, newline="")))
    if not whole and len(lines) > 1:
        lines.pop()
    best = _best(path, options, lines)
    if not whole and options.quoting == "auto" and best.width > 1:  # a quote that misleads may stand anywhere
        tallies = []
        for quoting in {Quoting(False), Quoting(True), best.quoting}:
            with open_text(path, options, report) as stream:
                tallies.append(_tally(table_lines(stream), best.delimiter, quoting))
        best = _best_quoting(tallies)
    rows = [cells for _, cells in divide(lines, best.delimiter, best.quoting) if isinstance(cells, list)]
    return _described(path, options, best, rows[: SAMPLE_ROWS + 1])


def _best(path: Path, options: DataOptions, lines: Sequence[str]) -> Tally:
    """The way to divide the first lines of a file that makes most rows whole."""
    first = next((line for line in lines if line.strip()), "")
    usual = _usual_delimiter(path)
    if options.separator is not None:
        return _divided(lines, options.separator, options)
    tallies = [_divided(lines, mark, options) for mark in dict.fromkeys((usual, *DELIMITERS.values())) if mark in first]
    tallies = [tally for tally in tallies if tally.width > 1]
    fitting = [tally for tally in tallies if not tally.lost]
    if len(fitting) > 1 and fitting[0].delimiter != usual:
        several = " and by ".join(map(repr, (tally.delimiter for tally in fitting)))
        raise InputError(f"{path}: all rows are whole divided by {several}: name the right one with --delimiter")
    divided = min(fitting or tallies, key=lambda tally: tally.lost / tally.rows, default=None)
    if divided is not None and divided.lost <= _MOST_LOST * divided.rows:
        return divided
    return _divided(lines, NO_DELIMITER, options)


def _usual_delimiter(path: Path) -> str:
    """What divides the cells of a table of that suffix, if nothing else is told."""
    return "," if file_suffix(path) == ".csv" else "\t"


def _divided(lines: Sequence[str], delimiter: str, options: DataOptions) -> Tally:
    """The better quoting of lines with a delimiter."""
    quotings = [Quoting(True), Quoting(False)]
    if any('\\"' in line for line in lines):
        quotings.append(Quoting(True, escaped=True))
    if options.quoting != "auto":
        quotings = [quoting for quoting in quotings if quoting.quoted == (options.quoting == "quotes")]
    return _best_quoting([_tally(lines, delimiter, quoting) for quoting in quotings])


def _best_quoting(tallies: Sequence[Tally]) -> Tally:
    """Without quotes where that makes more rows whole, or all of them and there are more; with quotes otherwise."""
    best = min(tallies, key=lambda tally: (tally.lost, not tally.quoting.quoted, tally.quoting.escaped))
    plain = next((tally for tally in tallies if not tally.quoting.quoted), best)
    misled = not plain.lost and plain.width > 1 and plain.rows > best.rows
    # Where many rows have quotes around cells, and all of these end where they should, lines may be whole by chance.
    meant = not best.lost and plain.opened > _OPENED * plain.rows
    return plain if misled and not meant else best


def _tally(lines: Iterable[str], delimiter: str, quoting: Quoting) -> Tally:
    widths, lost, first = Counter[int](), Counter[int](), 0
    broken = swallowed = opened = halves = last = 0
    for number, record in divide(lines, delimiter, quoting):
        if isinstance(record, list):
            first = first or len(record)
            widths[len(record)] += 1
            opened += any(cell.startswith('"') for cell in record)
            halves += any(cell.startswith('"') and cell.count('"') % 2 for cell in record)
            lost[len(record)] += number - last
            if number - last >= _SWALLOWED_LINES:
                swallowed += _rows_within(record, delimiter)
        else:
            broken += number - last
        last = number
    width = widths.most_common(1)[0][0] if widths else 0
    of_others = sum(count for cells, count in lost.items() if cells != width)
    rows = widths.total() + broken
    if first == width - 1 and widths[first] == 1:  # the header of a table with names of rows
        of_others -= lost[first]
    if halves > _OPENED * rows:  # texts hold the delimiter, and are cut there where quotes are not heeded
        of_others += halves
    return Tally(delimiter, quoting, rows, width, of_others + broken + swallowed, opened)


def _rows_within(record: Sequence[str], delimiter: str) -> int:
    """The lines within cells that would each be a row of as many cells, if most of them would."""
    inner = [line for cell in record for line in cell.splitlines()[1:-1]]
    whole = sum(line.count(delimiter) == len(record) - 1 for line in inner) if len(record) > 1 else 0
    return whole if whole >= _SWALLOWED_LINES and whole > 0.9 * len(inner) else 0


def _described(path: Path, options: DataOptions, tally: Tally, rows: Sequence[Sequence[str]]) -> Dialect:
    first, *others = rows or [[]]
    others = [row for row in others if len(row) == tally.width]
    header = _is_header(path, first, others) if options.header is None else options.header
    notes = []
    names: list[str | None] = [str(number) for number in range(1, tally.width + 1)]
    if header:
        names = _named(path, _header_cells(first, others), others)
        for number, name in enumerate(names, start=1):
            if name is None and any(number <= len(row) and row[number - 1] for row in others):
                notes.append(f"{path}: column {number} has no name and counts the rows: left out")
    else:
        why = "as asked" if options.header is False else "its first row looks like the others"
        notes.append(f"{path}: no header ({why}); columns are called 1 to {tally.width}; --header takes it for one")
    usual = _usual_delimiter(path)
    word = {mark: name for name, mark in DELIMITERS.items()}.get(tally.delimiter, repr(tally.delimiter))
    if tally.delimiter == NO_DELIMITER:
        notes.append(f"{path}: no delimiter found: one column")
    elif tally.delimiter != usual and options.delimiter is None:
        notes.append(f"{path}: cells are divided by a {word} ({tally.delimiter!r}); --delimiter names another")
    if options.quoting == "auto" and not tally.quoting.quoted and any('"' in cell for row in rows for cell in row):
        notes.append(f'{path}: quotes (") are read as text, which makes more rows whole; --quoting names what they are')
    return Dialect(tally.delimiter, tally.quoting, header, tuple(names), tuple(notes))


def _header_cells(first: Sequence[str], rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """The cells of a header, with "" for a column that it does not have: names of rows (R) or the last one.

    Names of rows differ, and are short. Other rows with a cell more hold a delimiter in a text, and cannot be read.
    """
    if not rows or len(first) != len(rows[0]) - 1:
        return first
    if not any(row[-1] for row in rows):
        return [*first, ""]
    are_names = len({row[0] for row in rows}) == len(rows) and all(len(row[0].split()) <= _NAME_WORDS for row in rows)
    return ["", *first] if are_names else first


def _named(path: Path, cells: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str | None]:
    """The names of columns; None for one without a name that is empty, or counts the rows."""
    names: list[str | None] = []
    for number, cell in enumerate(cells):
        values = [row[number] for row in rows]
        if cell.strip():
            names.append(cell)
        else:
            names.append(None if not any(values) or counts_rows(values) else str(number + 1))
    twice = [name for name, count in Counter(names).items() if name is not None and count > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")
    return names


def _is_header(path: Path, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns, by what stands in the others.

    Raises:
        InputError: it is empty, or the second row seems to name them.
    """
    if not any(cell.strip() for cell in first) and rows:
        raise InputError(f"{path}: the first row has only empty cells; remove what stands above the names of columns")
    if _usual(first) or not rows:
        return True
    if len(_usual(rows[0])) > 1:
        raise InputError(
            f"{path}: the second row, {', '.join(rows[0])!r:.60}, has names of columns; remove the first, "
            "or say with --header or --no-header what it is"
        )
    if len(first) != len(rows[0]):
        return True
    is_long = names_numbers = False
    for cell, column in zip(first, zip(*rows, strict=True), strict=True):
        filled = [value for value in column if value.strip()]
        if cell.strip() and filled and is_number(cell) and all(map(is_number, filled)):
            return False
        # A value that comes again, in a column of few values, is no name.
        if cell.strip() and filled.count(cell) > 1 and 2 * len(set(filled)) <= len(filled):
            return False
        is_long |= len(cell) > _LONGEST_NAME or len(cell.split()) > _NAME_WORDS
        names_numbers |= bool(filled) and all(map(is_number, filled)) and cell.strip().lower() not in ("", *_NO_VALUE)
    return names_numbers or not is_long


def _usual(cells: Sequence[str]) -> set[str]:
    """What texts and labels are usually called, of the cells of a row."""
    names = {cell.strip().lower() for cell in cells}
    return {kind[0] for kind in (TEXT_COLUMNS, LABEL_COLUMNS) if names & {*kind}}

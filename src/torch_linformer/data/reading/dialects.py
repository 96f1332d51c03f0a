"""How the cells of a table of text are divided: found by dividing the whole file in each way that may be meant.

A way is right if all rows have as many cells. Sniffers that look at the beginning of a file, or for what is usual, take
a quote in the middle of it for the beginning of a long cell (docs/log.md, 2026-11-27). A sample that ends within a long
cell has more lines of that cell than whole rows.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.data.reading.data_options import DELIMITERS, DataOptions
from torch_linformer.data.reading.encodings import open_text
from torch_linformer.data.reading.formats import file_suffix
from torch_linformer.data.reading.headers import column_names, header_cells, is_header
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport
from torch_linformer.errors import InputError

ONE_CELL = DELIMITERS["none"]
_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise
_CHECKED_ROWS = 1000  # after each of which a way that loses too much is given up
_MOST_LOST = 0.5  # of the lines, if the delimiter is to be one
_LEAST_LINES = 5  # of a table that only its tabs tell
_OPENED = 0.3  # share of rows with quotes around cells, from which on they hold them together
_HELD_ROWS, _HELD_LINES = 3, 0.5  # rows of several lines, and their share of all lines, that are not held by chance
_DETACHED = re.compile(r' +".*" *\Z', re.DOTALL)  # a cell with quotes that do not hold it together
_SWALLOWED_LINES = 3  # lines inside a quoted cell that would each be a row
_SEPARATOR_LINE = re.compile(r'"?sep=(?P<delimiter>.)"?\s*', re.IGNORECASE)  # the first line, for Excel

Record = list[str] | csv.Error


class Quoting(NamedTuple):
    """How quotes are read.

    Attributes:
        quoted: a quote at the beginning of a cell holds it together.
        escaped: a backslash goes before a quote within.
        spaced: spaces between a delimiter and a cell are no part of it, and a quote may stand after them.
    """

    quoted: bool
    escaped: bool = False
    spaced: bool = False


class Tally(NamedTuple):
    """What dividing a file in one way gives.

    Attributes:
        rows: how many, and
        width: cells of those that most lines lie in.
        lines: how many, and
        lost: those in rows of another width, or in none.
        meant: whether quotes stand around cells of many rows, or hold most lines together.
        apart: rows with spaces between a delimiter and a cell, where these are meant for all.
    """

    delimiter: str
    quoting: Quoting
    rows: int
    width: int
    lines: int
    lost: int
    meant: bool
    apart: int


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


@contextmanager
def open_table(path: Path, options: DataOptions, report: ReadReport | None = None) -> Iterator[Iterator[str]]:
    """The lines of a table; the one that tells Excel the delimiter is blank, so that the others keep their numbers."""
    with open_text(path, options, report or ReadReport()) as stream:
        first = stream.readline()
        yield chain(["\n" if _SEPARATOR_LINE.fullmatch(first) else first], stream)


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
    table = csv.reader(lines, delimiter=delimiter, skipinitialspace=quoting.spaced, **options)
    while True:
        try:
            for record in table:
                if record:
                    yield table.line_num, record
            return
        except csv.Error as error:  # costs the lines so far: the next row is read afresh
            yield table.line_num, error


@lru_cache(maxsize=4096)
def _find_dialect(path: Path, options: DataOptions, size: int, modified: int) -> Dialect:
    with open_text(path, options, ReadReport()) as stream:
        told = _SEPARATOR_LINE.fullmatch(stream.readline())
    if told is not None and options.delimiter is None:
        options = replace(options, delimiter=told["delimiter"])
    best = _best(path, options)
    with open_table(path, options) as lines:
        rows = (cells for _, cells in divide(lines, best.delimiter, best.quoting) if isinstance(cells, list))
        return _described(path, options, best, list(islice(rows, SAMPLE_ROWS + 1)))


def _best(path: Path, options: DataOptions) -> Tally:
    """The way to divide a file that makes most of it whole rows."""
    usual, marks, quotes = _usual_delimiter(path), set[str](), 0
    with open_table(path, options) as lines:
        for line in lines:  # of the first row, which quotes may hold together
            quotes += line.count('"')
            marks |= {mark for mark in DELIMITERS.values() if mark in line}
            if line.strip() and not quotes % 2:
                break
    tallies: list[Tally] = []
    for mark in dict.fromkeys((usual, *DELIMITERS.values())):
        if mark in marks and options.delimiter is None:
            limit = min((tally.lost for tally in tallies), default=math.inf)
            tally = _best_quoting(path, options, mark, limit)
            if tally is not None and tally.width > 1 and tally.lost <= _MOST_LOST * tally.lines:
                tallies.append(tally)
    fitting = [tally for tally in tallies if not tally.lost]
    if len(fitting) > 1 and fitting[0].delimiter != usual:
        several = " and by ".join(map(repr, (tally.delimiter for tally in fitting)))
        raise InputError(f"{path}: all rows are whole divided by {several}: name the right one with --delimiter")
    if tallies:
        return min(tallies, key=lambda tally: (tally.lost, not tally.meant))
    tally = _best_quoting(path, replace(options, delimiter=options.delimiter or "none"), options.separator or ONE_CELL)
    assert tally is not None
    return tally


def _usual_delimiter(path: Path) -> str:
    """What divides the cells of a table of that suffix, if nothing else is told."""
    return "," if file_suffix(path) == ".csv" else "\t"


def _best_quoting(path: Path, options: DataOptions, delimiter: str, limit: float = math.inf) -> Tally | None:
    """Quotes that hold cells together; as text where that makes more rows whole, or all of them and there are more.

    Returns:
        None if either way loses more lines than the limit, or most of them.

    Raises:
        InputError: fewer lines are lost with quotes as text, but quotes hold most of them together.
    """

    def holds(mark: str) -> bool:
        with open_table(path, options) as lines:
            return any(mark in line for line in lines)

    if options.quoting == "none":
        return _tally(path, options, delimiter, Quoting(False), limit)
    has_quotes = holds('"')
    quoted = _tally(path, options, delimiter, Quoting(True), limit)
    tallies = [quoted]
    if quoted is None or quoted.lost or quoted.apart:
        if has_quotes and holds('\\"'):
            tallies.append(_tally(path, options, delimiter, Quoting(True, escaped=True), limit))
        if (quoted is not None and quoted.apart) or (has_quotes and holds(f'{delimiter} "')):
            tallies.append(_tally(path, options, delimiter, Quoting(True, spaced=True), limit))
    best = min(filter(None, tallies), key=_loss, default=None)
    if options.quoting == "quotes" or not has_quotes:
        return best
    if best is not None and (best.width > 1 or not best.lost):
        limit = min(limit, best.lost + best.apart)
    plain = _tally(path, options, delimiter, Quoting(False), limit)
    if plain is None or best is None:
        return best or plain
    if _loss(plain) < _loss(best):
        if plain.lost and best.meant:
            ways = (f"{tally.rows:,} rows ({tally.lost:,} lines in none of them)" for tally in (best, plain))
            raise InputError(
                f"{path}: {next(ways)} where quotes hold cells together, {next(ways)} where they are text: name the "
                "right way with --quoting"
            )
        return plain
    # Where many rows have quotes around cells, and all of these end where they should, lines may be whole by chance.
    misled = not (plain.lost or plain.apart) and plain.width > 1 and plain.rows > best.rows
    return plain if misled and not (plain.meant or best.meant) else best


def _loss(tally: Tally) -> tuple[bool, int, bool, tuple[bool, ...]]:
    """Less is better; what is not divided is no way to divide it, unless nothing is lost."""
    undivided = tally.width < 2 and tally.lost > 0
    return undivided, tally.lost + tally.apart, not tally.quoting.quoted, tally.quoting[1:]


def _tally(path: Path, options: DataOptions, delimiter: str, quoting: Quoting, limit: float) -> Tally | None:
    """What one way gives; None if more lines are lost than the limit or, where no delimiter is named, most of them."""
    lines = Counter[int]()  # by the cells of their rows
    first = first_lines = rows = last = 0
    held = held_lines = swallowed = opened = halves = detached = apart = 0
    with open_table(path, options) as stream:
        for number, record in divide(stream, delimiter, quoting):
            length, last = number - last, number
            rows += 1
            if isinstance(record, list):
                lines[len(record)] += length
                if not first:
                    first, first_lines = len(record), length
                if not quoting.quoted:
                    opened += any(cell[:1] == '"' for cell in record)
                    halves += any(cell[:1] == '"' and cell.count('"') % 2 for cell in record)
                elif length > 1 and any("\n" in cell or "\r" in cell for cell in record):
                    held, held_lines = held + 1, held_lines + length
                    swallowed += _rows_within(record, delimiter)
                detached += any(cell[:1] == " " and _DETACHED.match(cell) is not None for cell in record)
                apart += len(record) > 1 and all(cell[:1] == " " for cell in record[1:])
            if not rows % _CHECKED_ROWS:
                lost = last - max(lines.values(), default=0) - first_lines
                if lost > limit or (options.delimiter is None and lost > _MOST_LOST * last):
                    return None
    width = max(lines, key=lines.__getitem__, default=0)
    lost = last - lines[width]
    if first == width - 1 and lines[first] == first_lines:  # the header of a table with names of rows
        lost -= first_lines
    meant = opened > _OPENED * rows or (held >= _HELD_ROWS and held_lines > _HELD_LINES * last)
    if quoting.quoted and not meant:
        lost += swallowed
    if halves > _OPENED * rows:  # texts hold the delimiter, and are cut there where quotes are not heeded
        lost += halves
    are_meant = detached > _OPENED * rows or (apart == rows and delimiter != "\t")
    return Tally(delimiter, quoting, rows, width, last, lost, meant, max(detached, apart) if are_meant else 0)


def _rows_within(record: Sequence[str], delimiter: str) -> int:
    """The lines within a row that would each be a row of as many cells, if its first, its last and most would."""
    marks, (first, *inner) = len(record) - 1, delimiter.join(record).split("\n")
    if not (marks and inner and first.count(delimiter) == inner.pop().count(delimiter) == marks):
        return 0
    rows = sum(line.count(delimiter) == marks for line in inner)
    return rows if rows >= _SWALLOWED_LINES and rows > 0.9 * len(inner) else 0


def _described(path: Path, options: DataOptions, tally: Tally, rows: Sequence[Sequence[str]]) -> Dialect:
    first, *others = rows or [[]]
    others = [row for row in others if len(row) == tally.width]
    header = is_header(path, first, others) if options.header is None else options.header
    notes = []
    names: list[str | None] = [str(number) for number in range(1, tally.width + 1)]
    if header:
        names = column_names(path, header_cells(first, others), others)
        words = [word for word, mark in DELIMITERS.items() if len(names) == 1 and mark in (names[0] or "")]
        if words and options.separator != ONE_CELL:
            raise InputError(
                f"{path}: comes out as one column, named {names[0]!r:.60}: --delimiter {' or '.join(words)} divides it "
                "and names the rows that do not fit, --delimiter none takes it for one column"
            )
        for number, name in enumerate(names, start=1):
            if name is None and any(number <= len(row) and row[number - 1] for row in others):
                notes.append(f"{path}: column {number} has no name and counts the rows: left out")
    else:
        why = "as asked" if options.header is False else "its first row looks like the others"
        notes.append(f"{path}: no header ({why}); columns are called 1 to {tally.width}; --header takes it for one")
    usual = _usual_delimiter(path)
    word = {mark: name for name, mark in DELIMITERS.items()}.get(tally.delimiter, repr(tally.delimiter))
    if tally.delimiter == ONE_CELL and options.delimiter is None:
        notes.append(f"{path}: no delimiter found: one column")
    elif tally.delimiter != usual and options.delimiter is None:
        notes.append(f"{path}: cells are divided by a {word} ({tally.delimiter!r}); --delimiter names another")
    if tally.quoting.spaced:
        notes.append(f"{path}: spaces between a delimiter and a cell are left out")
    if options.quoting == "auto" and not tally.quoting.quoted and any('"' in cell for row in rows for cell in row):
        notes.append(f'{path}: quotes (") are read as text, which makes more rows whole; --quoting names what they are')
    return Dialect(tally.delimiter, tally.quoting, header, tuple(names), tuple(notes))

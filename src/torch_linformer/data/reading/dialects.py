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

from torch_linformer.data.reading.data_options import DELIMITERS, DataOptions
from torch_linformer.data.reading.encodings import open_text
from torch_linformer.data.reading.formats import file_suffix
from torch_linformer.data.reading.headers import column_names, header_cells, is_header
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport
from torch_linformer.errors import InputError

NO_DELIMITER = "\x1f"  # a character that no table holds: each line is one cell
_LONGEST_CELL = 2**31 - 1  # the csv module refuses cells over 128 KiB unless told otherwise
_SAMPLE_CHARACTERS = 2**20  # on which a delimiter is chosen
_MOST_LOST = 0.5  # of the rows, if the delimiter is to be one
_LEAST_LINES = 5  # of a table that only its tabs tell
_OPENED = 0.3  # share of rows with quotes around cells, from which on they hold them together
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


@dataclass(frozen=True)
class Tally:
    """What dividing a file in one way gives.

    Attributes:
        rows: how many, and
        width: cells of most of them.
        lost: lines whose rows have other numbers of cells, or none.
        opened: rows with a cell that begins with a quote.
        apart: rows with spaces between a delimiter and a cell, where these are meant for all.
    """

    delimiter: str
    quoting: Quoting
    rows: int
    width: int
    lost: int
    opened: int
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
    table = csv.reader(lines, delimiter=delimiter, skipinitialspace=quoting.spaced, **options)
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
    if f"{delimiter} " in next(filter(str.strip, lines), "") or any(f'{delimiter} "' in line for line in lines):
        quotings.append(Quoting(True, spaced=True))
    if options.quoting != "auto":
        quotings = [quoting for quoting in quotings if quoting.quoted == (options.quoting == "quotes")]
    return _best_quoting([_tally(lines, delimiter, quoting) for quoting in quotings])


def _best_quoting(tallies: Sequence[Tally]) -> Tally:
    """Without quotes where that makes more rows whole, or all of them and there are more; with quotes otherwise."""
    best = min(tallies, key=lambda tally: (tally.lost + tally.apart, not tally.quoting.quoted, tally.quoting[1:]))
    plain = next((tally for tally in tallies if not tally.quoting.quoted), best)
    misled = not (plain.lost or plain.apart) and plain.width > 1 and plain.rows > best.rows
    # Where many rows have quotes around cells, and all of these end where they should, lines may be whole by chance.
    meant = not best.lost and plain.opened > _OPENED * plain.rows
    return plain if misled and not meant else best


def _tally(lines: Iterable[str], delimiter: str, quoting: Quoting) -> Tally:
    widths, lost, first = Counter[int](), Counter[int](), 0
    broken = swallowed = opened = halves = detached = apart = last = 0
    for number, record in divide(lines, delimiter, quoting):
        if isinstance(record, list):
            first = first or len(record)
            widths[len(record)] += 1
            opened += any(cell.startswith('"') for cell in record)
            halves += any(cell.startswith('"') and cell.count('"') % 2 for cell in record)
            detached += any(cell.startswith(" ") and _DETACHED.match(cell) is not None for cell in record)
            apart += len(record) > 1 and all(cell.startswith(" ") for cell in record[1:])
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
    are_meant = detached > _OPENED * rows or (apart == rows and delimiter != "\t")
    apart = max(detached, apart) if are_meant else 0
    return Tally(delimiter, quoting, rows, width, of_others + broken + swallowed, opened, apart)


def _rows_within(record: Sequence[str], delimiter: str) -> int:
    """The lines within cells that would each be a row of as many cells, if most of them would."""
    inner = [line for cell in record for line in cell.splitlines()[1:-1]]
    whole = sum(line.count(delimiter) == len(record) - 1 for line in inner) if len(record) > 1 else 0
    return whole if whole >= _SWALLOWED_LINES and whole > 0.9 * len(inner) else 0


def _described(path: Path, options: DataOptions, tally: Tally, rows: Sequence[Sequence[str]]) -> Dialect:
    first, *others = rows or [[]]
    others = [row for row in others if len(row) == tally.width]
    header = is_header(path, first, others) if options.header is None else options.header
    notes = []
    names: list[str | None] = [str(number) for number in range(1, tally.width + 1)]
    if header:
        names = column_names(path, header_cells(first, others), others)
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
    if tally.quoting.spaced:
        notes.append(f"{path}: spaces between a delimiter and a cell are left out")
    if options.quoting == "auto" and not tally.quoting.quoted and any('"' in cell for row in rows for cell in row):
        notes.append(f'{path}: quotes (") are read as text, which makes more rows whole; --quoting names what they are')
    return Dialect(tally.delimiter, tally.quoting, header, tuple(names), tuple(notes))

"""Rows, whatever file they come from: what their cells hold, and what is noticed while they are read."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from torch_linformer.errors import InputError

_SEEN = re.compile("[^\\s\u200b-\u200f\u2060\ufeff]")  # neither white space nor of no width
SAMPLE_ROWS = 100  # rows looked at to recognize the columns


@dataclass
class ReadReport:
    """What was noticed of the rows read so far.

    Attributes:
        replaced: how many had half a character, a lone surrogate, that JSON can escape.
        empty: how many were skipped without text.
        bad: how many could not be read.
        on_bad: called with where such a row stands and what is wrong; without it the first one is raised.
        notes: how files were read, in sentences, each once.
        on_note: called with each of them.
    """

    replaced: int = 0
    empty: int = 0
    bad: int = 0
    on_bad: Callable[[str, InputError], object] | None = None
    notes: list[str] = field(default_factory=list)
    on_note: Callable[[str], object] = lambda note: None

    def leave_out(self, where: str, problem: InputError) -> None:
        """Go on without a row that cannot be read, or raise ``problem``."""
        if self.on_bad is None:
            raise problem
        self.bad += 1
        self.on_bad(where, problem)

    def note(self, sentence: str) -> None:
        """Keep a sentence about a file, and tell it."""
        if sentence not in self.notes:
            self.notes.append(sentence)
            self.on_note(sentence)


class Row(NamedTuple):
    """The values of one row, and where it stands, in words for a person: "reviews.csv, row 17"."""

    values: dict[str, object]
    where: str

    @property
    def of_table(self) -> bool:
        """Whether the row is of a table, whose columns somebody has named."""
        return True

    def cell(self, column: str | None) -> object:
        """The value in a column; None where there is no such column."""
        return None if column is None else self.values.get(column)


class CellRow(Row):
    """A row with a cell for each column of its file, unlike an object of JSON: what it lacks, the file lacks."""


class TextRow(Row):
    """A text that is of no table, under "text", perhaps with the "label" of its folder."""

    @property
    def of_table(self) -> bool:
        return False


class BadRow(NamedTuple):
    """Where a row stands that cannot be read, and what is wrong with it."""

    where: str
    problem: InputError


def read_text(row: Row, column: str, called: str = "text") -> str:
    """The text of a row; "" where the cell is missing or holds only what is not seen, or MySQL's \\N for nothing."""
    value = row.cell(column)
    if column not in row.values and isinstance(row, CellRow):
        columns = ", ".join(map(repr, row.values))
        raise InputError(f"{row.where}: no column {column!r}; columns: {columns}")
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        raise bad_cell(row, column, value, f", not text; name the {several(called)} with --{called}-column")
    return value if is_seen(value) and value.strip() != r"\N" else ""


def is_seen(text: str) -> bool:
    """Whether a text has a character that is neither white space nor of no width."""
    return _SEEN.search(text) is not None


def read_label(row: Row, column: str | None) -> str:
    """The label of a row as text: strings without outer white space, whole numbers without a fraction."""
    value = row.cell(column)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int):  # a truth value is one too
        return str(value)
    if is_missing(value):
        raise empty_cell(row, "label", column)
    if not isinstance(value, str):
        other = "--task multilabel learns lists" if isinstance(value, list) else "--task regress learns any number"
        raise bad_cell(row, column, value, f", no label; expected text or a whole number ({other})")
    return value.strip()


def without_fraction(value: object) -> str:
    """A value as text; whole numbers without the fraction that pandas gives them in a column with missing values."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def empty_cell(row: Row, what: str, column: str | None) -> InputError:
    """The error for a row that lacks what its task needs, such as a "label", or has one called "nan"."""
    value = row.cell(column)
    if isinstance(value, str) and value.strip():
        return bad_cell(row, column, value, f", which stands for no {what}; write it otherwise, or remove the row")
    return InputError(f"{row.where}: no {what} in column {column!r}; fill it in or remove the row")


def bad_cell(row: Row, column: str | None, value: object, problem: str) -> InputError:
    """The error for a cell that cannot be used."""
    return InputError(f"{row.where}: column {column!r} holds {value!r:.40}{problem}")


def is_missing(value: object) -> bool:
    """Whether a label's cell is empty, or holds what pandas (NaN) and MySQL (\\N) write for a missing value."""
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in ("", "nan", r"\n"))


def check_once(path: Path, names: Sequence[str | None]) -> None:
    """Raise an `InputError` where two columns of a file have the same name."""
    twice = [name for name, count in Counter(names).items() if name is not None and count > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")


def is_number(value: object) -> bool:
    """Whether a cell holds a number, or nothing."""
    try:
        float(str(value) or 0)
    except ValueError:
        return False
    return True


def counts_rows(values: Sequence[object]) -> bool:
    """Whether values are the numbers of rows: each one more than the one before it."""
    try:
        numbers = [int(str(value)) for value in values]
    except ValueError:
        return False
    return len(numbers) > 1 and numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def several(word: str) -> str:
    return "queries" if word == "query" else f"{word}s"

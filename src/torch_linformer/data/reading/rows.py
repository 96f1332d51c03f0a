"""Rows, whatever file they come from, and what is noticed while they are read."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from torch_linformer.errors import InputError

SAMPLE_ROWS = 100  # rows looked at to recognize the columns


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

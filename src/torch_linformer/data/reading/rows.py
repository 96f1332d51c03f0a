"""Rows, whatever file they come from: what their cells hold, and what is noticed while they are read."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.errors import InputError

TEXT_COLUMNS = (
    *("text", "content", "document", "body", "article", "review"),
    *("sentence", "message", "post", "comment", "abstract"),
)
LABEL_COLUMNS = ("label", "labels", "target", "class", "category", "sentiment")
SAMPLE_ROWS = 100  # rows looked at to recognize the columns
_SEEN = re.compile("[^\\s\u200b-\u200f\u2060\ufeff]")  # neither white space nor of no width
_LISTED = 20  # names in a message


class Row(NamedTuple):
    """Where a row stands, in words for a person ("reviews.csv, row 17"), and its values, or why it cannot be read.

    ``kind`` is "cells" where each row has all columns of its file, "object" where a missing value may be left out, and
    "text" where nobody has named the columns: "text", perhaps with the "label" of a folder. ``replaced`` tells whether
    the values had half a character, a lone surrogate, that JSON can escape. ``encoding`` is that of the file, where
    bytes that are not of it are lone surrogates: see `check_decoded`.
    """

    where: str
    values: Any
    kind: str = "object"
    replaced: bool = False
    encoding: str | None = None


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


def located(row: Row, problem: InputError | None = None) -> InputError:
    """The problem of a row, with where it stands if it does not say so itself."""
    told = str(problem or row.values)
    return InputError(told if row.where in told else f"{row.where}: {told}")


def check_decoded(text: str, encoding: str | None = None) -> str:
    """The text, unless it holds a byte that is not of its encoding, which was decoded to a lone surrogate."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError as error:
        around = text[max(0, error.start - 10) : error.start + 10].encode("utf-8", "surrogateescape")
        name = "UTF-8" if encoding in (None, "utf-8", "utf-8-sig") else encoding
        raise InputError(
            f"holds bytes that are not {name} ({str(around)[1:]}); save the file as UTF-8, or name its encoding with "
            "--encoding"
        ) from None
    return text


def cell(row: Row, column: str | None) -> Any:
    """The value in a column; None where there is no such column."""
    value = None if column is None else row.values.get(column)
    return check_decoded(value, row.encoding) if isinstance(value, str) else value


def read_text(row: Row, column: str, called: str = "text") -> str:
    """The text of a row; "" where the cell is missing or holds only what is not seen, or MySQL's \\N for nothing."""
    value = cell(row, column)
    if value is None and column not in row.values and row.kind == "cells":
        raise InputError(f"no column {column!r}; columns: {listed(row.values)}")
    if value is None or value != value:
        return ""
    if not isinstance(value, str):
        raise bad_cell(column, value, f", not text; name the {several(called)} with --{called}-column")
    return value if is_seen(value) and value.strip() != r"\N" else ""


def read_label(row: Row, column: str | None) -> str:
    """The label of a row as text: strings without outer white space, whole numbers without a fraction."""
    value = needed(row, column, "label")
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, str | int):
        other = "--task multilabel learns lists" if isinstance(value, list) else "--task regress learns any number"
        raise bad_cell(column, value, f", no label; expected text or a whole number ({other})")
    return str(value).strip()


def needed(row: Row, column: str | None, what: str) -> Any:
    """The value that a task needs, such as a "label"; a class called "nan" may be one that is missing."""
    value = cell(row, column)
    if not is_missing(value):
        return value
    if isinstance(value, str) and value.strip():
        raise bad_cell(column, value, f", which stands for no {what}; write it otherwise, or remove the row")
    raise no_value(column, what)


def no_value(column: str | None, what: str) -> InputError:
    """The error for a row without what a task needs."""
    return InputError(f"no {what} in column {column!r}; fill it in or remove the row")


def bad_cell(column: str | None, value: object, problem: str) -> InputError:
    """The error for a cell that cannot be used."""
    return InputError(f"column {column!r} holds {value!r:.40}{problem}")


def without_fraction(value: object) -> str:
    """A value as text; whole numbers without the fraction that pandas gives them in a column with missing values."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def is_seen(text: str) -> bool:
    """Whether a text has a character that is neither white space nor of no width."""
    return _SEEN.search(text) is not None


def is_missing(value: object) -> bool:
    """Whether a label's cell is empty, or holds what pandas (NaN) and MySQL (\\N) write for a missing value."""
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in ("", "nan", r"\n"))


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


def check_once(path: Path, names: Iterable[str | None]) -> None:
    """Raise an `InputError` where two columns of a file have the same name."""
    twice = [name for name, count in Counter(names).items() if name is not None and count > 1]
    if twice:
        raise InputError(f"{path}: two columns are named {twice[0]!r}; rename one of them")


def known(names: Iterable[str], usual: Iterable[str]) -> list[str]:
    """Those of some names that are usual, whatever their case."""
    return [name for name in names if name.strip().lower() in usual]


def listed(names: Iterable[str]) -> str:
    """Names for a message, in quotes, no more than a few lines of them."""
    return some_of([f"{name!r:.40}" for name in names])


def some_of(words: Sequence[str]) -> str:
    """Words for a message, one after the other, and how many there are if not all are shown."""
    return ", ".join(words[:_LISTED]) + (f", … ({len(words):,} in all)" if len(words) > _LISTED else "")


def several(word: str) -> str:
    return "queries" if word == "query" else f"{word}s"


def counted(number: int, noun: str = "document") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"

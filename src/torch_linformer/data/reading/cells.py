"""What a cell may hold: a text, a label, a number, nothing."""

from collections.abc import Sequence

from torch_linformer.data.reading.rows import CellRow, Row
from torch_linformer.errors import InputError


def read_text(row: Row, column: str, called: str = "text") -> str:
    """The text of a row; "" where the cell is missing or holds only white space."""
    value = row.cell(column)
    if column not in row.values and isinstance(row, CellRow):
        columns = ", ".join(map(repr, row.values))
        raise InputError(f"{row.where}: no column {column!r}; columns: {columns}")
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_cell(row, column, value, f", not text; name the {several(called)} with --{called}-column")
    return "" if value.isspace() else value


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


def empty_cell(row: Row, what: str, column: str | None) -> InputError:
    """The error for a row that lacks what its task needs, such as a "label"."""
    return InputError(f"{row.where}: no {what} in column {column!r}; fill it in or remove the row")


def bad_cell(row: Row, column: str | None, value: object, problem: str) -> InputError:
    """The error for a cell that cannot be used."""
    return InputError(f"{row.where}: column {column!r} holds {value!r:.40}{problem}")


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


def several(word: str) -> str:
    return "queries" if word == "query" else f"{word}s"

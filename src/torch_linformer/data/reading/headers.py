"""Whether the first row of a table of text names its columns, and how."""

import re
from collections.abc import Sequence
from pathlib import Path

from torch_linformer.data.reading.columns import LABEL_COLUMNS, TEXT_COLUMNS
from torch_linformer.data.reading.data_options import DELIMITERS
from torch_linformer.data.reading.rows import check_once, counts_rows, is_number
from torch_linformer.errors import InputError

_DIVIDING = re.compile("[" + "".join(map(re.escape, DELIMITERS.values())) + "]")  # where a title hides the delimiter
_LONGEST_NAME, _NAME_WORDS = 64, 5  # characters and words of a column's name
_NO_VALUE = ("na", "n/a", "#n/a", "null", "none", "nil", "?", "-", ".")  # what stands for a number that is missing


def header_cells(first: Sequence[str], rows: Sequence[Sequence[str]]) -> Sequence[str]:
    """The cells of a header, with "" for a column that it does not have: names of rows (R) or the last one.

    Names of rows differ, and are short. Other rows with a cell more hold a delimiter in a text, and cannot be read.
    """
    if not rows or len(first) != len(rows[0]) - 1:
        return first
    if not any(row[-1] for row in rows):
        return [*first, ""]
    are_names = len({row[0] for row in rows}) == len(rows) and all(len(row[0].split()) <= _NAME_WORDS for row in rows)
    return ["", *first] if are_names else first


def column_names(path: Path, cells: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str | None]:
    """The names of columns; None for one without a name that is empty, or counts the rows."""
    names: list[str | None] = []
    for number, cell in enumerate(cells):
        values = [row[number] for row in rows if number < len(row)]
        if cell.strip():
            names.append(cell)
        else:
            names.append(None if not any(values) or counts_rows(values) else str(number + 1))
    check_once(path, names)
    return names


def is_header(path: Path, first: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns, by what stands in the others.

    Raises:
        InputError: it is empty, or another row seems to name them.
    """
    if not any(cell.strip() for cell in first) and rows:
        raise InputError(f"{path}: the first row has only empty cells; remove what stands above the names of columns")
    if _usual(first) or not rows:
        return True
    for number, row in enumerate(rows, start=2):
        if len(_usual(row if len(row) > 1 else _DIVIDING.split(row[0]))) > 1:
            raise InputError(
                f"{path}: row {number}, {', '.join(row)!r:.60}, has names of columns; remove what stands above it, "
                "or say with --header or --no-header what the first row is"
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

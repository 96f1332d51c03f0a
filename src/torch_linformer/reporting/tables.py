"""Numbers as people read them, and texts that a terminal can show."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tabs and ends of lines
MISSING = "–"  # no value is not zero
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")
_QUANTITY = r"[-+]?[\d,]*\.?\d+(e[-+]\d+)?( ?[%×]| [A-Za-zµ]{1,3})?"
_NUMBER = re.compile(rf"{_QUANTITY}( {_QUANTITY})?|[\d,.]+×( [a-z]+)+")


def format_count(value: float) -> str:
    """Whole number with thousands separators: 1,399."""
    return f"{value:,.0f}" if math.isfinite(value) else MISSING


def format_score(value: float) -> str:
    """Four decimals, and no sign for what rounds to zero: 0.9234."""
    return f"{value:z.4f}"


def format_scores(scores: Mapping[str, float]) -> dict[str, str]:
    """Scores as they are shown, by their titles."""
    return {score_title(name): format_score(value) for name, value in scores.items()}


def score_title(name: str) -> str:
    """A score's name as it is shown: ``macro-f1``, ``ndcg@10``."""
    return name.replace("_at_", "@").replace("_", "-")


def format_percent(share: float) -> str:
    """Share of one as a percentage with one decimal: 0.9234 is 92.3 %."""
    return f"{100 * share:.1f} %" if math.isfinite(share) else MISSING


def format_ratio(value: float) -> str:
    """Factor with two or three significant digits: 0.48×, 2.7×, 13.4×, 134×."""
    if not math.isfinite(value):
        return MISSING
    decimals = 2 if abs(value) < 0.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:,.{decimals}f}×"


def format_comparison(ratio: float, above: str, below: str) -> str:
    """A ratio in words that leave no doubt which side is better: 1.6× more memory, 1.2× slower; 1.0× if neither is.

    `above` and `below` are what a ratio above or below 1 means, such as "more memory" and "less memory".
    """
    if not (math.isfinite(ratio) and ratio > 0):
        return MISSING
    factor = format_ratio(max(ratio, 1 / ratio))
    return factor if factor == "1.0×" else f"{factor} {above if ratio > 1 else below}"


def format_duration(seconds: float) -> str:
    """Time in the two units that matter: 85 µs, 42 ms, 8.4 s, 3 min 12 s, 2 h 05 min, 1 d 03 h."""
    if not math.isfinite(seconds):
        return MISSING
    if 0 < seconds < 0.0009995:
        return f"{1e6 * seconds:.3g} µs"
    if seconds < 0.9995:
        return f"{1000 * seconds:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days} d {hours:02d} h"


def format_bytes(count: float) -> str:
    """Amount of memory in decimal units: 512 B, 43.1 MB, 1.39 GB (1 MB is 1,000,000 bytes)."""
    if not math.isfinite(count):
        return MISSING
    amount = float(count)
    for unit in _BYTE_UNITS:
        if abs(amount) < 999.5 or unit == _BYTE_UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:,.0f} {unit}" if unit == "B" or amount >= 99.95 else f"{amount:.3g} {unit}"


def format_cell(value: object) -> str:
    """Text of a table's cell: counts for integers, four significant digits for floats, a dash for None."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return format_count(value)
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else MISSING
    return str(value)


class FormattedTable(NamedTuple):
    """A table ready to be written: all cells are text, and columns of numbers are aligned to the right."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[bool]


def format_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> FormattedTable:
    """Cells formatted by `format_cell`; the first column is never one of numbers, it names the row.

    Raises:
        ValueError: a row has not one cell a column.
    """
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"every row needs {len(columns)} cells, one a column, got {len(row)}: {list(row)!r}")
    cells = [[format_cell(value) for value in row] for row in rows]
    known = [[row[column] for row in cells if row[column] != MISSING] for column in range(len(columns))]
    return FormattedTable(columns, cells, [number > 0 and are_numbers(column) for number, column in enumerate(known)])


def are_numbers(cells: Sequence[str]) -> bool:
    """Whether there are cells, and each is a number, with a unit or not."""
    return bool(cells) and all(map(_NUMBER.fullmatch, cells))


def printable(text: str) -> str:
    """Text for a terminal: what would move its cursor or change its title is shown as an escape, such as ``\\x1b``.

    Labels and names of files are the user's data, and may be anybody's.
    """
    return _CONTROLS.sub(lambda control: f"\\x{ord(control[0]):02x}", text)

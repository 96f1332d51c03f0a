"""Documents one by one, with nothing kept: a row in, a document out, whatever the size of the input."""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.columns import NOT_NAMED, NamedColumns, find_columns, read_text
from torch_linformer.data.reading.readers import iter_rows, iter_stream
from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.text_files import Row
from torch_linformer.errors import InputError

SAMPLE_ROWS = 100  # rows looked at to tell which column holds the text
# One word with a suffix or a folder in it is meant as the name of a file.
_LIKE_A_FILE = re.compile(r"(\S*[/\\]\S*|\S+\.\w{1,7})")


class Document(NamedTuple):
    """A text, where it came from, and what is asked of it, if anything is."""

    where: str
    text: str
    question: str | None = None


@dataclass
class Skipped:
    """Documents without text: they get no line."""

    empty: int = 0


def documents(
    rows: Iterable[Row], source: str, record: Record, named: NamedColumns, skipped: Skipped, question: str | None = None
) -> Iterator[Document]:
    """Every row that has text; the columns are recognised as in training. ``question`` is asked of every text.

    Raises:
        InputError: a column is missing or cannot be told, or a row has no question where one is needed.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        return
    usual = record.usual if question is None else record.usual._replace(question=())
    if usual.question and named.question is None and "text" in sample[0].values and len(sample[0].values) == 1:
        raise InputError(f"{source}: a text without a question; ask one of every document with --question")
    columns = find_columns(sample, source, named, usual=usual, needs_label=False)
    for row in chain(sample, rows):
        text = read_text(row, columns.text, usual.called[0])
        asked = question if columns.question is None else read_text(row, columns.question)
        if asked == "":
            raise InputError(f"{row.where}: no question in column {columns.question!r}; fill it in or remove the row")
        if text:
            yield Document(row.where, text, asked)
        else:
            skipped.empty += 1


def one_document(given: str) -> tuple[str, str]:
    """The document that a text, a file or ``-`` for standard input holds, and what to call where it came from.

    Raises:
        InputError: there is no such file, or it holds no document or several.
    """
    if given != "-" and not _exists(given):
        if _LIKE_A_FILE.fullmatch(given):
            raise InputError(f"{given}: no such file; a text of one word like this goes through standard input, as -")
        return given, "the text that was given"
    name = "standard input" if given == "-" else Path(given).name
    rows = iter_stream(sys.stdin.buffer) if given == "-" else iter_rows(given)
    found = list(islice(documents(rows, name, TEXT, NOT_NAMED, Skipped()), 2))
    if len(found) != 1:
        raise InputError(
            f"{name}: {'holds more than one document' if found else 'no document with any text'}; give one"
        )
    return found[0].text, name


def _exists(given: str) -> bool:
    try:
        return given != "" and Path(given).exists()  # the path without a name is this folder
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False

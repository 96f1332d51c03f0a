"""Documents one by one, with nothing kept: a row in, a document out, whatever the size of the input."""

import glob
import re
import sys
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.columns import NOT_NAMED, NamedColumns, bad_cell, empty_cell, find_columns, read_text
from torch_linformer.data.reading.readers import SAMPLE_ROWS, ReadReport, iter_rows, iter_stream
from torch_linformer.data.reading.records import TAGGED, TEXT, Record
from torch_linformer.data.reading.text_files import Row
from torch_linformer.errors import InputError

# One word with a suffix or a folder in it is meant as the name of a file.
_LIKE_A_FILE = re.compile(r"(\S*[/\\]\S*|\S+\.\w{1,7})")


class Document(NamedTuple):
    """A text, where it came from, the question asked of it, and the words that it was given as, if any."""

    where: str
    text: str
    question: str | None = None
    words: tuple[str, ...] | None = None


def given_rows(file: str, report: ReadReport) -> Iterator[Row]:
    """The rows of a file or folder, or of standard input for "-"."""
    return iter_stream(sys.stdin.buffer, report) if file == "-" else iter_rows(file, report)


def documents(
    rows: Iterable[Row],
    source: str,
    record: Record,
    named: NamedColumns,
    report: ReadReport,
    question: str | None = None,
) -> Iterator[Document]:
    """Every row that has text; the columns are recognized as in training. ``question`` is asked of every text.

    Rows without text are counted in the report, and those that cannot be read are left to it.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        return
    usual = record.usual if question is None else record.usual._replace(question=())
    if usual.question and named.question is None and list(sample[0].values) == ["text"]:
        raise InputError(f"{source}: a text without a question; ask one of every document with --question")
    try:
        columns = find_columns(sample, source, named, usual=usual, needs_label=False)
    except InputError as problem:
        report.leave_out(source, problem)
        return
    for row in chain(sample, rows):
        try:
            words = _words(row, columns.text) if record is TAGGED else None
            text = read_text(row, columns.text, usual.called[0]) if words is None else " ".join(words)
            asked = question if columns.question is None else read_text(row, columns.question)
            if asked == "":
                raise empty_cell(row, "question", columns.question)
        except InputError as problem:
            report.leave_out(row.where, problem)
            continue
        if text:
            yield Document(row.where, text, asked, words)
        else:
            report.empty += 1


def given_files(names: Iterable[str]) -> tuple[str, ...]:
    """The files and folders of these names; a pattern (``*``, ``**``, ``?``, ``[``) stands for all it matches.

    Raises:
        InputError: one is missing, or matches nothing.
    """
    files: list[str] = []
    for name in names:
        if name == "-" or Path(name).exists():
            files.append(name)
            continue
        found = sorted(glob.glob(name, recursive=True))
        if not found:
            problem = "matches no file" if glob.has_magic(name) else "no such file or folder"
            raise InputError(f"{name}: {problem}")
        files += found
    return tuple(files)


def documents_of(
    files: Iterable[str],
    record: Record,
    named: NamedColumns,
    report: ReadReport,
    question: str | None = None,
) -> Iterator[Document]:
    """The documents of some files or folders, one after the other; see :func:`documents`."""
    for file in files:
        yield from documents(given_rows(file, report), file, record, named, report, question)


def one_document(given: str) -> tuple[str, str]:
    """The document in a text, a file, or standard input (``-``), and a name for where it came from."""
    if given != "-" and not _exists(given):
        if _LIKE_A_FILE.fullmatch(given):
            raise InputError(f"{given}: no such file; a text of one word like this goes through standard input, as -")
        return given, "the text that was given"
    name = "standard input" if given == "-" else Path(given).name
    report = ReadReport()
    found = list(islice(documents(given_rows(given, report), name, TEXT, NOT_NAMED, report), 2))
    if len(found) != 1:
        problem = "holds more than one document" if found else "no document with any text"
        raise InputError(f"{name}: {problem}; give one")
    return found[0].text, name


def _words(row: Row, column: str) -> tuple[str, ...] | None:
    """The words that a row has in a list, or in a cell of that name with white space between them."""
    value = row.cell(column)
    if isinstance(value, str) and column.strip().lower() in ("tokens", "words"):
        value = value.split()
    if not isinstance(value, list):
        return None
    if not all(isinstance(word, (str, int)) and word != "" for word in value):
        raise bad_cell(row, column, value, ", no list of words")
    return tuple(map(str, value))


def _exists(given: str) -> bool:
    try:
        return given != "" and Path(given).exists()  # an empty path is the current folder
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False

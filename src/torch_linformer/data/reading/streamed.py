"""Documents one by one, with nothing kept: a row in, a document out, whatever the size of the input."""

import glob
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import VECTORS, unreadable
from torch_linformer.data.reading.records import TEXT, Record, find_columns, joined_sentences, read_words, spelled_words
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport, Row, located, no_value, read_text
from torch_linformer.data.reading.sources import read_rows, stream_rows
from torch_linformer.errors import InputError

Reads = Callable[[Sequence[str]], list[bool]]
# One word with a suffix or a folder in it is meant as the name of a file.
_LIKE_A_FILE = re.compile(r"(\S*[/\\]\S*|\S+\.\w{1,7})")


class Document(NamedTuple):
    """A text and where it came from; if there is any, a question, its words, and what its row calls it."""

    where: str
    text: str
    question: str | None = None
    words: tuple[str, ...] | None = None
    id: str | None = None


def all_of(texts: Sequence[str]) -> list[bool]:
    return [True] * len(texts)


def documents_of(
    files: Iterable[str],
    record: Record,
    options: DataOptions,
    report: ReadReport,
    question: str | None = None,
    *,
    keep_empty: bool = False,
    reads: Reads = all_of,
) -> Iterator[Document]:
    """Every row that has text, which ``reads`` judges too, of some files, pipes or folders; "-" is standard input.

    The columns are recognized as in training. ``question`` is asked of every text. Rows without text are counted in the
    report, and left out unless they are to be kept; those that cannot be read are left to it.
    """
    asking = record if question is None else replace(record, usual=record.usual._replace(question=()))
    for file in files:
        name = "standard input" if file == "-" else file
        if file != "-":
            try:
                Path(file).stat()
            except OSError as error:
                raise unreadable(file, error) from None
        found = _once(file, name, options) if is_stream(file) else read_rows([Path(file)], options, report.note)
        rows = _readable(found, report)
        sample = list(islice(rows, SAMPLE_ROWS))
        if not sample:
            continue
        try:
            if asking.usual.question and options.question_column is None and [*sample[0].values] == ["text"]:
                raise InputError(f"{name}: a text without a question; ask one of every document with --question")
            columns = find_columns(sample, name, options, asking, needs_label=False)
        except InputError as problem:
            report.leave_out(name, problem)
            continue
        if sample[0].kind != "text":
            report.note(columns.reason)  # once, however many files are alike
        for row in joined_sentences(chain(sample, rows), columns):
            try:
                words = _words(row, columns.text) if record.of_words else None
                text = columns.read_text(row, asking.usual.called[0]) if words is None else " ".join(words)
                text = text if reads([text])[0] else ""
                asked = question if columns.question is None else read_text(row, columns.question)
                if asked == "":
                    raise no_value(columns.question, "question")
                identity = columns.id_of(row)
            except InputError as problem:
                report.leave_out(row.where, located(row, problem))
                continue
            report.empty += not text
            report.replaced += row.replaced
            if text or keep_empty:
                yield Document(row.where, text, asked, words, identity)


def is_stream(file: str) -> bool:
    """Whether it can be read only once: standard input, ``<(command)``, or another pipe."""
    return file == "-" or Path(file).is_fifo()


def _once(file: str, name: str, options: DataOptions) -> Iterator[Row]:
    with nullcontext(sys.stdin.buffer) if file == "-" else open(file, "rb") as stream:
        yield from stream_rows(stream, options, name)


def _readable(rows: Iterable[Row], report: ReadReport) -> Iterator[Row]:
    """The rows that can be read; the others are left to the report as they come."""
    for row in rows:
        if isinstance(row.values, InputError):
            report.leave_out(row.where, located(row))
        else:
            yield row


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
        paths = sorted(path for path in glob.glob(name, recursive=True) if not (Path(path) / VECTORS).is_file())
        if not paths:
            raise InputError(f"{name}: {'matches no file' if glob.has_magic(name) else 'no such file or folder'}")
        files += paths
    return tuple(files)


def one_document(path: str) -> tuple[str, str]:
    """The document in a text, a file, or standard input (``-``), and a name for where it came from."""
    try:
        is_file = path == "-" or (path != "" and Path(path).exists())  # an empty path is the current folder
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        is_file = False
    if not is_file:
        if _LIKE_A_FILE.fullmatch(path):
            raise InputError(f"{path}: no such file; a text of one word like this goes through standard input, as -")
        return path, "the text that was given"
    name = "standard input" if path == "-" else Path(path).name
    texts = [document.text for document in islice(documents_of([path], TEXT, NO_OPTIONS, ReadReport()), 2)]
    if len(texts) != 1:
        problem = "holds more than one document" if texts else "no document with any text"
        raise InputError(f"{name}: {problem}; give one")
    return texts[0], name


def _words(row: Row, column: str) -> tuple[str, ...] | None:
    """The words of a row, where its cell holds or spells a list of them, or is of a column of that name."""
    value = row.values.get(column)
    are_words = isinstance(value, list) or (
        isinstance(value, str) and (column.strip().lower() in ("tokens", "words") or spelled_words(value) is not None)
    )
    return tuple(read_words(row, column)) if are_words else None

"""Documents one by one, with nothing kept: a row in, a document out, whatever the size of the input."""

import glob
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.columns import find_columns
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.delimited import joined_sentences, sentence_column
from torch_linformer.data.reading.formats import VECTORS
from torch_linformer.data.reading.readers import iter_rows, iter_stream
from torch_linformer.data.reading.records import TEXT, Record, read_words, spelled_words
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport, Row, empty_cell, read_text
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


def documents(
    rows: Iterable[Row],
    source: str,
    record: Record,
    options: DataOptions,
    report: ReadReport,
    question: str | None = None,
    *,
    keep_empty: bool = False,
    reads: Reads = all_of,
) -> Iterator[Document]:
    """Every row that has text, which ``reads`` judges too; the columns are recognized as in training.

    ``question`` is asked of every text. Rows without text are counted in the report, and left out unless they are to be
    kept; those that cannot be read are left to it.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        return
    usual = record.usual if question is None else record.usual._replace(question=())
    if usual.question and options.question_column is None and list(sample[0].values) == ["text"]:
        raise InputError(f"{source}: a text without a question; ask one of every document with --question")
    try:
        columns = find_columns(sample, source, options, usual=usual, needs_label=False)
    except InputError as problem:
        report.leave_out(source, problem)
        return
    rows = chain(sample, rows)
    if sample[0].of_table:
        report.note(columns.reason)  # once, however many files are alike
        sentence = sentence_column(sample, columns, source) if record.of_words else None
        if sentence is not None:
            rows = joined_sentences(rows, columns, sentence)
    for row in rows:
        try:
            words = _words(row, columns.text) if record.of_words else None
            text = columns.read_text(row, usual.called[0]) if words is None else " ".join(words)
            text = text if reads([text])[0] else ""
            asked = question if columns.question is None else read_text(row, columns.question)
            if asked == "":
                raise empty_cell(row, "question", columns.question)
        except InputError as problem:
            report.leave_out(row.where, problem)
            continue
        report.empty += not text
        if text or keep_empty:
            yield Document(row.where, text, asked, words, columns.id_of(row))


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
            problem = "matches no file" if glob.has_magic(name) else "no such file or folder"
            raise InputError(f"{name}: {problem}")
        files += paths
    return tuple(files)


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
    """The documents of some files or folders, one after the other, "-" is standard input; see :func:`documents`."""
    for file in files:
        rows = (
            iter_stream(sys.stdin.buffer, report, options) if file == "-" else iter_rows(file, report, options=options)
        )
        name = "standard input" if file == "-" else file
        yield from documents(rows, name, record, options, report, question, keep_empty=keep_empty, reads=reads)


def one_document(path: str) -> tuple[str, str]:
    """The document in a text, a file, or standard input (``-``), and a name for where it came from."""
    if path != "-" and not _exists(path):
        if _LIKE_A_FILE.fullmatch(path):
            raise InputError(f"{path}: no such file; a text of one word like this goes through standard input, as -")
        return path, "the text that was given"
    name = "standard input" if path == "-" else Path(path).name
    report = ReadReport()
    texts = [document.text for document in islice(documents_of([path], TEXT, NO_OPTIONS, report), 2)]
    if len(texts) != 1:
        problem = "holds more than one document" if texts else "no document with any text"
        raise InputError(f"{name}: {problem}; give one")
    return texts[0], name


def _words(row: Row, column: str) -> tuple[str, ...] | None:
    """The words of a row, where its cell holds or spells a list of them, or is of a column of that name."""
    value = row.cell(column)
    are_words = isinstance(value, list) or (
        isinstance(value, str) and (column.strip().lower() in ("tokens", "words") or spelled_words(value) is not None)
    )
    return tuple(read_words(row, column)) if are_words else None


def _exists(name: str) -> bool:
    try:
        return name != "" and Path(name).exists()  # an empty path is the current folder
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False

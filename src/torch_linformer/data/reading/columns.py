"""Which columns hold the documents, the labels and the questions."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.plain_texts import TextFolder
from torch_linformer.data.reading.rows import (
    Row,
    counts_rows,
    empty_cell,
    is_missing,
    is_number,
    read_text,
    several,
    without_fraction,
)
from torch_linformer.errors import InputError

TEXT_COLUMNS = (
    *("text", "content", "document", "body", "article", "review"),
    *("sentence", "message", "post", "comment", "abstract"),
)
LABEL_COLUMNS = ("label", "labels", "target", "class", "category", "sentiment")
SOURCE_COLUMNS = ("source", "input", "document", "article", "text", "report", "dialogue", "question", "content", "body")
DOCUMENT_COLUMNS = ("document", "passage", "positive", "context", *TEXT_COLUMNS[:2], *TEXT_COLUMNS[3:])
QUERY_COLUMNS = ("query", "queries", "question", "anchor")
ID_COLUMNS = ("document_id", "doc_id", "corpus_id", "corpus-id", "document", "_id", "id")
TARGET_COLUMNS = ("target", "output", "summary", "highlights", "abstract", "translation", "answer", "response")

_NAMES = re.compile(r"(.*[-_ ])?(id|ids|qid|pid|uid|docid)", re.IGNORECASE)  # columns of names, which are no texts
NAME_COLUMNS = ("id", "_id", "doc_id", "document_id")  # of a name that predictions and vectors keep unasked

_TEXT_FILE = re.compile(r".{1,255}\.txt\s*", re.IGNORECASE)
_LISTED = 20  # names in a message


class ChosenColumns(NamedTuple):
    """The columns of the texts, the labels, the questions, names and groups (None: not read).

    ``reason`` says in words why they were chosen; ``files`` has the texts where their column names files.
    """

    text: str
    label: str | None = None
    question: str | None = None
    reason: str = ""
    id: str | None = None
    group: str | None = None
    files: TextFolder | None = None

    def read_text(self, row: Row, called: str = "text") -> str:
        """The text of a row; "" where the cell is missing or holds only white space."""
        text = read_text(row, self.text, called)
        return self.files.read(text, row.where) if self.files and text else text

    def id_of(self, row: Row) -> str | None:
        """The name of a row, if there is a column of them."""
        if self.id is None:
            return None
        name = row.cell(self.id)
        return "" if name is None or name != name else without_fraction(name)

    def group_of(self, row: Row) -> str:
        """What a row has in common with others, as text without outer white space."""
        group = row.cell(self.group)
        if is_missing(group):  # as one group, rows that have nothing in common would stay together
            raise empty_cell(row, "group", self.group)
        return without_fraction(group).strip()

    @property
    def used(self) -> dict[str, str]:
        """The columns by what they hold, as a run keeps them."""
        columns = {"text": self.text, "label": self.label, "question": self.question}
        return {what: column for what, column in columns.items() if column is not None}


class UsualNames(NamedTuple):
    """What the columns are called in most files, in lower case; without a name for questions there are none.

    ``called`` are the words for a text and a label, in messages and in the options that name their columns.
    """

    text: tuple[str, ...] = TEXT_COLUMNS
    label: tuple[str, ...] = LABEL_COLUMNS
    question: tuple[str, ...] = ()
    called: tuple[str, str] = ("text", "label")


USUAL = UsualNames()


def find_columns(
    rows: Sequence[Row],
    source: str,
    options: DataOptions,
    *,
    usual: UsualNames = USUAL,
    needs_label: bool,
    several_labels: bool = False,
) -> ChosenColumns:
    """Choose the columns from the first rows of a source.

    A column that is named is taken, or the one that the model was trained with. Otherwise the one whose name is usual,
    whatever its case; otherwise the only candidate: for the texts the only column of strings that are not all numbers
    and that is not called an id (of several, the one most of whose values differ), for the labels the only other one
    that does not count the rows.
    Without `needs_label`, labels are read only if their column is named. With `several_labels` the user may name
    several label columns, divided by commas. Where a text is the name of a file that lies beside the table, in half of
    these rows at least, files are read; names of files that lie elsewhere are a question.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    one, two = usual.called
    trained = dict(options.trained) if any(row.of_table for row in rows) else {}
    _check_named(names, source, options, usual, several_labels)
    _check_trained(names, source, options, trained, usual, needs_label)
    text, reasons = options.column(one), ["as asked"] * 3
    label, question = options.column(two), options.question_column
    if usual.question and question is None:
        question, reasons[2] = _choose(names, usual.question, [], (), source, "question", trained.get("question"))
    if text is None:
        others = [name for name in names if name not in _known(names, usual.label)]
        strings = [name for name in others if _is_text(rows, name) and not _NAMES.fullmatch(name.strip())]
        if needs_label and len(strings) > 1:  # texts differ, labels come again
            strings = [name for name in strings if _differs(rows, name)] or strings
        text, reasons[0] = _choose(
            names, _usual_texts(rows, names, usual), strings, (label, question), source, one, trained.get("text")
        )
    if label is None and needs_label:
        own_names = () if "id" in usual.label else _known(names, NAME_COLUMNS[:2])
        candidates = [name for name in names if not _counts(rows, name) and name not in own_names]
        label, reasons[1] = _choose(names, usual.label, candidates, (text, question), source, two, trained.get("label"))
    columns = zip((several(one), several(two), "questions"), (text, label, question), reasons, strict=True)
    reason = ", ".join(f"{what} from column {name!r} ({why})" for what, name, why in columns if name is not None)
    files = _text_folder(rows, text, source, options)
    if files is not None:
        reason += f"; the texts are the files of that name in {files.path}"
    unasked = [name for name in _known(names, NAME_COLUMNS) if name not in (text, label, question)]
    identity = options.id_column or (unasked[0] if unasked else None)
    return ChosenColumns(text, label, question, reason, identity, options.group_column, files)


def _check_named(names: list[str], source: str, options: DataOptions, usual: UsualNames, several_labels: bool) -> None:
    one, two = usual.called
    for other in ("text", "label", "source", "target", "query", "document"):
        if other not in usual.called and options.column(other) is not None:
            raise InputError(f"--{other}-column is for another task; this one reads a {one} column and a {two} column")
    text, label = options.column(one), options.column(two)
    labels = label.split(",") if label and several_labels and label not in names else [label]
    others = [(what, options.column(what)) for what in ("question", "id", "group")]
    for option, column in ((one, text), *others, *((two, label) for label in labels)):
        if column is not None and column not in names:
            raise InputError(f"{source}: no column {column!r}, which --{option}-column names; columns: {listed(names)}")
    if text is not None and text == label:
        raise InputError(f"{source}: column {text!r} cannot be both {one} and {two}; columns: {listed(names)}")


def _check_trained(
    names: list[str],
    source: str,
    options: DataOptions,
    trained: dict[str, str],
    usual: UsualNames,
    needs_label: bool,
) -> None:
    """Raise an `InputError` where a column that the model was trained with is missing and no other is named."""
    read = {"text": usual.called[0], "question": "question"} | ({"label": usual.called[1]} if needs_label else {})
    for what, called in read.items():
        column = trained.get(what)
        if column is None or options.column(called) is not None or (what == "question" and not usual.question):
            continue
        if any(name not in names for name in column.split(",")) and column not in names:
            header = "; --no-header, if the first row is one like the others" if column.isdecimal() else ""
            raise InputError(
                f"{source}: no column {column!r}, which the model was trained with; name the {called} column with "
                f"--{called}-column; columns: {listed(names)}{header}"
            )


def _choose(
    names: list[str],
    known: tuple[str, ...],
    candidates: list[str],
    used: tuple[str | None, ...],
    source: str,
    what: str,
    trained: str | None,
) -> tuple[str, str]:
    if trained is not None:
        return trained, "as the model was trained"
    fitting: list[str] = []
    for choices, reason in ((_known(names, known), "by its name"), (candidates, "the only candidate")):
        fitting = fitting or [name for name in choices if name not in used]
        if len(fitting) == 1:
            return fitting[0], reason
    problem = f"{listed(fitting)} could each be the {what} column" if fitting else f"no {what} column found"
    raise InputError(f"{source}: {problem}; name it with --{what}-column; columns: {listed(names)}")


def _text_folder(rows: Sequence[Row], text: str, source: str, options: DataOptions) -> TextFolder | None:
    """The folder of the files that a column names, if it names files."""
    if options.text_folder is not None:
        if not Path(options.text_folder).is_dir():
            raise InputError(f"--text-folder {options.text_folder}: no such folder")
        return TextFolder(Path(options.text_folder), options)
    path = Path(source)
    if not (path.exists() and all(row.of_table for row in rows)):
        return None
    folder = TextFolder(path if path.is_dir() else path.parent, options)
    cells = [row.values.get(text) for row in rows]
    if 0 < len(cells) <= 2 * sum(map(folder.holds, cells)):  # a few that are missing are bad rows
        return folder
    if all(isinstance(cell, str) and _TEXT_FILE.fullmatch(cell) for cell in cells):
        raise InputError(
            f"{source}: column {text!r} holds names of files, such as {cells[0]!r:.60}, and {folder.path} holds no "
            "such files; --text-folder names the folder that does"
        )
    return None


def _counts(rows: Sequence[Row], name: str) -> bool:
    """Whether a column counts the rows, as an index does."""
    return len(rows) > 2 and counts_rows([row.values.get(name) for row in rows])


def _differs(rows: Sequence[Row], name: str) -> bool:
    """Whether most values of a column are different."""
    return 2 * len({str(row.values.get(name)) for row in rows}) > len(rows)


def _known(names: list[str], known: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.strip().lower() in known]


def _usual_texts(rows: Sequence[Row], names: list[str], usual: UsualNames) -> tuple[str, ...]:
    """What the texts are usually called, without the names of columns of numbers if others are called so too."""
    fitting = _known(names, usual.text)
    texts = [name for name in fitting if not all(is_number(row.cell(name)) for row in rows)]
    return tuple(name.strip().lower() for name in texts or fitting)


def _is_text(rows: Sequence[Row], name: str) -> bool:
    values = [row.values[name] for row in rows if row.values.get(name) is not None]
    return all(isinstance(value, str) for value in values) and not all(is_number(value) for value in values)


def listed(names: Sequence[str]) -> str:
    """Names for a message, no more than a line of them."""
    more = f", … ({len(names):,} in all)" if len(names) > _LISTED else ""
    return ", ".join(f"{name!r:.40}" for name in names[:_LISTED]) + more

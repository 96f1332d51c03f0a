"""Which columns hold the documents, the labels and the questions, and what a cell may hold."""

from collections.abc import Sequence
from typing import NamedTuple

from torch_linformer.data.reading.text_files import Row
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


class ChosenColumns(NamedTuple):
    """The columns of the texts, the labels and the questions (None: not read), and why they were chosen, in words."""

    text: str
    label: str | None
    question: str | None
    reason: str


class NamedColumns(NamedTuple):
    """The columns that a user has named."""

    text: str | None = None
    label: str | None = None
    question: str | None = None
    source: str | None = None
    target: str | None = None
    query: str | None = None
    document: str | None = None


class UsualNames(NamedTuple):
    """What the columns are called in most files, in lower case; without a name for questions there are none.

    ``called`` are the words for a text and a label, in messages and in the options that name their columns.
    """

    text: tuple[str, ...] = TEXT_COLUMNS
    label: tuple[str, ...] = LABEL_COLUMNS
    question: tuple[str, ...] = ()
    called: tuple[str, str] = ("text", "label")


NOT_NAMED, USUAL = NamedColumns(), UsualNames()


def find_columns(
    rows: Sequence[Row],
    source: str,
    named: NamedColumns,
    *,
    usual: UsualNames = USUAL,
    needs_label: bool,
    several_labels: bool = False,
) -> ChosenColumns:
    """Choose the columns from the first rows of a table.

    A column that is named is taken. Otherwise the one whose name is usual, whatever its case; otherwise the only
    candidate: for the texts the only column of strings that are not all numbers, for the labels the only other
    column. Without `needs_label`, labels are read only if their column is named. With `several_labels` the user may
    name several label columns, divided by commas.
    """
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    one, two = usual.called
    text, label, question = getattr(named, one), getattr(named, two), named.question
    _check_named(names, source, named, usual, several_labels)
    reasons = ["as asked"] * 3
    if usual.question and question is None:
        question, reasons[2] = _choose(names, usual.question, [], taken=(), source=source, what="question")
    if text is None:
        others = [name for name in names if name not in _known(names, usual.label)]
        strings = [name for name in others if _is_text(rows, name)]
        text, reasons[0] = _choose(names, usual.text, strings, taken=(label, question), source=source, what=one)
    if label is None and needs_label:
        label, reasons[1] = _choose(names, usual.label, names, taken=(text, question), source=source, what=two)
    columns = zip((_several(one), _several(two), "questions"), (text, label, question), reasons, strict=True)
    reason = ", ".join(f"{what} from column {name!r} ({why})" for what, name, why in columns if name is not None)
    return ChosenColumns(text, label, question, reason)


def read_text(row: Row, column: str, called: str = "text") -> str:
    """The text of a row; "" where the cell is missing or holds only white space."""
    value = row.cell(column)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise bad_cell(row, column, value, f", not text; name the {_several(called)} with --{called}-column")
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
        remedy = "expected text or a whole number (--task regress learns any number)"
        raise bad_cell(row, column, value, f", no label; {remedy}")
    return value.strip()


def empty_cell(row: Row, what: str, column: str | None) -> InputError:
    """The error for a row that lacks what its task needs, such as a "label"."""
    return InputError(f"{row.where}: no {what} in column {column!r}; fill it in or remove the row")


def bad_cell(row: Row, column: str | None, value: object, problem: str) -> InputError:
    """The error for a cell that cannot be used."""
    return InputError(f"{row.where}: column {column!r} holds {value!r:.40}{problem}")


def is_missing(value: object) -> bool:
    """Whether a label's cell is empty, or holds what pandas and NumPy write for a missing value."""
    return value is None or value != value or (isinstance(value, str) and value.strip().lower() in ("", "nan"))


def is_number(value: object) -> bool:
    """Whether a cell holds a number, or nothing."""
    try:
        float(str(value) or 0)
    except ValueError:
        return False
    return True


def _check_named(names: list[str], source: str, named: NamedColumns, usual: UsualNames, several_labels: bool) -> None:
    one, two = usual.called
    for other in ("text", "label", "source", "target", "query", "document"):
        if other not in usual.called and getattr(named, other) is not None:
            raise InputError(f"--{other}-column is for another task; this one reads a {one} column and a {two} column")
    text, label = getattr(named, one), getattr(named, two)
    labels = label.split(",") if label and several_labels and label not in names else [label]
    for option, column in ((one, text), ("question", named.question), *((two, each) for each in labels)):
        if column is not None and column not in names:
            raise InputError(f"{source}: no column {column!r}, which --{option}-column names; columns: {_list(names)}")
    if text is not None and text == label:
        raise InputError(f"{source}: column {text!r} cannot be both {one} and {two}; columns: {_list(names)}")


def _choose(
    names: list[str],
    known: tuple[str, ...],
    candidates: list[str],
    *,
    taken: tuple[str | None, ...],
    source: str,
    what: str,
) -> tuple[str, str]:
    found: list[str] = []
    for choices, reason in ((_known(names, known), "by its name"), (candidates, "the only candidate")):
        found = found or [name for name in choices if name not in taken]
        if len(found) == 1:
            return found[0], reason
    problem = f"{_list(found)} could each be the {what} column" if found else f"no {what} column found"
    raise InputError(f"{source}: {problem}; name it with --{what}-column; columns: {_list(names)}")


def _known(names: list[str], known: tuple[str, ...]) -> list[str]:
    return [name for name in names if name.strip().lower() in known]


def _is_text(rows: Sequence[Row], name: str) -> bool:
    values = [row.values[name] for row in rows if row.values.get(name) is not None]
    return all(isinstance(value, str) for value in values) and not all(is_number(value) for value in values)


def _several(word: str) -> str:
    return "queries" if word == "query" else f"{word}s"


def _list(names: list[str]) -> str:
    return ", ".join(map(repr, names))

"""What a document of each task holds, and how it is read from a row of the user's table."""

import ast
import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from datasets import Sequence as ListOf
from datasets import Value

from torch_linformer.data.reading import columns as names
from torch_linformer.data.reading.columns import USUAL, ChosenColumns, UsualNames
from torch_linformer.data.reading.rows import Row, bad_cell, empty_cell, is_missing, read_label, read_text
from torch_linformer.errors import InputError

_SEPARATORS = re.compile(r"\s*[,;|]\s*")  # between the labels of one cell
_IN_BRACKETS = re.compile(r"\s*(\[.*\]|\(.*\)|\{.*\}|set\(\))\s*", re.DOTALL)
_BARE_LIST = re.compile(r"\s*(\[[^\[\]]*,[^\[\]]*\]|\{[^{}]*,[^{}]*\})\s*")
_NUMBER = r"(\d+\.?|True|False)"
_NUMBERS = re.compile(rf"\s*\[\s*{_NUMBER}(\s+{_NUMBER})*\s*\]\s*")  # as NumPy prints them
_SIDE_BY_SIDE = re.compile(r"""(['"])\s+(['"])""")  # strings, as NumPy prints them
NULL = ""  # in the place of a list of labels: nobody knows them
_TRUE, _FALSE, _NULLS = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no"), ("none", "null")
_TEXTS, _PLACES = ListOf(Value("string")), ListOf(Value("int64"))


@dataclass(frozen=True)
class Record:
    """The columns of a task's documents beside "text": which of the user's they come from, and how they are read.

    Attributes:
        features: name and type of each column beside "text".
        read: the record of a row; one whose "text" is empty is skipped.
        usual: what the user's columns are usually called.
        several_labels: whether ``--label-column`` may name several columns, each a label.
        of_words: whether a text is a list of words, each with a tag.
    """

    features: dict[str, Any]
    read: Callable[[Row, ChosenColumns], dict[str, Any]]
    usual: UsualNames = USUAL
    several_labels: bool = False
    of_words: bool = False


def _text(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    return {"text": columns.read_text(row)}


def _labeled(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = columns.read_text(row)
    label = read_label(row, columns.label) if text else ""
    if isinstance(_parsed(label), list):
        raise bad_cell(row, columns.label, label, ", a list; --task multilabel learns lists of labels")
    return {"text": text, "label": label}


def _scored(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = columns.read_text(row)
    return {"text": text, "label": _number(row, columns.label) if text else 0.0}


def _several(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text, label = columns.read_text(row), columns.label or ""
    if label in row.values or "," not in label:
        value = row.cell(label)
        if isinstance(value, str):  # an empty cell has no labels
            unknown = [value.strip()] if is_missing(value) and value.strip() else []
        else:
            unknown = [NULL] if is_missing(value) else []
        return {"text": text, "label": _labels(row, label), "unknown": unknown}
    held = {name: _holds(row, name) for name in label.split(",")}
    labels, unknown = ([name for name, holds in held.items() if holds is answer] for answer in (True, None))
    return {"text": text, "label": labels, "unknown": unknown}


def _tagged(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    words, tags = read_words(row, columns.text), read_words(row, columns.label)
    if len(words) != len(tags):
        raise InputError(f"{row.where}: {len(words)} words and {len(tags)} tags; give each word one tag")
    return {**join_words(words), "label": tags}


def _asked(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text, question = columns.read_text(row), read_text(row, columns.question or "")
    if text and not question:
        raise empty_cell(row, "question", columns.question)
    answers = _answers(row, columns.label, text) if columns.label else {"answers": [], "starts": []}
    return {"text": text, "question": question, "name": str(row.values.get("id") or row.where), **answers}


def _two_texts(one: str, other: str) -> Callable[[Row, ChosenColumns], dict[str, Any]]:
    """How a text and another that belongs to it are read; what they are called is said in errors."""

    def read(row: Row, columns: ChosenColumns) -> dict[str, Any]:
        text, second = columns.read_text(row, one), read_text(row, columns.label or "", other)
        if text and not second:
            raise empty_cell(row, other, columns.label)
        return {"text": text, other: second}

    return read


def _with_name(called: str) -> Callable[[Row, ChosenColumns], dict[str, Any]]:
    """How a text and the name of a document are read."""

    def read(row: Row, columns: ChosenColumns) -> dict[str, Any]:
        text = columns.read_text(row, called)
        return {"text": text, "id": read_label(row, columns.label) if text else ""}

    return read


TEXT = Record({}, _text)
QUERIES = Record({}, _text, UsualNames((*names.QUERY_COLUMNS, *names.TEXT_COLUMNS)))
LABELED = Record({"label": Value("string")}, _labeled)
SCORED = Record({"label": Value("float64")}, _scored, UsualNames(label=("label", "score", "target", "value", "rating")))
SEVERAL = Record({"label": _TEXTS, "unknown": _TEXTS}, _several, several_labels=True)
TAGGED = Record(
    {"word_starts": _PLACES, "word_ends": _PLACES, "label": _TEXTS},
    _tagged,
    UsualNames(
        ("tokens", "words", "token", "word", *names.TEXT_COLUMNS),
        ("tags", "ner_tags", "pos_tags", "tag", "ner", *names.LABEL_COLUMNS),
    ),
    of_words=True,
)
ASKED = Record(
    {"question": Value("string"), "name": Value("string"), "answers": _TEXTS, "starts": _PLACES},
    _asked,
    UsualNames(("context", "passage", *names.TEXT_COLUMNS), ("answers", "answer"), ("question", "query")),
)
PAIRED = Record(
    {"target": Value("string")},
    _two_texts("source", "target"),
    UsualNames(names.SOURCE_COLUMNS, names.TARGET_COLUMNS, called=("source", "target")),
)

SEARCHED = Record(
    {"query": Value("string")},
    _two_texts("document", "query"),
    UsualNames(names.DOCUMENT_COLUMNS, names.QUERY_COLUMNS, called=("document", "query")),
)
# Of a collection in two tables: the queries with the names of their documents, and the documents with theirs.
JUDGED = Record(
    {"id": Value("string")},
    _with_name("query"),
    # "id" and "_id" are names of the queries themselves (BEIR), which may be those of other documents.
    UsualNames((*names.QUERY_COLUMNS, "text"), names.ID_COLUMNS[:-2], called=("query", "document")),
)
NAMED = Record(
    {"id": Value("string")},
    _with_name("text"),
    UsualNames(names.DOCUMENT_COLUMNS[1:], names.ID_COLUMNS, called=("text", "document")),
)


def join_words(words: Iterable[str]) -> dict[str, Any]:
    """Words as one text with a space between them, and where in it each begins and ends, in characters."""
    starts, ends, place = [], [], 0
    words = list(words)
    for word in words:
        starts.append(place)
        ends.append(place + len(word))
        place = ends[-1] + 1
    return {"text": " ".join(words), "word_starts": starts, "word_ends": ends}


def _number(row: Row, column: str | None) -> float:
    value: Any = row.cell(column)
    if is_missing(value):
        raise empty_cell(row, "label", column)
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise bad_cell(row, column, value, ", no number; --task regress learns numbers")
    return number


def _labels(row: Row, column: str) -> list[str]:
    """A list as it is, or as a cell spells it; other text cut at commas, semicolons, bars; nothing has no label.

    A list of zeros and ones keeps its order, as each may stand for the label at its position.
    """
    value: Any = row.cell(column)
    if is_missing(value):
        return []
    if isinstance(value, str):
        value = _parsed(value)
    if isinstance(value, str):
        if _BARE_LIST.fullmatch(value):  # as YAML, Java or Postgres write it
            raise bad_cell(row, column, value, '; write all lists of the column as JSON, ["a", "b"], or as a, b')
        value = _SEPARATORS.split(value)
    if isinstance(value, int):
        value = [value]
    items = value if isinstance(value, list) else []
    if any(isinstance(item, bool) for item in items) and (len(items) < 2 or any(item not in (0, 1) for item in items)):
        raise bad_cell(row, column, row.cell(column), "; a list of truth values has one for each label, two at least")
    if isinstance(value, list):
        value = [int(item) if isinstance(item, (bool, float)) and item in (0, 1) else item for item in value]
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
        raise bad_cell(row, column, value, ", no labels; expected a list of them")
    labels = [str(item).strip() for item in value]
    return labels if {"0", "1"}.issuperset(labels) else sorted({*labels} - {""})


def _parsed(cell: str) -> Any:
    """What a cell in brackets spells in JSON, in Python, or as NumPy prints it; other text as it is."""
    if not _IN_BRACKETS.fullmatch(cell):
        return cell
    if _NUMBERS.fullmatch(cell):
        return [
            number == "True" if number.isalpha() else int(number.strip(".")) for number in cell.strip(" []\n").split()
        ]
    spelled = _SIDE_BY_SIDE.sub(r"\1, \2", cell).strip()  # which to Python would be one string
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(spelled)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return list(value) if isinstance(value, (tuple, set)) else value
    return [] if spelled == "set()" else cell


def _holds(row: Row, column: str) -> bool | None:
    """Whether a row has the label that a column of 0 and 1 is named after; None where that is unknown."""
    value = row.cell(column)
    word = str(value).strip().lower()
    if is_missing(value) or word in _NULLS:
        return None
    if word not in _TRUE + _FALSE:
        raise bad_cell(row, column, value, "; a column for one label holds 0 or 1, or nothing where it is unknown")
    return word in _TRUE


def read_words(row: Row, column: str | None) -> list[str]:
    """The words, or tags, in a list, as a cell spells one, or with white space between them."""
    value: Any = row.cell(column)
    if isinstance(value, str):
        spelled = spelled_words(value)
        value = value.split() if spelled is None else spelled
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) and item != "" for item in value):
        raise bad_cell(row, column, value, ", no list of words or tags")
    return [str(item) for item in value]


def spelled_words(cell: str) -> list[Any] | None:
    """The words that a cell spells as a list; None where it spells none, or one number in brackets, which is a word."""
    spelled = _parsed(cell)
    is_list = isinstance(spelled, list) and (len(spelled) > 1 or all(isinstance(word, str) for word in spelled))
    return spelled if is_list else None


def _answers(row: Row, column: str, text: str) -> dict[str, Any]:
    """Answers and where each begins: as SQuAD has them, or one answer as text, found in the context."""
    value: Any = row.cell(column)
    if isinstance(value, str) and value.lstrip().startswith("{"):  # a cell of CSV, in JSON or as Python prints it
        value = _parsed(value)
        if isinstance(value, str):
            raise bad_cell(row, column, value, ", which is not valid JSON")
    if isinstance(value, str):
        texts = [value] if value.strip() else []
        value = {"text": texts, "answer_start": [_start(row, answer, text) for answer in texts]}
    squad: dict[str, Any] = value if isinstance(value, dict) else {}
    answers: Any = squad.get("text")
    starts: Any = squad.get("answer_start")
    if not (_holds_only(str, answers) and _holds_only(int, starts) and len(answers) == len(starts)):
        raise bad_cell(row, column, value, "; expected an answer, or text and answer_start as in SQuAD")
    for answer, start in zip(answers, starts, strict=True):
        if not answer.strip():
            raise InputError(f"{row.where}: an answer is empty; where there is none, leave the list of answers empty")
        if text and text[start : start + len(answer)] != answer:
            raise InputError(f"{row.where}: the answer {answer!r:.40} does not stand at character {start} of the text")
    return {"answers": answers, "starts": starts}


def _start(row: Row, answer: str, text: str) -> int:
    """Where the row says that the answer begins, or else where it is first found."""
    cell = row.cell("answer_start")
    start = text.find(answer) if cell in (None, "") else int(_number(row, "answer_start"))
    if text and start < 0:
        raise InputError(f"{row.where}: the answer {answer!r:.40} does not stand in the text")
    return start


def _holds_only(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)

"""What a document of each task holds, and how it is read from a row of the user's table."""

import json
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from datasets import Sequence as ListOf
from datasets import Value

from torch_linformer.data.reading.columns import (
    LABEL_COLUMNS,
    SOURCE_COLUMNS,
    TARGET_COLUMNS,
    TEXT_COLUMNS,
    USUAL,
    ChosenColumns,
    UsualNames,
    is_missing,
    missing_label,
    read_label,
    read_text,
)
from torch_linformer.data.reading.text_files import Row
from torch_linformer.errors import InputError

_SEPARATORS = re.compile(r"\s*[,;|]\s*")  # between the labels of one cell
_TRUE, _FALSE = ("1", "1.0", "true", "yes"), ("", "0", "0.0", "false", "no", "none")


@dataclass(frozen=True)
class Record:
    """The columns of a task's documents beside "text": which of the user's they come from, and how they are read.

    Attributes:
        features: name and type of each column beside "text".
        read: the record of a row; one whose "text" is empty is skipped.
        usual: what the user's columns are usually called.
        several_labels: whether ``--label-column`` may name several columns, each a label.
    """

    features: dict[str, Any]
    read: Callable[[Row, ChosenColumns], dict[str, Any]]
    usual: UsualNames = USUAL
    several_labels: bool = False


def _text(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    return {"text": read_text(row, columns.text)}


def _labelled(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = read_text(row, columns.text)
    assert columns.label is not None
    return {"text": text, "label": read_label(row, columns.label) if text else ""}


def _scored(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = read_text(row, columns.text)
    return {"text": text, "label": _number(row, columns.label) if text else 0.0}


def _several(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = read_text(row, columns.text)
    assert columns.label is not None
    if columns.label in row.values or "," not in columns.label:
        return {"text": text, "label": _labels(row, columns.label)}
    names = columns.label.split(",")
    return {"text": text, "label": [name for name in names if _holds(row, name)]}


def _tagged(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    words, tags = _words(row, columns.text), _words(row, columns.label)
    if len(words) != len(tags):
        raise InputError(f"{row.where}: {len(words)} words and {len(tags)} tags; give each word one tag")
    return {**join_words(words), "label": tags}


def _asked(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text, question = read_text(row, columns.text), read_text(row, columns.question or "")
    if text and not question:
        raise InputError(f"{row.where}: no question in column {columns.question!r}; fill it in or remove the row")
    name = str(row.values.get("id") or row.where)
    record = {"text": text, "question": question, "name": name}
    return {**record, **(_answers(row, columns.label, text) if columns.label else {"answers": [], "starts": []})}


def _paired(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = read_text(row, columns.text, "source")
    assert columns.label is not None
    target = read_text(row, columns.label, "target")
    if text and not target:
        raise InputError(f"{row.where}: no target in column {columns.label!r}; fill it in or remove the row")
    return {"text": text, "target": target}


TEXT = Record({}, _text)
LABELLED = Record({"label": Value("string")}, _labelled)
SCORED = Record({"label": Value("float64")}, _scored, UsualNames(label=("label", "score", "target", "value", "rating")))
SEVERAL = Record({"label": ListOf(Value("string"))}, _several, several_labels=True)
TAGGED = Record(
    {"word_starts": ListOf(Value("int64")), "word_ends": ListOf(Value("int64")), "label": ListOf(Value("string"))},
    _tagged,
    UsualNames(("tokens", "words", *TEXT_COLUMNS), ("tags", "ner_tags", "pos_tags", *LABEL_COLUMNS)),
)
ASKED = Record(
    {
        "question": Value("string"),
        "name": Value("string"),
        "answers": ListOf(Value("string")),
        "starts": ListOf(Value("int64")),
    },
    _asked,
    UsualNames(("context", "passage", *TEXT_COLUMNS), ("answers", "answer"), ("question", "query")),
)

PAIRED = Record(
    {"target": Value("string")}, _paired, UsualNames(SOURCE_COLUMNS, TARGET_COLUMNS, called=("source", "target"))
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
    value = row.values.get(column or "")
    if is_missing(value):
        raise missing_label(row, column)
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(
            f"{row.where}: column {column!r} holds {value!r:.40}, no number; --task regress learns numbers"
        )
    return number


def _labels(row: Row, column: str) -> list[str]:
    """A list as it is; a cell of text cut at commas, semicolons and bars; nothing is no label."""
    value = row.values.get(column)
    if is_missing(value):
        return []
    if isinstance(value, str):
        value = _SEPARATORS.split(value)
    if isinstance(value, int):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) for item in value):
        raise InputError(f"{row.where}: column {column!r} holds {value!r:.40}, no labels; expected a list of them")
    return sorted({str(item).strip() for item in value} - {""})


def _holds(row: Row, column: str) -> bool:
    """Whether a row has the label that a column of 0 and 1 is named after."""
    value = row.values.get(column)
    word = "" if is_missing(value) else str(value).strip().lower()
    if word not in _TRUE + _FALSE:
        raise InputError(f"{row.where}: column {column!r} holds {value!r:.40}; a column for one label holds 0 or 1")
    return word in _TRUE


def _words(row: Row, column: str | None) -> list[str]:
    value = row.values.get(column or "")
    if isinstance(value, str):
        value = value.split()
    if not isinstance(value, list) or not all(isinstance(item, (str, int)) and item != "" for item in value):
        raise InputError(f"{row.where}: column {column!r} holds {value!r:.40}, no list of words or tags")
    return [str(item) for item in value]


def _answers(row: Row, column: str, text: str) -> dict[str, Any]:
    """Answers and where each begins: as SQuAD has them, or one answer as text, found in the context."""
    value = row.values.get(column)
    if isinstance(value, str) and value.lstrip().startswith("{"):  # a cell of CSV
        try:
            value = json.loads(value)
        except ValueError:
            raise InputError(f"{row.where}: column {column!r} holds {value!r:.40}, which is not valid JSON") from None
    if isinstance(value, str) and value.strip():
        value = {"text": [value], "answer_start": [_start(row, value, text)]}
    if isinstance(value, str):  # an empty cell
        value = {"text": [], "answer_start": []}
    found: dict[str, Any] = value if isinstance(value, dict) else {}
    answers: Any = found.get("text")
    starts: Any = found.get("answer_start")
    if not (_holds_only(str, answers) and _holds_only(int, starts) and len(answers) == len(starts)):
        raise InputError(
            f"{row.where}: column {column!r} holds {value!r:.40}; "
            "expected an answer, or text and answer_start as in SQuAD"
        )
    for answer, start in zip(answers, starts, strict=True):
        if text and text[start : start + len(answer)] != answer:
            raise InputError(f"{row.where}: the answer {answer!r:.40} does not stand at character {start} of the text")
    return {"answers": answers, "starts": starts}


def _start(row: Row, answer: str, text: str) -> int:
    """Where the row says that the answer begins, or else where it is first found."""
    given = row.values.get("answer_start")
    start = text.find(answer) if given in (None, "") else int(_number(row, "answer_start"))
    if text and start < 0:
        raise InputError(f"{row.where}: the answer {answer!r:.40} does not stand in the text")
    return start


def _holds_only(kind: type, values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)

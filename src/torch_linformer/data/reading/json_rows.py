"""Rows of JSON: one object a line, an array of objects, what pandas and `datasets` write as one value, and SQuAD."""

import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from torch_linformer.data.reading.columns import TEXT_COLUMNS
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.encodings import check_decoded, open_text
from torch_linformer.data.reading.formats import file_suffix
from torch_linformer.data.reading.plain_texts import OF_JSON, read_whole
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row
from torch_linformer.errors import InputError

_LINE_SUFFIXES = (".jsonl", ".ndjson")
_KINDS = {str: "text", int: "a whole number", list: "an array"}


def json_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """A row for each object of a file. Unless there is one on each line, the file is read whole."""
    with open_text(path, options, report) as stream:
        head = _first_lines(stream)
        if _are_objects(head) or file_suffix(path) in _LINE_SUFFIXES:
            yield from json_lines(chain(head, stream), str(path), options.encoding)
        elif any(line.strip() for line in head):
            yield from _whole(path, read_whole(stream, path, "".join(head), part=OF_JSON), options.encoding, report)


def json_lines(lines: Iterable[str], name: str, encoding: str | None) -> Iterator[Row | BadRow]:
    """Rows of JSON lines; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                yield _object(_parsed(line, where, encoding, "write one JSON object on each line"), where)
            except InputError as problem:
                yield BadRow(where, problem)


def _first_lines(stream: io.TextIOBase | Iterable[str]) -> list[str]:
    """The lines up to the second that is not blank."""
    head: list[str] = []
    for line in stream:
        head.append(line)
        if sum(bool(line.strip()) for line in head) == 2:
            break
    return head


def _are_objects(head: list[str]) -> bool:
    """Whether a file holds an object on each line, by its first two that are not blank; one alone is a whole value."""
    lines = [line.strip() for line in head if line.strip()]
    if len(lines) < 2:
        return False
    return _looks_like_object(lines[0]) or (
        _looks_like_object(lines[1]) and not lines[0].endswith(("[", "{", ",", ":"))
    )


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _looks_like_object(line: str) -> bool:
    return (line.startswith("{") and line.endswith("}")) or is_object(line)


def _whole(path: Path, text: str, encoding: str | None, report: ReadReport) -> Iterator[Row | BadRow]:
    content = _parsed(text, str(path), encoding, "write an array of objects, or one object on each line")
    if is_squad(content):
        yield from squad_rows(content, str(path))
        return
    for number, values in enumerate(_items(content, path, report), start=1):
        where = f"{path}, item {number}"
        try:
            yield _object(values, where)
        except InputError as problem:
            yield BadRow(where, problem)


def _items(content: object, path: Path, report: ReadReport) -> Iterable[Any]:
    """The objects in a value: its items, those of the one array in it, or the rows of a table as pandas writes it."""
    if isinstance(content, list):
        return content
    if not isinstance(content, dict):
        return [content]
    columns, data = content.get("columns"), content.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        names = list(map(str, columns))
        return [dict(zip(names, row, strict=True)) if len(row) == len(names) else row for row in data]  # orient="split"
    arrays = [name for name, value in content.items() if _holds_objects(value)]
    if any(name.lower() in TEXT_COLUMNS and isinstance(value, str) for name, value in content.items()):
        return [content]
    if len(arrays) > 1:
        raise InputError(f"{path}: holds several arrays of objects ({', '.join(arrays)}); save each as a file")
    if arrays:
        report.note(f"{path}: a row is an object in {arrays[0]!r}")
        return list(content[arrays[0]])
    if len(content) > 1 and all(isinstance(value, dict) for value in content.values()):
        report.note(f"{path}: an object of {len(content):,} objects, read as a table")
        return _table(content)
    return [content]


def _table(content: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an object of objects: of columns, where the keys within are those of rows, or of rows by name."""
    within = dict.fromkeys(key for values in content.values() for key in values)
    if within and all(key.isdecimal() for key in within):
        return [{name: column.get(key) for name, column in content.items()} for key in within]
    if _names_text(content) and not _names_text(within):
        return [{"id": key, **{name: column.get(key) for name, column in content.items()}} for key in within]
    return [{"id": name, **row} for name, row in content.items()]


def _names_text(names: Iterable[str]) -> bool:
    """Whether one of some names is usual for a column of texts."""
    return any(name.lower() in TEXT_COLUMNS for name in names)


def _holds_objects(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _object(values: object, where: str) -> Row:
    if not isinstance(values, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(values).__name__}")
    return Row(values, where)


def _parsed(text: str, where: str, encoding: str | None, remedy: str) -> Any:
    check_decoded(text, where, encoding)
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error}); {remedy}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; of two values with one name, the parser would keep the last."""
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"two values are called {twice!r}")
    return values


def is_squad(content: object) -> bool:
    """Whether a value is a file of SQuAD: an object whose "data" are articles with "paragraphs"."""
    articles = content.get("data") if isinstance(content, dict) else None
    return isinstance(articles, list) and any(isinstance(item, dict) and "paragraphs" in item for item in articles)


def squad_rows(content: dict[str, Any], name: str) -> Iterator[Row | BadRow]:
    """Each question of such a file; its place is its ID.

    The values are `id`, `question`, `context` and `answers`, the last with the equally long lists `text` and
    `answer_start` (in characters), which are empty if the question has no answer. A question without `answers` that
    is not marked impossible gets none here either: it is there to be answered.
    """
    for article_number, article in enumerate(content["data"]):
        place = f"{name}, data[{article_number}]"
        for number, paragraph in enumerate(_field(article, "paragraphs", place, list)):
            inside = f"{place}.paragraphs[{number}]"
            context = _field(paragraph, "context", inside, str)
            for question_number, question in enumerate(_field(paragraph, "qas", inside, list)):
                where = f"{inside}.qas[{question_number}]"
                try:
                    yield _question(question, context, name, where)
                except InputError as problem:
                    yield BadRow(where, problem)


def _question(question: Any, context: str, name: str, place: str) -> Row:
    identifier = str(_field(question, "id", place, str, int))
    where = f"{name}, question {identifier}"
    values = {"id": identifier, "question": _field(question, "question", where, str), "context": context}
    impossible = question.get("is_impossible")
    if not isinstance(impossible, bool | None):  # "false" would be true
        raise InputError(
            f"{where}: expected 'is_impossible' to be true or false, as in SQuAD; found {impossible!r:.40}"
        )
    if impossible:
        answers = []
    elif "answers" in question:
        answers = _field(question, "answers", where, list)
    else:
        return Row(values, where)
    texts = [_field(answer, "text", where, str) for answer in answers]
    starts = [_field(answer, "answer_start", where, int) for answer in answers]
    return Row({**values, "answers": {"text": texts, "answer_start": starts}}, where)


def _field(container: object, key: str, where: str, *kinds: type) -> Any:
    expected = " or ".join(_KINDS[kind] for kind in kinds)
    if not isinstance(container, dict) or key not in container:
        found_type = f"an object without {key!r}" if isinstance(container, dict) else type(container).__name__
        raise InputError(f"{where}: expected an object with {key!r} ({expected}), as in SQuAD; found {found_type}")
    if type(container[key]) not in kinds:  # not isinstance: a truth value is an int too, but no id
        found_type = type(container[key]).__name__
        raise InputError(f"{where}: expected {key!r} to be {expected}, as in SQuAD; found {found_type}")
    return container[key]

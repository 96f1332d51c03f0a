"""Questions about passages, in the JSON of SQuAD 1.1 (arXiv 1606.05250) and 2.0 (arXiv 1806.03822).

{"data": [{"title": "…", "paragraphs": [{"context": "…", "qas": [
    {"id": "…", "question": "…", "answers": [{"text": "…", "answer_start": 0}], "is_impossible": false}]}]}]}
"""

import json
from collections.abc import Iterator
from typing import Any

from torch_linformer.errors import InputError

_KINDS = {str: "text", int: "a whole number", list: "an array"}


def find_squad(data: bytes, name: str) -> dict[str, Any] | None:
    """Parse a file of SQuAD: an object whose "data" are articles with "paragraphs".

    Returns None for other JSON and for broken JSON without these two names: its reader knows to describe it.

    Raises:
        InputError: the file means to be SQuAD, but is not valid JSON.
    """
    text = data.decode("utf-8", "surrogateescape")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        if b'"data"' not in data or b'"paragraphs"' not in data or _is_lines(text, error):
            return None
        raise InputError(f"{name}: not valid JSON ({error}); write one object in the form of SQuAD") from None
    articles = content.get("data") if isinstance(content, dict) else None
    outlined = isinstance(articles, list) and any(isinstance(item, dict) and "paragraphs" in item for item in articles)
    return content if outlined else None


def squad_rows(content: dict[str, Any], name: str) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each question of what `find_squad` returned, as (values, "name, question ID").

    The values are `id`, `question`, `context` and `answers`, the last with the equally long lists `text` and
    `answer_start` (in characters), which are empty if the question has no answer. A question to which no
    answers are given, and which is not said to be impossible, has no `answers`: it is there to be answered.

    Raises:
        InputError: something is missing, or of another type than in SQuAD.
    """
    for article_number, article in enumerate(content["data"]):
        place = f"{name}, data[{article_number}]"
        for number, paragraph in enumerate(_field(article, "paragraphs", (list,), place)):
            inside = f"{place}.paragraphs[{number}]"
            context = _field(paragraph, "context", (str,), inside)
            for question_number, question in enumerate(_field(paragraph, "qas", (list,), inside)):
                yield _question(question, context, name, f"{inside}.qas[{question_number}]")


def _is_lines(text: str, error: Exception) -> bool:
    """Whether JSON lines were parsed as one object: the first ends where its line does, and more follows."""
    return (
        isinstance(error, json.JSONDecodeError) and error.msg == "Extra data" and "\n" not in text[: error.pos].strip()
    )


def _question(question: object, context: str, name: str, place: str) -> tuple[dict[str, object], str]:
    identifier = str(_field(question, "id", (str, int), place))
    where = f"{name}, question {identifier}"
    assert isinstance(question, dict)  # it has an id
    values = {"id": identifier, "question": _field(question, "question", (str,), where), "context": context}
    if question.get("is_impossible"):
        answers = []
    elif "answers" in question:
        answers = _field(question, "answers", (list,), where)
    else:
        return values, where
    texts = [_field(answer, "text", (str,), where) for answer in answers]
    starts = [_field(answer, "answer_start", (int,), where) for answer in answers]
    return {**values, "answers": {"text": texts, "answer_start": starts}}, where


def _field(container: object, key: str, kinds: tuple[type, ...], where: str) -> Any:
    expected = " or ".join(_KINDS[kind] for kind in kinds)
    if not isinstance(container, dict) or key not in container:
        found = f"an object without {key!r}" if isinstance(container, dict) else type(container).__name__
        raise InputError(f"{where}: expected an object with {key!r} ({expected}), as in SQuAD; found {found}")
    if type(container[key]) not in kinds:  # a truth value is an int too, but no id
        found = type(container[key]).__name__
        raise InputError(f"{where}: expected {key!r} to be {expected}, as in SQuAD; found {found}")
    return container[key]

"""Questions about passages, in the JSON of SQuAD 1.1 (arXiv 1606.05250) and 2.0 (arXiv 1806.03822).

{"data": [{"title": "…", "paragraphs": [{"context": "…", "qas": [
    {"id": "…", "question": "…", "answers": [{"text": "…", "answer_start": 0}], "is_impossible": false}]}]}]}
"""

from collections.abc import Iterator
from typing import Any

from torch_linformer.data.reading.rows import BadRow, Row
from torch_linformer.errors import InputError

_KINDS = {str: "text", int: "a whole number", list: "an array"}


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
    if question.get("is_impossible"):
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
        found = f"an object without {key!r}" if isinstance(container, dict) else type(container).__name__
        raise InputError(f"{where}: expected an object with {key!r} ({expected}), as in SQuAD; found {found}")
    if type(container[key]) not in kinds:  # not isinstance: a truth value is an int too, but no id
        found = type(container[key]).__name__
        raise InputError(f"{where}: expected {key!r} to be {expected}, as in SQuAD; found {found}")
    return container[key]

"""What a client asked for, read from the body of its request; whatever is wrong there is a `Refusal`."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch_linformer.data.reading.rows import is_seen
from torch_linformer.serving.responses import Refusal, no_model, quoted, wrong_value

MOST_TEXTS = 2048  # of one request, as OpenAI has it
EMBEDDINGS = "/v1/embeddings"  # OpenAI's form
EMBED = "/embed"  # text-embeddings-inference's
CLASSIFY, PREDICT = "/classify", "/predict"
_SAME = ("model", "input", "ids", "truncate")
_OURS = {CLASSIFY: _SAME, PREDICT: (*_SAME, "question")}  # clients of the others send fields of other servers too


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is well formed.

    Attributes:
        texts: one or more, none of them empty; none where they came as
        token_ids: none of them empty.
        ids: what the client calls each of them, if anything; each answer has its own.
        truncate: whether longer texts are cut; None leaves it to the server.
        as_base64: whether vectors are wanted as bytes in base64, little-endian float32.
        dimensions: of a vector, the first ones, if not all are asked for.
        question: asked of every text.
        prompt_name: which of the model's prompts stands before every text; None leaves it to the model.
    """

    texts: tuple[str, ...] = ()
    token_ids: tuple[list[int], ...] = ()
    ids: tuple[str, ...] | None = None
    truncate: bool | None = None
    as_base64: bool = False
    dimensions: int | None = None
    question: str | None = None
    prompt_name: str | None = None


def read_request(body: bytes, path: str, served: str) -> Asked:
    """The request in the body of a POST to ``path``, for the model that clients call ``served``."""
    fields = _read_object(body)
    for name in fields:
        if name not in _OURS.get(path, fields):
            raise wrong_value(name, f"unknown field {quoted(name)}; {path} takes {', '.join(_OURS[path])}")
    named = _typed(fields, "model", str, "a text")
    if named is not None and named != served:
        raise no_model(named, served)
    read = _vector_fields(fields, path) if path in (EMBEDDINGS, EMBED) else _prediction_fields(fields)
    return Asked(**read, truncate=_typed(fields, "truncate", bool, "true or false"))


def _vector_fields(fields: Mapping[str, Any], path: str) -> dict[str, Any]:
    """What a request for vectors has of its own, in OpenAI's form or that of text-embeddings-inference."""
    for name, only in (("normalize", (None, True)), ("truncation_direction", (None, "right", "Right"))):
        if path == EMBED and fields.get(name) not in only:
            raise wrong_value(name, f"{name} must be {_kind(only[1])} or left out, got {_kind(fields[name])}")
    form = None if path == EMBED else _typed(fields, "encoding_format", str, "'float' or 'base64'")
    if form not in (None, "float", "base64"):
        raise wrong_value("encoding_format", f"encoding_format must be 'float' or 'base64', got {quoted(form)}")
    name = "inputs" if path == EMBED else "input"
    rows = _token_ids(fields.get(name), name)
    texts = () if rows else _texts(fields, name)
    return {
        "token_ids": rows,
        "texts": texts,
        "ids": None if path == EMBED else _ids(fields, len(texts or rows)),
        "as_base64": form == "base64",
        "dimensions": _typed(fields, "dimensions", int, "a whole number"),
        "prompt_name": _typed(fields, "prompt_name", str, "a text"),
    }


def _prediction_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What a request for predictions has of its own."""
    texts, question = _texts(fields, "input"), _typed(fields, "question", str, "a text")
    asked = None if question is None else _text(question, "question")
    return {"texts": texts, "ids": _ids(fields, len(texts)), "question": asked}


def _read_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body.decode())  # not of bytes: json would guess at UTF-16
    except UnicodeDecodeError:
        raise Refusal(400, "the body must be JSON in UTF-8; its bytes are not", code="invalid_json") from None
    except (ValueError, RecursionError) as error:  # nested too deeply, or a number with thousands of digits
        reason = error if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Refusal(400, f"the body must be JSON: {reason}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise Refusal(400, f"the body must be a JSON object, got {_kind(fields)}", code="invalid_value")
    return fields


def _texts(fields: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = fields.get(name)
    if isinstance(value, str):
        return (_text(value, name),)
    if not isinstance(value, list):
        got = "nothing" if name not in fields else _kind(value)
        raise wrong_value(name, f"{name} must be a text or a list of texts, got {got}")
    _check_number(value, name)
    for number, text in enumerate(value):
        if not isinstance(text, str):
            raise wrong_value(name, f"{name}[{number}] must be a text, got {_kind(text)}")
    return tuple(_text(text, f"{name}[{number}]") for number, text in enumerate(value))


def _token_ids(value: Any, name: str) -> tuple[list[int], ...]:
    """Lists of token ids, or one; none where the value is something else."""
    if not isinstance(value, list) or not value:
        return ()
    rows = value if isinstance(value[0], list) else [value]
    if type(rows[0][0] if rows[0] else 0) is not int:
        return ()
    _check_number(rows, name)
    for number, row in enumerate(rows):
        if not isinstance(row, list) or not row or any(type(token) is not int or token < 0 for token in row):
            raise wrong_value(name, f"{name}[{number}] must be a list of token ids like the others, 0 or more")
    return tuple(rows)


def _check_number(rows: Sequence[Any], name: str) -> None:
    if not 1 <= len(rows) <= MOST_TEXTS:
        raise wrong_value(name, f"{name} must have from 1 to {MOST_TEXTS:,} texts, got {len(rows):,}")


def _ids(fields: Mapping[str, Any], number: int) -> tuple[str, ...] | None:
    ids = _typed(fields, "ids", list, "a list of texts")
    if ids is None:
        return None
    if len(ids) != number or not all(isinstance(name, str) for name in ids):
        raise wrong_value("ids", f"ids must be a list of texts, one for each of the {number:,} of input")
    return tuple(ids)


def _text(text: str, name: str) -> str:
    field = name.partition("[")[0]
    if not is_seen(text):
        raise wrong_value(field, f"{name} has no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong_value(
            name.partition("[")[0], f"{name} has half of a surrogate pair, which is no character"
        ) from None
    return text


def _typed(fields: Mapping[str, Any], name: str, kind: type, expected: str) -> Any:
    """A field that may be absent or null; JSON's true is no number."""
    value = fields.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise wrong_value(name, f"{name} must be {expected}, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """What JSON calls a value of this kind."""
    names: Mapping[type, Callable[[Any], str]] = {
        dict: lambda _: "an object",
        list: lambda _: "a list",
        str: quoted,
        bool: lambda truth: str(truth).lower(),
        type(None): lambda _: "null",
    }
    return names.get(type(value), lambda _: "a number")(value)

"""What a client sends and what it gets, in JSON; whatever is wrong in a request is a `Refusal`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import Response

from torch_linformer.data.reading.rows import is_seen

MOST_TEXTS = 2048  # of one request, as OpenAI has it
EMBEDDINGS = "/v1/embeddings"  # OpenAI's form
EMBED = "/embed"  # text-embeddings-inference's
CLASSIFY, PREDICT = "/classify", "/predict"
_SAME = ("model", "input", "ids", "truncate")
_OURS = {CLASSIFY: _SAME, PREDICT: (*_SAME, "question")}  # clients of the others send fields of other servers too
_KINDS = {  # what clients of OpenAI's API tell errors apart by
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
}
_dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for the answer."""


class Refusal(Exception):
    """Why a request gets no answer, in one line, and in a short name for programs.

    ``param`` is the field of the request that is wrong, ``allow`` the methods of the path, where it is one of these.
    """

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, allow: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.allow = status, message, code, param, allow

    def response(self) -> Response:
        """The answer to the client, in OpenAI's form."""
        kind = _KINDS.get(self.status, "invalid_request_error")
        error = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        headers = {
            401: {"www-authenticate": "Bearer"},
            405: {"allow": self.allow or ""},
            408: {"connection": "close"},  # the rest of the body may still come
            429: {"retry-after": "1"},
        }
        return json_response(json_line({"error": error}), self.status, headers.get(self.status))


def wrong_value(param: str, message: str) -> Refusal:
    """A field of a request has a value that it cannot have."""
    return Refusal(400, message, code="invalid_value", param=param)


def no_model(name: str, served: str) -> Refusal:
    """Another model is asked for than the one that is served."""
    message = f"no model {quoted(name)} here; this server has {served!r}"
    return Refusal(404, message, code="model_not_found", param="model")


def quoted(text: str) -> str:
    """The beginning of a text from a client, in ASCII."""
    return ascii(text if len(text) <= 60 else text[:60] + "...")


def json_line(content: Any) -> bytes:
    """One line; ``ValueError`` where a number is not finite, which JSON cannot say."""
    return (_json(content, 2) + "\n").encode("utf-8", "backslashreplace")


def json_response(line: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of one line."""
    return Response(line, status, headers, media_type="application/json")


def _json(content: Any, depth: int) -> str:
    """A large answer is made of its parts, because no other thread runs while `json` makes one."""
    if depth and isinstance(content, dict):
        return "{" + ",".join(f"{_dumps(name)}:{_json(value, depth - 1)}" for name, value in content.items()) + "}"
    if depth and isinstance(content, list):
        return "[" + ",".join(_json(value, depth - 1) for value in content) + "]"
    return _dumps(content)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is well formed: one text or more, none of them empty, as texts or as ids of tokens."""

    texts: tuple[str, ...] = ()
    token_ids: tuple[list[int], ...] = ()
    ids: tuple[str, ...] | None = None  # what the client calls each of them; each answer has its own
    truncate: bool | None = None  # whether longer texts are cut; None leaves it to the server
    as_base64: bool = False  # vectors as bytes, little-endian float32
    dimensions: int | None = None  # the first ones of a vector, if not all are asked for
    question: str | None = None  # asked of every text
    prompt_name: str | None = None  # which of the model's prompts stands before every text; None leaves it to the model


def read_request(body: bytes, path: str, served: str) -> Asked:
    """The request in the body of a POST to ``path``, for the model that clients call ``served``."""
    fields = _read_object(body)
    for name in fields:
        if name not in _OURS.get(path, fields):
            raise wrong_value(name, f"unknown field {quoted(name)}; {path} takes {', '.join(_OURS[path])}")
    named = _typed(fields, "model", str, "a text")
    if named is not None and named != served:
        raise no_model(named, served)
    asked: dict[str, Any] = {"truncate": _typed(fields, "truncate", bool, "true or false")}
    if path in _OURS:
        asked["texts"] = _texts(fields, "input")
        if (question := _typed(fields, "question", str, "a text")) is not None:
            asked["question"] = _text(question, "question")
    else:
        name = "inputs" if path == EMBED else "input"
        asked["token_ids"] = _token_ids(fields.get(name), name)
        asked["texts"] = () if asked["token_ids"] else _texts(fields, name)
        asked["dimensions"] = _typed(fields, "dimensions", int, "a whole number")
        asked["prompt_name"] = _typed(fields, "prompt_name", str, "a text")
    if path == EMBED:
        for name, only in (("normalize", (None, True)), ("truncation_direction", (None, "right", "Right"))):
            if fields.get(name) not in only:
                raise wrong_value(name, f"{name} must be {_kind(only[1])} or left out, got {_kind(fields[name])}")
        return Asked(**asked)
    if path == EMBEDDINGS:
        form = _typed(fields, "encoding_format", str, "'float' or 'base64'")
        if form not in (None, "float", "base64"):
            raise wrong_value("encoding_format", f"encoding_format must be 'float' or 'base64', got {quoted(form)}")
        asked["as_base64"] = form == "base64"
    ids = _typed(fields, "ids", list, "a list of texts")
    if ids is not None:
        number = len(asked["texts"] or asked["token_ids"])
        if len(ids) != number or not all(isinstance(name, str) for name in ids):
            raise wrong_value("ids", f"ids must be a list of texts, one for each of the {number:,} of input")
        asked["ids"] = tuple(ids)
    return Asked(**asked)


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
    return tuple(_text(text, name, f"{name}[{number}]") for number, text in enumerate(value))


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


def _text(text: str, field: str, place: str = "") -> str:
    if not is_seen(text):
        raise wrong_value(field, f"{place or field} has no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong_value(field, f"{place or field} has half of a surrogate pair, which is no character") from None
    return text


def _typed(fields: Mapping[str, Any], name: str, kind: type, expected: str) -> Any:
    """A field that may be absent or null; JSON's true is no number."""
    value = fields.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise wrong_value(name, f"{name} must be {expected}, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """What JSON calls a value of this kind."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return quoted(value)
        case bool() | None:
            return json.dumps(value)
    return "a number"

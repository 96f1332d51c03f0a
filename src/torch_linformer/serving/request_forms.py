"""What a client asked for, read from the body of its request; whatever is wrong there is a `Refusal`."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch_linformer.serving.refusals import Refusal

MOST_TEXTS = 2048  # of one request, as OpenAI has it
EMBEDDINGS = "/v1/embeddings"
_OURS = ("model", "input", "ids", "truncate")
FIELDS = {
    EMBEDDINGS: (*_OURS, "encoding_format", "dimensions", "user", "prompt_name"),
    "/classify": _OURS,
    "/predict": (*_OURS, "question"),
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A request that is well formed.

    Attributes:
        texts: one or more, none of them empty.
        ids: what the client calls each of them, if anything; each answer has its own.
        truncate: whether longer texts are cut; None leaves it to the server.
        as_base64: whether vectors are wanted as bytes in base64, little-endian float32.
        dimensions: how many numbers a vector must have, if that is asked for.
        question: asked of every text.
        prompt_name: which of the model's prompts stands before every text; None leaves it to the model.
    """

    texts: tuple[str, ...]
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
        if name not in FIELDS[path]:
            raise _wrong(name, f"unknown field {quoted(name)}; {path} takes {', '.join(FIELDS[path])}")
    named = _typed(fields, "model", str, "a text")
    if named is not None and named != served:
        raise Refusal(
            404, f"no model {quoted(named)} here; this server has {served!r}", code="model_not_found", param="model"
        )
    form = _typed(fields, "encoding_format", str, "'float' or 'base64'") or "float"
    if form not in ("float", "base64"):
        raise _wrong("encoding_format", f"encoding_format must be 'float' or 'base64', got {quoted(form)}")
    question = _typed(fields, "question", str, "a text")
    _typed(fields, "user", str, "a text")  # OpenAI's name for whoever asks, which changes no answer
    texts = _texts(fields)
    return Asked(
        texts=texts,
        ids=_ids(fields, len(texts)),
        truncate=_typed(fields, "truncate", bool, "true or false"),
        as_base64=form == "base64",
        dimensions=_typed(fields, "dimensions", int, "a whole number"),
        question=None if question is None else _text(question, "question"),
        prompt_name=_typed(fields, "prompt_name", str, "a text"),
    )


def _read_object(body: bytes) -> Mapping[str, Any]:
    try:
        fields = json.loads(body.decode())  # not of bytes: json would guess at UTF-16
    except UnicodeDecodeError:
        raise Refusal(400, "the body must be JSON in UTF-8; its bytes are not", code="invalid_json") from None
    except (ValueError, RecursionError) as error:  # nested too deeply, or a number with thousands of digits
        reason = error if isinstance(error, json.JSONDecodeError) else type(error).__name__
        raise Refusal(400, f"the body must be JSON: {reason}", code="invalid_json") from None
    if not isinstance(fields, dict):
        raise Refusal(422, f"the body must be a JSON object, got {_kind(fields)}", code="invalid_value")
    return fields


def _texts(fields: Mapping[str, Any]) -> tuple[str, ...]:
    given = fields.get("input")
    if isinstance(given, str):
        return (_text(given, "input"),)
    if not isinstance(given, list):
        got = "nothing" if "input" not in fields else _kind(given)
        raise _wrong("input", f"input must be a text or a list of texts, got {got}")
    if not 1 <= len(given) <= MOST_TEXTS:
        raise _wrong("input", f"input must have from 1 to {MOST_TEXTS:,} texts, got {len(given):,}")
    for number, text in enumerate(given):
        if not isinstance(text, str):
            hint = "; token ids are not taken" if isinstance(text, (int, list)) else ""
            raise _wrong("input", f"input[{number}] must be a text, got {_kind(text)}{hint}")
    return tuple(_text(text, f"input[{number}]") for number, text in enumerate(given))


def _ids(fields: Mapping[str, Any], number: int) -> tuple[str, ...] | None:
    ids = _typed(fields, "ids", list, "a list of texts")
    if ids is None:
        return None
    if len(ids) != number or not all(isinstance(name, str) for name in ids):
        raise _wrong("ids", f"ids must be a list of texts, one for each of the {number:,} of input")
    return tuple(ids)


def _text(text: str, name: str) -> str:
    if not text.strip():
        raise _wrong(name.partition("[")[0], f"{name} has no text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _wrong(name.partition("[")[0], f"{name} has half of a surrogate pair, which is no character") from None
    return text


def _typed(fields: Mapping[str, Any], name: str, kind: type, expected: str) -> Any:
    """A field that may be absent or null; JSON's true is no number."""
    value = fields.get(name)
    if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
        raise _wrong(name, f"{name} must be {expected}, got {_kind(value)}")
    return value


def _wrong(param: str, message: str) -> Refusal:
    return Refusal(422, message, code="invalid_value", param=param)


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


def quoted(text: str) -> str:
    """The beginning of a text from a client, in ASCII."""
    return ascii(text if len(text) <= 60 else text[:60] + "...")

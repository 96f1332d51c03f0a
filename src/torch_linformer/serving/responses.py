"""Answers and refusals as they go to clients, in JSON."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.responses import Response

_dumps = partial(json.dumps, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


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


KINDS = {  # what clients of OpenAI's API tell errors apart by
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "server_error",
}
RETRY_SECONDS = "1"


class Refusal(Exception):
    """Why a request gets no answer.

    Args:
        status: of the HTTP response.
        message: one line: what was expected, what came, and the remedy.
        code: a short name of the reason, for programs.
        param: the field of the request that is wrong, if it is one.
        allow: the methods that the path has, of a request by another.
    """

    def __init__(
        self, status: int, message: str, *, code: str, param: str | None = None, allow: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.allow = status, message, code, param, allow

    def response(self) -> Response:
        """The answer to the client, in OpenAI's form."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": KINDS.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        headers = {
            401: {"www-authenticate": "Bearer"},
            405: {"allow": self.allow or ""},
            408: {"connection": "close"},  # the rest of the body may still come
            429: {"retry-after": RETRY_SECONDS},
        }
        return json_response(json_line({"error": error}), self.status, headers.get(self.status))


def wrong_value(param: str, message: str) -> Refusal:
    """A field of a request has a value that it cannot have."""
    return Refusal(400, message, code="invalid_value", param=param)


def no_model(name: str, served: str) -> Refusal:
    """Another model is asked for than the one that is served."""
    return Refusal(
        404, f"no model {quoted(name)} here; this server has {served!r}", code="model_not_found", param="model"
    )


def quoted(text: str) -> str:
    """The beginning of a text from a client, in ASCII."""
    return ascii(text if len(text) <= 60 else text[:60] + "...")


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for the answer."""

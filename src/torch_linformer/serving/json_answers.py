"""JSON as it goes to clients."""

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

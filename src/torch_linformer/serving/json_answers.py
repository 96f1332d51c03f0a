"""JSON as it goes to clients."""

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


def json_answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A response of one line; ``ValueError`` where a number is not finite, which JSON cannot say."""
    line = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    return Response(line.encode("utf-8", "backslashreplace"), status, headers, media_type="application/json")

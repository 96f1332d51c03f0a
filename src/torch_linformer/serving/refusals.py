"""A request that is not answered as it asked, and the JSON that says why."""

from typing import Any

from starlette.responses import Response

from torch_linformer.serving.json_answers import json_answer

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
    """

    def __init__(self, status: int, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param

    def response(self) -> Response:
        """The answer to the client, in OpenAI's form."""
        error: dict[str, Any] = {
            "message": self.message,
            "type": KINDS.get(self.status, "invalid_request_error"),
            "param": self.param,
            "code": self.code,
        }
        headers = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": RETRY_SECONDS}}.get(self.status, {})
        if self.status == 408:  # the rest of the body may still come
            headers = {"connection": "close"}
        return json_answer({"error": error}, self.status, headers)


class ClientGoneError(Exception):
    """The client has closed its connection: nobody waits for the answer."""

"""What a client of the server may send; the options of ``linformer serve`` have these defaults."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may send; more is refused."""

    max_body: int = 8_000_000  # bytes of a request's body
    max_tokens: int = 131_072  # of all texts of a request
    max_queue: int = 256  # requests that have begun and are not answered
    body_seconds: float = 30.0  # how long a body may take to come
    truncate: bool = False  # whether a text longer than the model reads is cut where the request does not say
    api_key: str | None = None  # what clients must send as ``Authorization: Bearer``; None lets everybody in

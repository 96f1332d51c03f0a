"""What a client may send."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a client may send; more is refused.

    Attributes:
        max_body: bytes of a request's body.
        max_tokens: tokens of all texts of a request.
        max_queue: requests that have begun and are not answered.
        body_seconds: how long a body may take to come.
        truncate: whether a text longer than the model reads is cut where the request does not say.
        api_key: what clients must send as ``Authorization: Bearer``; None lets everybody in.
    """

    max_body: int = 8_000_000
    max_tokens: int = 131_072
    max_queue: int = 256
    body_seconds: float = 30.0
    truncate: bool = False
    api_key: str | None = None

"""What the server has done, for Prometheus."""

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)


class Counters:
    """Counts of one server; nothing is shared with other registries of the process.

    Every request is counted once in ``requests``, by its path and the status of its answer. The status 499 stands for a
    client that closed its connection before its answer came.

    Args:
        open_requests: tells how many requests for the model have begun and not ended.
        waiting: tells how many windows wait.
    """

    def __init__(self, *, open_requests: Callable[[], int], waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("linformer_requests", "requests that have ended", ("path", "status"), **here)
        self.seconds = Histogram(
            "linformer_request_seconds", "time to an answer of status 200", ("path",), buckets=_SECONDS, **here
        )
        self.batches = Histogram(
            "linformer_batch_windows",
            "windows of a batch",
            buckets=_WINDOWS,
            **here,
        )
        self.tokens = Counter("linformer_tokens", "tokens that the model was given", **here)
        self.failures = Counter("linformer_failed_batches", "batches that the model failed at", **here)
        Gauge("linformer_open_requests", "requests that have begun and not ended", **here).set_function(open_requests)
        Gauge("linformer_waiting_windows", "windows in the queue", **here).set_function(waiting)

    def ended(self, path: str, status: int, seconds: float) -> None:
        """Count a request."""
        self.requests.labels(path, str(status)).inc()
        if status == 200:
            self.seconds.labels(path).observe(seconds)

    def computed(self, windows: int, tokens: int) -> None:
        """Count a batch."""
        self.batches.observe(windows)
        self.tokens.inc(tokens)

    def text(self) -> bytes:
        """All of it, in the text form of Prometheus."""
        return generate_latest(self.registry)

"""The paths of the server, and the life of a request: admitted, read, answered, counted."""

import asyncio
import hmac
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from torch_linformer.serving.answers import Answerer, ServedModel
from torch_linformer.serving.limits import Limits
from torch_linformer.serving.protocol import (
    CLASSIFY,
    EMBED,
    EMBEDDINGS,
    PREDICT,
    ClientGoneError,
    Refusal,
    json_line,
    json_response,
    no_model,
    read_request,
)
from torch_linformer.serving.queues import Batcher, BatchError

GONE = 499  # counted for a client that closed its connection; it gets nothing
ASKED = (EMBEDDINGS, EMBED, CLASSIFY, PREDICT)
MODELS = "/v1/models"
WATCHED = ("/health", "/metrics", MODELS)
CPU_BATCH_TOKENS = 1_024  # a batch of more takes no less time a token (docs/log.md), and short texts wait for it
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_WINDOWS = (1, 2, 4, 8, 16, 32, 64, 128)
Endpoint = Callable[..., Awaitable[Response]]


class Application:
    """Answers requests for one model; every one of them is counted with what became of it.

    ``on_failure`` is called with each error that is not a client's. An HTTP server calls ``asgi``; ``batcher`` must run
    beside it.
    """

    def __init__(self, model: ServedModel, limits: Limits, on_failure: Callable[[BaseException], object]) -> None:
        self.model, self.limits, self.on_failure = model, limits, on_failure
        self.began = int(time.time())
        self.open = 0  # requests for the model that have begun and not ended
        self.counters = Counters(open_requests=lambda: self.open, waiting=lambda: self.batcher.waiting)
        self.batcher = Batcher(
            model.embedder.batch_size,
            CPU_BATCH_TOKENS if model.embedder.device == "cpu" else math.inf,
            on_batch=self.counters.computed,
            on_failure=self._batch_failed,
        )
        self.answerer = Answerer(model, self.batcher, limits)
        routes = {
            "/health": self.health,
            "/metrics": self.metrics,
            MODELS: self.models,
            MODELS + "/{name:path}": self.models,
            **dict.fromkeys(ASKED, self.ask),
        }
        self.asgi = Starlette(
            routes=[
                Route(path, self._counted(endpoint), methods=["POST" if path in ASKED else "GET"])
                for path, endpoint in routes.items()
            ],
            exception_handlers={HTTPException: self._counted(self.elsewhere)},
        )
        self.asgi.router.redirect_slashes = False

    async def health(self, request: Request) -> Response:
        """That the server is up, and what it serves; without a key, for whoever watches it."""
        status: dict[str, Any] = {"status": "ok", "model": self.model.name, "paths": self.model.paths}
        status |= {"max_tokens_per_text": self.model.longest, "waiting": self.batcher.waiting}
        return json_response(json_line(status))

    async def metrics(self, request: Request) -> Response:
        """Counts for Prometheus."""
        self._check_key(request)
        return Response(self.counters.text(), media_type="text/plain; version=0.0.4")

    async def models(self, request: Request) -> Response:
        """The model that is served, as OpenAI lists its own, or by its name."""
        self._check_key(request)
        name = request.path_params.get("name", self.model.name)
        if name != self.model.name:
            raise no_model(name, self.model.name)
        model = {"id": name, "object": "model", "created": self.began, "owned_by": "torch-linformer"}
        return json_response(json_line(model if request.path_params else {"object": "list", "data": [model]}))

    async def elsewhere(self, request: Request, error: HTTPException) -> Response:
        """A path or a method that is not there."""
        path = request.url.path
        if error.status_code == 405:
            method = "POST" if path in ASKED else "GET"
            message = f"{path} takes {method}, not {request.method}"
            raise Refusal(405, message, code="method_not_allowed", allow=method)
        raise Refusal(404, f"no such path; there are {', '.join([*self.model.paths, *WATCHED])}", code="no_such_path")

    async def ask(self, request: Request) -> Response:
        """Texts for the model, answered when all of them are computed."""
        self._check_key(request)
        path, most = request.url.path, self.limits.max_queue
        if self.open > most:
            raise Refusal(429, f"{most} requests are in work already; try again in a moment", code="queue_full")
        if path not in self.model.paths:
            reason = f"{self.model.no_prediction}; this model has {', '.join(self.model.paths)}"
            raise Refusal(404, f"{path} is not for {self.model.name}: {reason}", code="not_for_this_model")
        asked = read_request(await self._body(request), path, self.model.name)
        answering = asyncio.create_task(self.answerer.answer(asked, path))
        leaving = asyncio.ensure_future(request.receive())  # what comes after the body: that the client is gone
        try:
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                raise ClientGoneError
            return json_response(answering.result())
        finally:
            answering.cancel()
            leaving.cancel()

    def _check_key(self, request: Request) -> None:
        if self.limits.api_key is None:
            return
        kind, _, key = request.headers.get("authorization", "").partition(" ")
        right = hmac.compare_digest(key.strip().encode("latin-1"), self.limits.api_key.encode())
        if kind.lower() != "bearer" or not right:
            raise Refusal(401, "this server asks for its key: send Authorization: Bearer KEY", code="invalid_api_key")

    async def _body(self, request: Request) -> bytes:
        most, seconds = self.limits.max_body, self.limits.body_seconds
        message = f"the body has more than {most:,} bytes; send fewer texts at once"
        too_large = Refusal(413, message, code="body_too_large")
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced) > most:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise too_large
        except TimeoutError:
            raise Refusal(408, f"the body did not come within {seconds:g} seconds", code="body_too_slow") from None
        except ClientDisconnect:
            raise ClientGoneError from None
        return bytes(body)

    def _counted(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint that has an answer whatever happens, and whose requests are counted."""

        async def answer(request: Request, *rest: Any) -> Response:
            begin, path = time.monotonic(), request.url.path
            for_model = endpoint == self.ask
            self.open += for_model
            status = GONE
            try:
                response = await endpoint(request, *rest)
                status = response.status_code
            except Refusal as refusal:
                response, status = refusal.response(), refusal.status
            except ClientGoneError:
                response = Response(status_code=GONE)  # the connection is closed
            except Exception as error:
                if not isinstance(error, BatchError):  # which is told already
                    self.on_failure(error)
                response = Refusal(
                    500, "the server failed at this request; its log says why", code="internal"
                ).response()
                status = 500
            finally:
                self.open -= for_model
                known = path in ASKED or path in WATCHED
                self.counters.ended(path if known else "other", status, time.monotonic() - begin)
            return response

        return answer

    def _batch_failed(self, error: BaseException) -> None:
        self.counters.failures.inc()
        self.on_failure(error)


class Counters:
    """Counts of one server, in a registry of its own: every request once, by its path and the status of its answer.

    The status 499 stands for a client that closed its connection before its answer came.
    """

    def __init__(self, *, open_requests: Callable[[], int], waiting: Callable[[], int]) -> None:
        self.registry = CollectorRegistry()
        here: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("linformer_requests", "requests that have ended", ("path", "status"), **here)
        self.seconds = Histogram(
            "linformer_request_seconds", "time to an answer of status 200", ("path",), buckets=_SECONDS, **here
        )
        self.batches = Histogram("linformer_batch_windows", "windows of a batch", buckets=_WINDOWS, **here)
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

"""``linformer serve``."""

import importlib.util
import os
import sys
import traceback
from contextlib import suppress
from typing import Annotated

import typer

from torch_linformer.cli import options
from torch_linformer.cli.explaining import explain
from torch_linformer.serving.limits import Limits

_PACKAGES = ("prometheus_client", "starlette", "uvicorn")
_KERNELS = "64"  # of oneDNN and of torch's own cache; with their 1,024 a server of texts of all lengths grows for hours


def serve(
    model: options.Encoder,
    host: Annotated[str, typer.Option(help="address to listen on; 0.0.0.0 for all interfaces")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0 for a free one")] = 8000,
    name: Annotated[str | None, typer.Option(help="model name for clients  [name of its folder]")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="LINFORMER_API_KEY", help="key that clients must send  [none]")
    ] = None,
    overflow: options.EncoderOverflow = None,
    stride: options.Stride = None,
    truncate: Annotated[
        bool, typer.Option("--truncate", help="truncate texts that are too long instead of refusing them")
    ] = False,
    max_body: Annotated[int, typer.Option(min=1, help="maximum size of a request in bytes")] = Limits.max_body,
    max_tokens: Annotated[int, typer.Option(min=1, help="maximum tokens per request")] = Limits.max_tokens,
    max_queue: Annotated[int, typer.Option(min=1, help="maximum requests in progress")] = Limits.max_queue,
    max_connections: Annotated[
        int, typer.Option(min=1, help="maximum connections; idle ones are closed to make room")
    ] = 512,
    body_seconds: Annotated[
        float, typer.Option(min=0.1, help="seconds in which a request must arrive")
    ] = Limits.body_seconds,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    debug: options.Debug = False,
) -> None:
    """Serve embeddings and predictions over HTTP.

    OpenAI's clients can ask for embeddings. After SIGTERM or Ctrl-C the server answers the requests that it has, and
    ends.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):  # read when torch first computes
        os.environ.setdefault(cache, _KERNELS)
    missing = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        raise ValueError(f'{", ".join(missing)} not installed: pip install "torch-linformer[serve]"')
    if api_key == "":
        raise ValueError("--api-key: is empty; give a key, or leave it out")
    if truncate and overflow == "windows":
        raise ValueError("--truncate has no effect with --overflow windows, which cuts nothing")
    from torch_linformer.reporting.tables import printable
    from torch_linformer.serving.answers import load_served
    from torch_linformer.serving.application import Application
    from torch_linformer.serving.server import address, bind, connections_at_most
    from torch_linformer.serving.server import serve as answer_requests

    def on_failure(error: BaseException) -> None:
        _say(*(traceback.format_exception(error) if debug else ()), f"a request failed: {explain(error)}")

    with bind(host, port) as bound:
        served = load_served(
            model,
            name=name,
            overflow=overflow,
            stride=stride,
            batch_size=batch_size,
            device=device,
            precision=precision,
        )
        if truncate and served.embedder.encode.overflow == "windows":
            raise ValueError(f"--truncate has no effect: {model} {served.embedder.reading}; add --overflow cut")
        if not served.embedder.is_linear:
            _say(f"{model} {served.embedder.reading}")
        limits = Limits(
            max_body=max_body,
            max_tokens=max_tokens,
            max_queue=max_queue,
            body_seconds=body_seconds,
            truncate=truncate,
            api_key=api_key,
        )
        if api_key is None and host not in ("127.0.0.1", "localhost", "::1"):
            _say("no --api-key: whoever reaches this port can use the model")
        most = connections_at_most(max_connections)
        if most < max_connections:
            _say(f"at most {most} connections, not {max_connections}: ulimit -n allows no more")
        where = printable(f"serving {served.name} at {address(bound)}: {', '.join(served.paths)}")
        left = answer_requests(Application(served, limits, on_failure), bound, most, lambda: print(where, flush=True))
    _say(f"stopped with {left} requests unanswered" if left else "every accepted request was answered")
    if left:
        raise typer.Exit(1)


def _say(*lines: str) -> None:
    from torch_linformer.reporting.tables import printable

    with suppress(OSError):  # a server goes on when nobody reads what it says
        print(*map(printable, lines), sep="\n", file=sys.stderr, flush=True)

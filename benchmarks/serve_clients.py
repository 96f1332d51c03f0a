"""How fast does `linformer serve` answer, one client after the other and many at once?

    python benchmarks/serve_clients.py path/to/model --clients 100 --seconds 60 --words 200

Starts the server on a free port, asks it over real connections that stay open, first by one client alone, then by all
of them at once, each with its next request as soon as it has the answer to the last. A request has one text of half to
one and a half times ``--words`` words, other words in each. The table has what clients measured; the numbers of
requests by their status must be those that the server has counted, and SIGTERM must end it with status 0. Options after
``--`` go to `linformer serve`.
"""

import asyncio
import collections
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import typer

from torch_linformer.measuring.machine import machine_facts
from torch_linformer.reporting.report import markdown_table

WORDS = [
    "the",
    "of",
    "and",
    "river",
    "stone",
    "paper",
    "window",
    "green",
    "long",
    "old",
    "walked",
    "house",
    "letter",
    "night",
    "table",
    "under",
    "water",
    "wrote",
]


def main(
    model: Annotated[str, typer.Argument(help="folder of a model")],
    options: Annotated[list[str] | None, typer.Argument(help="of linformer serve")] = None,
    clients: Annotated[int, typer.Option(min=1, help="at once")] = 100,
    seconds: Annotated[float, typer.Option(min=1, help="of asking")] = 60.0,
    words: Annotated[int, typer.Option(min=2, help="of a text, on average")] = 200,
    path: Annotated[str, typer.Option(help="what is asked")] = "/v1/embeddings",
) -> None:
    """Measure a server, and check that every request is accounted for."""
    found = measure(model, options or [], clients=clients, seconds=seconds, words=words, path=path)
    print("\n".join(f"{name}: {value}" for name, value in machine_facts("cpu").items()))
    print(markdown_table(["clients", *found[0].row()], [[str(each.clients), *each.row().values()] for each in found]))


@dataclass
class Load:
    """What some clients saw.

    Attributes:
        clients: how many asked at once.
        elapsed: seconds from the first request to the last answer.
        latencies: seconds of each answer.
        statuses: how many answers of each.
        tokens: of all texts that were answered.
    """

    clients: int
    elapsed: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    tokens: int = 0

    def row(self) -> dict[str, str]:
        """A row of the table."""
        quantiles = {f"p{q}, ms": f"{1000 * np.percentile(self.latencies, q):,.0f}" for q in (50, 95, 99)}
        return {
            "requests": f"{len(self.latencies):,}",
            "by status": ", ".join(f"{status}: {number:,}" for status, number in sorted(self.statuses.items())),
            "requests/s": f"{len(self.latencies) / self.elapsed:,.1f}",
            "tokens/s": f"{self.tokens / self.elapsed:,.0f}",
            **quantiles,
        }


def measure(model: str, options: list[str], *, clients: int, seconds: float, words: int, path: str) -> list[Load]:
    """The load of one client, for a quarter of the time, 15 s at most, and that of all.

    Raises:
        RuntimeError: the server does not start, has counted other requests than were sent, or does not end well.
    """
    command = [sys.executable, "-m", "torch_linformer.cli", "serve", model, "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            if not line:
                raise RuntimeError("the server did not start")
            host, port = line.partition("http://")[2].split(": ")[0].rsplit(":", 1)
            found = [
                asyncio.run(ask_all(host, int(port), number, duration, words, path))
                for number, duration in ((1, min(15.0, seconds / 4)), (clients, seconds))
            ]
            counted = asyncio.run(counts(host, int(port), path))
            server.send_signal(signal.SIGTERM)
            status = server.wait(60)
        finally:
            server.kill()
    sent = found[0].statuses + found[1].statuses
    if sent != counted or status != 0:
        raise RuntimeError(f"clients have {dict(sent)}, the server counted {dict(counted)} and ended with {status}")
    return found


async def ask_all(host: str, port: int, clients: int, seconds: float, words: int, path: str) -> Load:
    """Ask by so many clients for so long; every request that is begun is waited for."""
    load = Load(clients)
    begin = time.monotonic()
    await asyncio.gather(
        *(_client(host, port, number, begin + seconds, words, path, load) for number in range(clients))
    )
    load.elapsed = time.monotonic() - begin
    return load


async def _client(host: str, port: int, number: int, end: float, words: int, path: str, load: Load) -> None:
    draw = random.Random(number)
    reader, writer = await asyncio.open_connection(host, port)
    try:
        while time.monotonic() < end:
            text = " ".join(draw.choices(WORDS, k=draw.randint(words // 2, words * 3 // 2)))
            begin = time.monotonic()
            status, content = await exchange(reader, writer, "POST", path, json.dumps({"input": text}).encode())
            load.latencies.append(time.monotonic() - begin)
            load.statuses[status] += 1
            load.tokens += json.loads(content)["usage"]["total_tokens"] if status == 200 else 0
    finally:
        writer.close()
        await writer.wait_closed()


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: bytes = b""
) -> tuple[int, bytes]:
    """Status and body of the answer to one request on a connection that stays open."""
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = int(head.partition("content-length: ")[2].split("\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


async def counts(host: str, port: int, path: str) -> collections.Counter[int]:
    """The requests for a path that the server has counted, by their status."""
    reader, writer = await asyncio.open_connection(host, port)
    _, text = await exchange(reader, writer, "GET", "/metrics")
    writer.close()
    await writer.wait_closed()
    begin = f'linformer_requests_total{{path="{path}",status="'
    lines = text.decode().splitlines()
    return collections.Counter(
        {
            int(line[len(begin) :].split('"')[0]): int(float(line.split()[-1]))
            for line in lines
            if line.startswith(begin)
        }
    )


if __name__ == "__main__":
    typer.run(main)

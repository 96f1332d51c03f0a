"""Does `linformer serve` stay quick and of one size under everything that its clients may do?

    python tools/soak_serve.py path/to/model --minutes 10

At once, over real connections: one client with requests of five words, which are timed; twenty with texts of nearly the
largest body, cut; four with texts of all lengths; idle connections, more than the server may have descriptors for; and
a client that hangs up. Every minute prints what the clients saw and what the server holds. Fails where a request has
another answer than 200, the server logs anything, or it does not end well.
"""

import asyncio
import collections
import json
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from serve_clients import WORDS, exchange
from torch_linformer.measuring.machine import machine_facts

PATH = "/v1/embeddings"
DESCRIPTORS = 120  # of the server; its idle clients are more
IDLE = 200


class Load:
    """Clients of a server, and what they saw since it was last told."""

    def __init__(self, port: int, end: float, longest: int) -> None:
        self.port, self.end, self.longest = port, end, longest
        self.seconds: dict[str, list[float]] = collections.defaultdict(list)
        self.statuses: collections.Counter[str] = collections.Counter()

    async def run(self, pid: int) -> None:
        """All clients until the end, and a line a minute."""
        huge = json.dumps({"input": "the " * 1_975_000, "truncate": True}).encode()
        five = json.dumps({"input": "the wet green river stone"}).encode()
        await asyncio.gather(
            self.client("five words", lambda draw: five, pause=0.1),
            *(self.client("huge", lambda draw: huge, pause=5.0) for _ in range(20)),
            *(self.client("varied", self.varied, seed=seed) for seed in range(4)),
            self.idle(),
            self.leaving(),
            self.tell(pid),
        )

    def varied(self, draw: random.Random) -> bytes:
        """A text of any length."""
        return json.dumps({"input": " ".join(draw.choices(WORDS, k=draw.randint(5, self.longest)))}).encode()

    async def client(
        self, name: str, body: Callable[[random.Random], bytes], *, pause: float = 0.0, seed: int = 0
    ) -> None:
        """Ask again and again; where the connection was closed while it was idle, once more over a new one."""
        draw, writer = random.Random(seed), None
        while time.monotonic() < self.end:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            begin = time.monotonic()
            try:
                status, _ = await exchange(reader, writer, "POST", PATH, body(draw))
            except (ConnectionError, asyncio.IncompleteReadError):
                self.statuses["closed while idle"] += 1
                writer.close()
                writer = None
                continue
            self.seconds[name].append(time.monotonic() - begin)
            self.statuses[str(status)] += 1
            await asyncio.sleep(pause)
        if writer is not None:
            writer.close()

    async def idle(self) -> None:
        """Connections that send nothing."""
        while time.monotonic() < self.end:
            streams = [await asyncio.open_connection("127.0.0.1", self.port) for _ in range(IDLE)]
            await asyncio.sleep(10)
            for _, writer in streams:
                writer.close()

    async def leaving(self) -> None:
        """A client that hangs up before its answer comes."""
        body = json.dumps({"input": ["the river"] * 50}).encode()
        while time.monotonic() < self.end:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.sleep(0.5)
            writer.close()

    async def tell(self, pid: int) -> None:
        """What the clients saw in the last minute, and the memory of the server."""
        begin = time.monotonic()
        while time.monotonic() < self.end:
            await asyncio.sleep(min(60.0, max(1.0, self.end - time.monotonic())))
            status = Path(f"/proc/{pid}/status").read_text()
            memory = int(status.partition("VmRSS:")[2].split()[0]) // 1024
            print(f"after {time.monotonic() - begin:.0f} s: {memory:,} MB, {dict(self.statuses)}")
            for name, seconds in sorted(self.seconds.items()):
                median, p99 = np.percentile(seconds, (50, 99))
                print(f"  {name}: {len(seconds):,} answers, p50 {median:.2f}, p99 {p99:.2f}, max {max(seconds):.2f} s")
            sys.stdout.flush()
            self.seconds.clear()


def main(
    model: Annotated[str, typer.Argument(help="folder of a model")],
    minutes: Annotated[float, typer.Option(min=0.1, help="of asking")] = 10.0,
    longest: Annotated[int, typer.Option(min=5, help="words of a text of any length")] = 1_000,
) -> None:
    """Ask a server for so long, and check that all was answered and nothing logged."""
    print("\n".join(f"{name}: {value}" for name, value in machine_facts("cpu").items()))
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, limit[1]))
    command = [sys.executable, "-m", "torch_linformer.cli", "serve", model, "--port", "0"]
    with tempfile.TemporaryFile("w+") as log:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
            try:
                assert server.stdout is not None
                port = int(server.stdout.readline().partition("http://127.0.0.1:")[2].split(":")[0])
                load = Load(port, time.monotonic() + 60 * minutes, longest)
                asyncio.run(load.run(server.pid))
                server.send_signal(signal.SIGTERM)
                status = server.wait(120)
            finally:
                server.kill()
        log.seek(0)
        lines = log.read().splitlines()
    print(*lines, sep="\n")
    if status != 0 or set(load.statuses) - {"200", "closed while idle"} or len(lines) != 2:
        raise SystemExit(f"soak failed: status {status}, answers {dict(load.statuses)}, {len(lines)} lines of log")


if __name__ == "__main__":
    typer.run(main)

"""The process that serves: it listens, and ends when it is told to, with every accepted request answered."""

import asyncio
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from torch_linformer.errors import InputError
from torch_linformer.serving.application import Application

BACKLOG = 2048  # connections that wait until they are taken,
TAKEN = 4  # so many in one turn of the event loop,
SPARE = 10 * TAKEN  # descriptors for those that are taken in the turns until another is closed, and for files
KEEP_ALIVE = 75  # seconds without a request after which a connection is closed
UNREAD_SECONDS = 10.0  # that a client has for taking its answer after the last one was made


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its port and takes no clients yet; port 0 takes a free one."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)  # asyncio sends without delay (TCP_NODELAY) where it sees TCP
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # of a server that has just ended
            bound.bind(place)
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"--host {host} --port {port}: cannot listen there ({reason}); name another") from None
    return bound


def address(bound: socket.socket) -> str:
    """Where clients find the server."""
    host, port = bound.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def connections_at_most(connections: int) -> int:
    """So many, or fewer where the process may not open so many files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = files - len(os.listdir("/dev/fd")) - SPARE
    if most < 1:
        raise InputError(f"ulimit -n is {files}, which leaves no descriptor for a client; allow {2 * SPARE} or more")
    return connections if files == resource.RLIM_INFINITY else min(connections, most)


def serve(application: Application, bound: socket.socket, most: int, on_ready: Callable[[], object]) -> int:
    """Answer requests until SIGTERM or SIGINT; then take no more, answer those that were taken, and return.

    A second SIGINT ends it at once. ``on_ready`` is called when clients can connect and these signals are heeded. Of
    more connections than ``most``, the one that has been idle longest is closed.

    Returns:
        How many accepted requests were left without an answer: none, but for a second SIGINT.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application tells what matters
    config = uvicorn.Config(
        application.asgi,
        http=cast(type[asyncio.Protocol], partial(Connection, most=most)),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        backlog=TAKEN,
    )
    return asyncio.run(_serve(_Server(config), application, bound, on_ready))


class Connection(H11Protocol):
    """Where there are more connections than ``most``, a new one closes the one that has been idle longest."""

    def __init__(self, *args: Any, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.most, self.idle_since = most, self.loop.time()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(KEEP_ALIVE, self.timeout_keep_alive_handler)
        if len(self.connections) > self.most:
            idle = [other for other in self.connections if isinstance(other, Connection) and other.is_idle]
            longest = min(idle, key=lambda connection: connection.idle_since)  # this one where all others are in work
            self.connections.discard(longest)
            longest.transport.close()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    @property
    def is_idle(self) -> bool:
        """Whether it has no request, or not all of its headers, and nothing to send."""
        answered = self.cycle is None or self.cycle.response_complete
        return answered and not self.transport.get_write_buffer_size()


class _Server(uvicorn.Server):
    """Takes few connections at a time, so that those that must go are closed meanwhile; many may wait."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or ():
            bound.listen(BACKLOG)


async def _serve(
    server: uvicorn.Server, application: Application, bound: socket.socket, on_ready: Callable[[], object]
) -> int:
    def end(*_: object) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own, and afterwards sends itself the signals again, which would end with their status.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    bound.listen(BACKLOG)
    on_ready()
    beside = [asyncio.create_task(application.batcher.run()), asyncio.create_task(_leave_unread(server))]
    try:
        await server.serve(sockets=[bound])
        return application.open
    finally:
        for task in beside:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def _leave_unread(server: uvicorn.Server) -> None:
    """Wait for no client that does not take its answer, once all answers are made."""
    while not server.should_exit or server.server_state.tasks:
        await asyncio.sleep(0.1)
    await asyncio.sleep(UNREAD_SECONDS)
    server.force_exit = True

"""The process that serves: it listens, and ends when it is told to, with every accepted request answered."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from torch_linformer.errors import InputError
from torch_linformer.serving.application import Application

BACKLOG = 2048  # connections that wait until they are taken
UNREAD_SECONDS = 10.0  # that a client has for taking its answer after the last one was made


def bind(host: str, port: int) -> socket.socket:
    """A socket that has its port and takes no clients yet; port 0 takes a free one."""
    try:
        family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        bound = socket.socket(family)
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


def serve(application: Application, bound: socket.socket, on_ready: Callable[[], object]) -> int:
    """Answer requests until SIGTERM or SIGINT; then take no more, answer those that were taken, and return.

    A second SIGINT ends it at once. ``on_ready`` is called when clients can connect and these signals are heeded.

    Returns:
        How many accepted requests were left without an answer: none, but for a second SIGINT.
    """
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # the application tells what matters
    config = uvicorn.Config(
        application.asgi,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
    )
    return asyncio.run(_serve(uvicorn.Server(config), application, bound, on_ready))


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

"""The socket that clients connect to."""

import asyncio
import socket

from torch_linformer.serving.server import bind


def test_answers_leave_without_delay():
    """Else the second part of each waits for the client's acknowledgment of the first: 40 ms."""

    async def run():
        made = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                made.set_result(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        with bind("127.0.0.1", 0) as bound:
            server = await asyncio.get_running_loop().create_server(Protocol, sock=bound)
            _, writer = await asyncio.open_connection(*bound.getsockname())
            assert await made
            writer.close()
            server.close()

    asyncio.run(run())

"""Requests to an application without a server, as the tests of several folders make them."""

import asyncio
import json


def post(application, path, content):
    """Status and JSON of one request, as an HTTP server hands it to the application."""
    sent = []

    async def run():
        coming = [{"type": "http.request", "body": json.dumps(content).encode(), "more_body": False}]

        async def receive():
            return coming.pop() if coming else await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": ""}
        computing = asyncio.ensure_future(application.batcher.run())
        await application.asgi(scope, receive, send)
        computing.cancel()

    asyncio.run(run())
    return sent[0]["status"], json.loads(sent[1]["body"])

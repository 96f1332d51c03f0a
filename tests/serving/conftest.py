"""Servers in processes of their own, and clients that speak HTTP with them."""

import http.client
import json
import re
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest


class Served:
    """A running `linformer serve`: where it is, and requests to it."""

    def __init__(self, process):
        self.process = process
        self.line = process.stdout.readline()
        found = re.fullmatch(r"serving .+ at http://([\d.]+):(\d+): .+\n", self.line)
        assert found, self.line + process.stderr.read()
        self.host, self.port = found[1], int(found[2])

    def connect(self):
        """A connection of its own, on which nothing was sent."""
        return socket.create_connection((self.host, self.port), timeout=20)

    def ask(self, path, content=None, *, method=None, headers=None):
        """Status, headers and JSON of an answer; ``content`` is sent as JSON unless it is bytes."""
        body = content if content is None or isinstance(content, bytes) else json.dumps(content).encode()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, headers or {})
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.getheader("content-type") == "application/json":
            assert text.count("\n") == 1 and text.endswith("\n")
            text = json.loads(text)
        return SimpleNamespace(status=response.status, headers=response.headers, content=text)

    def refused(self, path, content=None, **options):
        """Status and error of a refusal, which tells a client nothing of the program."""
        found = self.ask(path, content, **options)
        assert found.status >= 400 and list(found.content) == ["error"]
        error = found.content["error"]
        assert list(error) == ["message", "type", "param", "code"]
        assert "Traceback" not in error["message"] and ".py" not in error["message"] and "\n" not in error["message"]
        return found.status, error["code"], error["message"]

    def counts(self):
        """The server's own counts by their names with labels."""
        text = self.ask("/metrics").content
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in text.splitlines() if line[0] != "#"}

    def wait_for(self, name, value):
        """Until a count is there."""
        deadline = time.monotonic() + 20
        while self.counts().get(name, 0) != value:
            assert time.monotonic() < deadline, f"{name} is {self.counts().get(name)}, not {value}"
            time.sleep(0.02)


def begin_request(connection, path, content, sent):
    """Send the headers and the first part of a request; returns the rest of it."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection.sendall(head + body[:sent])
    return body[sent:]


def read_response(connection):
    """Status and JSON of the response on a connection."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    with response:
        return response.status, json.loads(response.read())


@pytest.fixture(scope="session")
def start_server(start_command):
    """A function: start `linformer serve` on a free port."""

    def start(folder, *options):
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        same = ("--port", "0", "--device", "cpu", "--precision", "fp32")
        return Served(start_command("serve", str(folder), *same, *options, **pipes))

    return start


@pytest.fixture(scope="module", autouse=True)
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""

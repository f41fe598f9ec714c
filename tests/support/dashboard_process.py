"""`overlapscope dashboard` as a user starts it: a process of its own, on a free port; and plain HTTP to ask it."""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct, field

from tests.support import forked

_ADDRESS = re.compile(r"https?://\S+")
_PATIENCE_S = 60.0

Process = subprocess.Popen[str] | forked.ForkedProgram


class Served(Struct, frozen=True):
    """A running server."""

    address: str
    """Address that it printed for its user, with the base path and the token."""
    process: Process
    lines: list[str] = field(default_factory=list)
    """Its stderr so far."""

    @property
    def base(self) -> str:
        """The address up to and with the base path, without the page that it opens."""
        parts = urlsplit(self.address)
        return f"{parts.scheme}://{parts.netloc}{parts.path.rpartition('/')[0]}/"

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.address).query)["token"][0]

    @property
    def port(self) -> int:
        port = urlsplit(self.address).port
        assert port is not None
        return port


class HttpResponse(Struct, frozen=True):
    """A server's response."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def ask(
    served: Served,
    path: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes | None = None,
    with_token: bool = True,
) -> HttpResponse:
    """One request, with the headers given and, if `with_token`, the server's token; redirects are not followed."""
    shown = {"Authorization": f"token {served.token}"} if with_token else {}
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    with contextlib.closing(connection):
        connection.request(method, path, body=body, headers=shown | dict(headers or {}))
        response = connection.getresponse()
        return HttpResponse(response.status, response.headers, response.read())


@contextlib.contextmanager
def serve(
    *arguments: str | Path, environment: Mapping[str, str] | None = None, port: int = 0, loaded: bool = False
) -> Iterator[Served]:
    """Yield a server with the given traces and options, until the context ends. With `loaded`, it finds Dash loaded."""
    options = ["-m", "overlapscope", "dashboard", *map(str, arguments), "--no-open", f"--port={port}"]
    reading, writing = os.pipe()
    process: Process
    if loaded:
        process = forked.ForkedProgram(options, Path.cwd(), environment=environment, loaded="dash", stderr=writing)
    else:
        process = subprocess.Popen(
            [sys.executable, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=writing,
            text=True,
            env=os.environ | dict(environment or {}),
        )
    os.close(writing)
    lines: list[str] = []
    arrived: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    stderr = open(reading, encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    threading.Thread(target=_drain, args=(stderr, lines, arrived), daemon=True).start()
    try:
        yield Served(_address(process, lines, arrived), process, lines)
    finally:
        stop(process)
        if isinstance(process, forked.ForkedProgram):
            process.communicate()


def stop(process: Process) -> int:
    """End the server, and return its exit status."""
    if process.poll() is None:
        # Not with SIGINT, which shells make background processes ignore.
        process.send_signal(signal.SIGTERM)
    try:
        return process.wait(timeout=15)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _drain(stderr: IO[str], lines: list[str], arrived: queue.SimpleQueue[str | None]) -> None:
    with stderr:
        for line in stderr:
            lines.append(line.rstrip("\n"))
            arrived.put(line)
    arrived.put(None)


def _address(process: Process, lines: list[str], arrived: queue.SimpleQueue[str | None]) -> str:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            line = arrived.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise AssertionError(f"the server said no address within {_PATIENCE_S:.0f} s: {lines}") from None
        if line is None:
            raise AssertionError(f"the server ended with {process.wait()}: {lines}")
        if match := _ADDRESS.search(line):
            return match[0]

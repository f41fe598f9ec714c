"""Requests to a dashboard that do not come from its own page."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from urllib.parse import quote

from tests.support import kineto_files
from tests.support.dashboard_process import HttpResponse, Served, ask

LIMIT = 500_000
HOSTILE = "<img src=x onerror=window.hacked=1>"
SMALL = json.dumps({"traceEvents": [kineto_files.kernel(1, 5), kineto_files.memcpy(8, 2, correlation=2)]}).encode()


def write_hostile(directory: Path) -> Path:
    """Write `hostile.json`, a trace with markup in its names, and another file beside it."""
    events = [
        kineto_files.call(0, 1, 1, name=f"cudaLaunchKernel{HOSTILE}"),
        kineto_files.kernel(1, 5, name=HOSTILE),
        kineto_files.memcpy(8, 2, correlation=2),
    ]
    kineto_files.write(directory / "hostile.json", events)
    (directory / "secret.txt").write_text("the secret")
    return directory


def upload(served: Served, name: str, body: bytes, *, with_token: bool = True, **headers: str) -> HttpResponse:
    path = f"/api/upload?name={quote(name, safe='')}"
    return ask(served, path, method="POST", headers=headers, body=body, with_token=with_token)


def head_of(served: Served) -> str:
    """Return the lines of a request that show the token."""
    return f"Host: localhost\r\nAuthorization: token {served.token}\r\n"


def raw(served: Served, request: bytes) -> bytes:
    """Bytes sent as they are, then no more; everything that comes back."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)

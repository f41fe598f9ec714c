"""Prometheus: a file for the textfile collector of node_exporter, or a port of this machine's own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from overlapscope.base import disk
from overlapscope.base.exposition import CONTENT_TYPE, family, text
from overlapscope.base.words import clean
from overlapscope.errors import UsageError
from overlapscope.watching.sinks import Send, Told

_UNITS: Final = (
    ("_pct", "ratio", 100),
    ("_ms", "seconds", 1000),
    ("_gb_per_s", "bytes_per_second", 1e-9),
)
"""How the name of a figure ends, its base unit, and what to divide by."""
_PATIENCE_S = 10.0
"""For somebody who asks and does not read."""


def binder(target: str) -> Callable[[], Send]:
    """For a port's number or a file's name. Raises UsageError for any other."""
    if target.isdecimal():
        if not 0 < int(target) < 1 << 16:
            raise UsageError(f"prometheus:{target} is no port; ports are from 1 to 65535.")
        return lambda: _port(int(target))
    path = Path(target).expanduser().absolute()
    if path.suffix != ".prom":
        raise UsageError(f"prometheus:{target} is neither a port nor a file that ends in .prom.")
    return lambda: lambda told: disk.write(path, [exposition(told).encode()])


def exposition(told: Told) -> str:
    """The figures as text, in base units."""
    labels = {"program": clean(told.program, 200)}
    lines = [
        *family("overlapscope_steps_made", "Steps made before the end of the last recording.", [(labels, told.step)]),
        *family(
            "overlapscope_recorded_seconds",
            "When the last recording was made, in seconds since 1970.",
            [(labels, told.at_ns / 1e9)],
            unit="seconds",
        ),
    ]
    for name, value in told.scalars.items():
        stem, unit, divisor = _base(name)
        full = f"overlapscope_{stem}" + (f"_{unit}" if unit else "")
        lines += family(full, f"{name} of a step in the last recording.", [(labels, value / divisor)], unit=unit)
    return text(lines)


def _base(name: str) -> tuple[str, str | None, float]:
    for ending, unit, divisor in _UNITS:
        if name.endswith(ending):
            return name.removesuffix(ending), unit, divisor
    return name, None, 1.0


_pages: dict[int, _Page] = {}
"""By port: one of each in a process."""


def _port(number: int) -> Send:
    page = _pages.get(number)
    if page is None:
        page = _pages[number] = _Page(number)
    return page.show


class _Page:
    """Answers on 127.0.0.1 alone with what was recorded last."""

    def __init__(self, port: int) -> None:
        """Raises OSError where the port is taken."""
        page = self
        self._body = text([]).encode()

        class Handler(BaseHTTPRequestHandler):
            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                body = page._body
                self.send_response(200 if self.path == "/metrics" else 404)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        # A child that is forked would hold the port when this process has gone.
        os.register_at_fork(after_in_child=server.socket.close)
        threading.Thread(target=server.serve_forever, name="overlapscope", daemon=True).start()

    def show(self, told: Told) -> None:
        """From now on."""
        self._body = exposition(told).encode()

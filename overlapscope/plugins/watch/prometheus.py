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
from overlapscope.plugins.watch.sinks import Send, SentFigures

_UNITS: Final = (
    ("_pct", "ratio", 100),
    ("_ms", "seconds", 1000),
    ("_gb_per_s", "bytes_per_second", 1e-9),
)
"""Endings of names of figures, each with its base unit and the divisor for it."""
_PATIENCE_S = 10.0
"""Timeout of a connection, in seconds."""


def binder(target: str) -> Callable[[], Send]:
    """Return a function that binds a port or a file. Raises UsageError for other targets."""
    if target.isdecimal():
        if not 0 < int(target) < 1 << 16:
            raise UsageError(f"prometheus:{target} is not a port; ports are from 1 to 65535.")
        return lambda: _port(int(target))
    path = Path(target).expanduser().absolute()
    if path.suffix != ".prom":
        raise UsageError(f"prometheus:{target} is neither a port nor a file that ends in .prom.")
    return lambda: lambda figures: disk.write(path, [exposition(figures).encode()])


def exposition(figures: SentFigures) -> str:
    """Return the figures as text, in base units."""
    labels = {"program": clean(figures.program, 200)}
    lines = [
        *family(
            "overlapscope_steps_made", "Steps made before the end of the last recording.", [(labels, figures.step)]
        ),
        *family(
            "overlapscope_recorded_seconds",
            "When the last recording was made, in seconds since 1970.",
            [(labels, figures.at_ns / 1e9)],
            unit="seconds",
        ),
    ]
    for name, value in figures.scalars.items():
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
"""Pages of this process, by port."""


def _port(number: int) -> Send:
    page = _pages.get(number)
    if page is None:
        page = _pages[number] = _Page(number)
    return page.show


class _Page:
    """A server on 127.0.0.1 that answers with the figures of the latest recording."""

    def __init__(self, port: int) -> None:
        """Start the server. Raises OSError if the port is in use."""
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
        # A forked child would keep the port in use after the end of this process.
        os.register_at_fork(after_in_child=server.socket.close)
        threading.Thread(target=server.serve_forever, name="overlapscope", daemon=True).start()

    def show(self, figures: SentFigures) -> None:
        """Show these figures."""
        self._body = exposition(figures).encode()

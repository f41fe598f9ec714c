"""The WSGI server: waitress, which needs nothing in front of it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import flask
from waitress.server import create_server

from overlapscope.errors import UsageError

DEFAULT_PORT = 8050
_THREADS = 16
"""A browser opens some six connections; ten of them must not wait for one another."""

Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(self, app: flask.Flask, *, host: str, port: int | None, base: str, body_bytes: int) -> None:
        """`port` None takes the usual one, or any free one where that is taken; 0 takes any free one.

        Raises UsageError where the address cannot be had.
        """
        wanted = [DEFAULT_PORT, 0] if port is None else [port]
        for one in wanted:
            try:
                self._server = create_server(
                    without_base(app.wsgi_app, base),
                    host=host,
                    port=one,
                    threads=_THREADS,
                    max_request_body_size=body_bytes,
                    ident=None,
                )
                break
            except OSError as error:
                if one == wanted[-1]:
                    raise UsageError(
                        f"port {one} of {host} cannot be had ({error.strerror or error}); choose another with --port."
                    ) from None
        self.host, self.base = host, base
        self.port = int(getattr(self._server, "effective_port", 0) or self._server.effective_listen[0][1])

    @property
    def url(self) -> str:
        """The address to open on this machine."""
        everywhere = self.host in ("0.0.0.0", "::")
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{'127.0.0.1' if everywhere else name}:{self.port}{self.base}"

    def run(self) -> None:
        """Answer until Ctrl-C, or until the process is asked to end (SIGTERM). Main thread only."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise SystemExit

        before = signal.signal(signal.SIGTERM, stop)
        try:
            # Ends on either exception, and keeps it to itself.
            self._server.run()
        finally:
            signal.signal(signal.SIGTERM, before)

    def run_aside(self) -> None:
        """Answer in a thread until the process ends."""
        threading.Thread(target=self._server.run, name="overlapscope-server", daemon=True).start()


def without_base(app: Wsgi, base: str) -> Wsgi:
    """The application below a path. A proxy may pass that path on or leave it out: both are understood."""

    def call(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if f"{path}/".startswith(base):
            environ = environ | {"PATH_INFO": f"/{path[len(base) :]}"}
        return app(environ, start)

    return call

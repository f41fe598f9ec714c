"""The WSGI server: waitress, which needs nothing in front of it."""

from __future__ import annotations

import copy
import logging
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import flask
from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, create_server
from werkzeug.wrappers import Request

from overlapscope.errors import UsageError

DEFAULT_PORT = 8050
_THREADS = 16
"""A browser opens some six connections; ten of them must not wait for one another."""

_SMALL_BODY_BYTES = 16 << 20
"""What any request may bring: more than the page itself ever sends."""
_ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

Admits = Callable[[Request], bool]
"""Whether a request, of which only the head has come, may bring more."""
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(
        self,
        app: flask.Flask,
        *,
        host: str,
        port: int | None,
        base: str,
        body_bytes: int,
        admits: Admits = lambda request: True,
    ) -> None:
        """`port` None takes the usual one, or any free one where that is taken; 0 takes any free one. Bodies of
        `body_bytes` are taken where `admits` says so; what is a little larger the application refuses itself.

        Raises UsageError where the address cannot be had.
        """
        # That requests wait for a moment on a busy machine is nothing that anyone can act on.
        logging.getLogger("waitress.queue").setLevel(logging.ERROR)
        wanted = [DEFAULT_PORT, 0] if port is None else [port]
        for one in wanted:
            sockets: dict[int, Any] = {}
            try:
                self._server = create_server(
                    without_base(app.wsgi_app, base),
                    map=sockets,
                    host=host,
                    port=one,
                    threads=_THREADS,
                    max_request_body_size=_SMALL_BODY_BYTES,
                    ident=None,
                )
                break
            except OSError as error:
                if one == wanted[-1]:
                    raise UsageError(
                        f"port {one} of {host} cannot be had ({error.strerror or error}); choose another with --port."
                    ) from None
            except ValueError:
                # What waitress makes of a name that cannot be resolved.
                raise UsageError(f"{host}: is no address of this machine; choose another with --host.") from None
        for server in sockets.values():
            if isinstance(server, BaseWSGIServer):
                server.channel_class = _channel(admits, _SMALL_BODY_BYTES + body_bytes)
        self.host, self.base = host, base
        self.port = int(getattr(self._server, "effective_port", 0) or self._server.effective_listen[0][1])

    @property
    def url(self) -> str:
        """The address to open on this machine."""
        everywhere = self.host in ("0.0.0.0", "::")
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{'127.0.0.1' if everywhere else name}:{self.port}{self.base}"

    def run(self) -> None:
        """Answer until Ctrl-C, or until the process is asked to end or its terminal goes. Main thread only."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise SystemExit

        # One that is ignored stays so: under nohup the server outlives its terminal.
        before = {one: signal.getsignal(one) for one in _ENDS if signal.getsignal(one) != signal.SIG_IGN}
        for one in before:
            signal.signal(one, stop)
        try:
            # Ends on either exception, and keeps it to itself.
            self._server.run()
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    def run_aside(self) -> None:
        """Answer in a thread until the process ends."""
        threading.Thread(target=self._server.run, name="overlapscope-server", daemon=True).start()


def _channel(admits: Admits, body_bytes: int) -> type[HTTPChannel]:
    """Connections that take a large body only where the head of its request says that it may come.

    Waitress stores a body whole before the application is asked, so that anybody could fill the disk otherwise.
    """

    class Parser(HTTPRequestParser):  # type: ignore[misc]
        adj: Any

        def parse_header(self, header_plus: bytes) -> None:
            super().parse_header(header_plus)
            head = {f"HTTP_{name}": value for name, value in self.headers.items()}
            if admits(Request({"REQUEST_METHOD": self.command, "PATH_INFO": self.path, **head})):
                self.adj = copy.copy(self.adj)
                self.adj.max_request_body_size = body_bytes

    class Channel(HTTPChannel):  # type: ignore[misc]
        parser_class = Parser

    return Channel


def without_base(app: Wsgi, base: str) -> Wsgi:
    """The application below a path. A proxy may pass that path on or leave it out: both are understood."""

    def call(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if f"{path}/".startswith(base):
            environ = environ | {"PATH_INFO": f"/{path[len(base) :]}"}
        return app(environ, start)

    return call

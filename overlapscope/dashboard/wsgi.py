"""The WSGI server: waitress, which needs nothing in front of it."""

from __future__ import annotations

import functools
import hmac
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

import flask
from waitress.server import BaseWSGIServer, create_server
from werkzeug.wrappers import Request

from overlapscope.dashboard.connections import Connection, close_late
from overlapscope.errors import UsageError

DEFAULT_PORT = 8050
_THREADS = 16
"""A browser opens some six connections; ten of them must not wait for one another."""
_HEAD_BYTES = 64 << 10
_LAST_S = 0.5
"""So long the server waits at its end for what it is answering. What waits for a trace to be read may take minutes."""
_ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

BodyBytes = Callable[[Request, int], int]
"""How many bytes a request may bring of which only the head has come, 0 where it is not to be answered; the number is
that of the bytes that other requests bring now."""
Wsgi = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(self, app: flask.Flask, *, host: str, port: int | None, base: str, body_bytes: BodyBytes) -> None:
        """`port` None takes the usual one, or any free one where that is taken; 0 takes any free one.

        Raises UsageError where the address cannot be had.
        """
        # That requests wait for a moment on a busy machine, or are cut off at the end, is nothing to act on.
        logging.getLogger("waitress").setLevel(logging.ERROR)
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
                    max_request_header_size=_HEAD_BYTES,
                    # An answer that is read slowly waits on the disk, not in a thread.
                    outbuf_high_watermark=sys.maxsize,
                    # `Connection` sees to how many there are, and `close_late` to how long.
                    connection_limit=sys.maxsize,
                    cleanup_interval=1,
                    asyncore_use_poll=True,
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
        self.host, self.base = host, base
        self.port = int(getattr(self._server, "effective_port", 0) or self._server.effective_listen[0][1])

        def allowed(head: dict[str, Any], coming_bytes: int) -> int:
            return body_bytes(Request(below(head, base)), coming_bytes)

        dispatcher = self._server.task_dispatcher
        dispatcher.shutdown = functools.partial(dispatcher.shutdown, timeout=_LAST_S)
        for server in sockets.values():
            if isinstance(server, BaseWSGIServer):
                server.channel_class = functools.partial(Connection, allowed)
                server.maintenance = functools.partial(close_late, server)

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


def without_base(app: Wsgi, base: str) -> Wsgi:
    """The application below a path. A proxy may pass that path on or leave it out: both are understood."""
    return lambda environ, start: app(below(environ, base), start)


def below(environ: dict[str, Any], base: str) -> dict[str, Any]:
    """A request, with its path below the base path where it has that."""
    path = environ.get("PATH_INFO", "")
    # In constant time: the path may be a secret.
    if not hmac.compare_digest(f"{path}/"[: len(base)].encode(), base.encode()):
        return environ
    return environ | {"SCRIPT_NAME": base.rstrip("/"), "PATH_INFO": f"/{path[len(base) :]}"}

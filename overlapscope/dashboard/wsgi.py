"""The WSGI server: waitress, which needs no server in front of it, with limits on each connection.

Waitress closes a connection only after a while without any byte, so that a byte now and then keeps it open for ever,
and accepts no more connections once there are many. Here, the head of a request has a deadline, every byte of a body or
an answer extends the deadline a little, and slow senders and readers are cut off. Connections that have not shown the
token make room for others, and never displace those that have.
"""

from __future__ import annotations

import copy
import functools
import hmac
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, create_server
from werkzeug.wrappers import Request

from overlapscope.base import clock
from overlapscope.errors import UsageError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

DEFAULT_PORT = 8050
_THREADS = 16
"""Number of threads. A browser opens some six connections; ten browsers must not wait for each other."""
_HEAD_BYTES = 64 << 10
_LAST_S = 0.5
"""Seconds that the server, at its end, waits for answers in progress. An answer that waits for a trace may take
minutes."""
_ENDS = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]

BodyBytes = Callable[[Request, int], int]
"""Returns the number of bytes that a request's body may have, 0 if the request is refused. It gets the head, and the
number of bytes that other requests are sending."""


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(self, app: WSGIApplication, *, host: str, port: int | None, base: str, body_bytes: BodyBytes) -> None:
        """Bind to an address: port None means the usual port, or any free port if that is taken; 0 any free port.

        Raises:
            UsageError: The address is not available.
        """
        # Waitress warns of requests that wait on a busy machine or are cut off at the end, which need no action.
        logging.getLogger("waitress").setLevel(logging.ERROR)
        self.host, self.base = host, base

        # A proxy may pass the base path on or leave it out: both work.
        def serve(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
            return app(below(environ, base), start)

        self._server, sockets = _bound(serve, host, port)
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
        """Answer until Ctrl-C, until asked to end, or until the terminal closes. For the main thread."""

        def stop(number: int, frame: FrameType | None) -> None:
            raise SystemExit

        # Ignored signals stay ignored: under nohup, the server outlives its terminal.
        before = {number: signal.getsignal(number) for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN}
        for ending in before:
            signal.signal(ending, stop)
        try:
            # Waitress ends on either exception and doesn't raise it again.
            self._server.run()
        finally:
            for ending, handler in before.items():
                signal.signal(ending, handler)

    def run_aside(self) -> None:
        """Answer in a thread until the process ends."""
        threading.Thread(target=self._server.run, name="overlapscope-server", daemon=True).start()


def _bound(app: WSGIApplication, host: str, port: int | None) -> tuple[Any, dict[int, Any]]:
    """Return waitress's server of an address (`Listening`), and its sockets."""
    if port is None:
        with suppress(UsageError):
            return _bound(app, host, DEFAULT_PORT)
    sockets: dict[int, Any] = {}
    try:
        server = create_server(
            app,
            map=sockets,
            host=host,
            port=port or 0,
            threads=_THREADS,
            max_request_header_size=_HEAD_BYTES,
            # An answer that is read slowly waits on the disk, not in a thread.
            outbuf_high_watermark=sys.maxsize,
            # `Connection` limits the number of connections, and `close_late` their length.
            connection_limit=sys.maxsize,
            cleanup_interval=LOOK_S,
            asyncore_use_poll=True,
            ident=None,
        )
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(f"port {port} of {host} cannot be had ({reason}); choose another with --port.") from None
    except ValueError:
        # Waitress raises this for a name that cannot be resolved.
        raise UsageError(f"{host}: is no address of this machine; choose another with --host.") from None
    return server, sockets


def below(environ: dict[str, Any], base: str) -> dict[str, Any]:
    """Return a request's environment with the base path, if present, moved from its path to `SCRIPT_NAME`."""
    path = environ.get("PATH_INFO", "")
    # Compare in constant time, because the path may be a secret.
    if not hmac.compare_digest(f"{path}/"[: len(base)].encode(), base.encode()):
        return environ
    return environ | {"SCRIPT_NAME": base.rstrip("/"), "PATH_INFO": f"/{path[len(base) :]}"}


# -- Connections -----------------------------------------------------------------------------------

MOST = 128
"""Maximum number of connections. Each takes one or two file descriptors; some systems give a process 256."""
LOOK_S = 1
"""Seconds between checks for connections that have lasted too long."""
HEAD_NS = 10 * clock.NS_PER_S
"""Time for a complete head, from the start of the connection or the first byte of its next request."""
PATIENCE_NS = 60 * clock.NS_PER_S
"""Time without a request, or without a byte of a body or an answer."""
LEAST_BYTES_PER_S = 1_000
"""Slower bodies and answers last no longer than `PATIENCE_NS`."""
_NEVER_NS = sys.maxsize

Allowed = Callable[[dict[str, Any], int], int]
"""Returns the number of bytes that a request's body may have, 0 if the application will refuse the request. It gets the
head as a WSGI environment, and the number of bytes that other requests are sending."""


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """A parser that reads a body only as far as the head allows.

    Waitress stores the whole body before it asks the application, so that strangers could fill the disk.
    """

    adj: Any
    body_rcv: Any
    is_welcome = False
    """True if the head shows that the request may be answered."""

    def __init__(self, adj: Any, server: BaseWSGIServer, allowed: Allowed) -> None:
        super().__init__(adj)
        self._server = server
        self._allowed = allowed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the head, then decide how much of a body may follow."""
        super().parse_header(header_plus)
        bytes_allowed = self._allowed(self._environ(), self._coming_bytes())
        self.is_welcome = bytes_allowed > 0
        if self.is_welcome:
            self.adj = copy.copy(self.adj)
            self.adj.max_request_body_size = bytes_allowed
        elif self.body_rcv is not None:
            self._drop_body()

    def _environ(self) -> dict[str, Any]:
        """Return the head as a WSGI environment, as far as the decision needs it."""
        headers = {f"HTTP_{name}": value for name, value in self.headers.items()}
        port = str(self._server.effective_port)
        return headers | {"REQUEST_METHOD": self.command, "PATH_INFO": self.path, "SERVER_PORT": port}

    def _coming_bytes(self) -> int:
        """Return the size of the bodies that other requests are sending."""
        requests = [channel.request for channel in self._server.active_channels.values()]
        others = [request for request in requests if request not in (None, self)]
        return sum(max(request.content_length, request.body_bytes_received) for request in others)

    def _drop_body(self) -> None:
        """Ignore everything after the head, above all another request: the answer closes the connection."""
        self.body_rcv, self.content_length, self.expect_continue = None, 0, False
        self.headers["CONNECTION"] = "close"


class Connection(HTTPChannel):  # type: ignore[misc]
    """A connection with a deadline."""

    def __init__(self, allowed: Allowed, server: BaseWSGIServer, *arguments: Any, **more: Any) -> None:
        self._allowed = allowed
        self.is_welcome = False
        """True if a request on it could be answered."""
        self._is_cut = False
        self._until_ns = clock.now_ns() + HEAD_NS
        super().__init__(server, *arguments, **more)
        if len(server.active_channels) > MOST:
            self._make_room()

    def _make_room(self) -> None:
        """Cut the waiting connection that is due first, preferring those that have not shown the token."""
        others = [channel for channel in self.server.active_channels.values() if channel is not self]
        waiting = [channel for channel in others if channel.is_waiting]
        min(waiting, key=lambda channel: (channel.is_welcome, channel.due_ns), default=self).cut()

    def parser_class(self, adj: Any) -> _Parser:
        """Return a parser for the next request."""
        return _Parser(adj, self.server, self._allowed)

    @property
    def is_waiting(self) -> bool:
        """True if the other side has to act next."""
        return not self.requests and not self._is_cut

    @property
    def due_ns(self) -> int:
        """Time at which it is closed unless bytes move, in nanoseconds of `base.clock`."""
        return self._until_ns

    def cut(self) -> None:
        """End the connection for both sides.

        Waitress then closes the socket itself, because the next connection may get the same number.
        """
        self._is_cut = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def received(self, data: bytes) -> bool:
        """Take bytes of requests."""
        now_ns = clock.now_ns()
        had_head = self._has_head()
        if had_head:
            self._moved(len(data), now_ns)
        elif self.request is None:
            self._until_ns = min(self._until_ns, now_ns + HEAD_NS)
        done: bool = super().received(data)
        if not had_head and self._has_head():
            self._until_ns = now_ns + PATIENCE_NS
        requests = [request for request in (*self.requests, self.request) if request is not None]
        self.is_welcome = self.is_welcome or any(request.is_welcome for request in requests)
        return done

    def _has_head(self) -> bool:
        """Return whether the head of the request that is coming in is complete."""
        return self.request is not None and bool(self.request.headers_finished)

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send bytes of an answer and return how many the other side took."""
        sent: int = super().send(data, do_close)
        self._moved(sent, clock.now_ns())
        return sent

    def service(self) -> None:
        """Have a request answered, without a deadline."""
        self._until_ns = _NEVER_NS
        super().service()
        self._until_ns = clock.now_ns() + PATIENCE_NS

    def _moved(self, count: int, now_ns: int) -> None:
        if self.is_waiting:
            bought_ns = count * clock.NS_PER_S // LEAST_BYTES_PER_S
            self._until_ns = min(self._until_ns + bought_ns, now_ns + PATIENCE_NS)


def close_late(server: BaseWSGIServer, now: float) -> None:
    """Close a server's connections that are past their deadline. `now` is waitress's time, which is not used."""
    for channel in list(server.active_channels.values()):
        if channel.is_waiting and channel.due_ns < clock.now_ns():
            channel.cut()

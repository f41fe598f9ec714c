"""The WSGI server: waitress, which needs nothing in front of it, with connections that hold up nobody else.

Waitress closes a connection on which nothing at all moved for a while, so that a byte now and then keeps it for ever,
and accepts no more once there are many. Here a request's head has to come in time, every byte of a body or an answer
buys a little more of it, who sends or takes too slowly is cut off, strangers make room for others, and who has shown
the token is never closed for who has not.
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
from collections.abc import Callable
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
    from _typeshed.wsgi import WSGIApplication

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


class Listening:
    """A server that has its address; it answers once it is run."""

    def __init__(self, app: WSGIApplication, *, host: str, port: int | None, base: str, body_bytes: BodyBytes) -> None:
        """`port` None takes the usual one, or any free one where that is taken; 0 takes any free one.

        Raises UsageError where the address cannot be had.
        """
        # That requests wait for a moment on a busy machine, or are cut off at the end, is nothing to act on.
        logging.getLogger("waitress").setLevel(logging.ERROR)
        wanted = [DEFAULT_PORT, 0] if port is None else [port]
        for number in wanted:
            sockets: dict[int, Any] = {}
            try:
                self._server = create_server(
                    # A proxy may pass the base path on or leave it out: both are understood.
                    lambda environ, start: app(below(environ, base), start),
                    map=sockets,
                    host=host,
                    port=number,
                    threads=_THREADS,
                    max_request_header_size=_HEAD_BYTES,
                    # An answer that is read slowly waits on the disk, not in a thread.
                    outbuf_high_watermark=sys.maxsize,
                    # `Connection` sees to how many there are, and `close_late` to how long.
                    connection_limit=sys.maxsize,
                    cleanup_interval=LOOK_S,
                    asyncore_use_poll=True,
                    ident=None,
                )
                break
            except OSError as error:
                if number == wanted[-1]:
                    raise UsageError(
                        f"port {number} of {host} cannot be had ({error.strerror or error}); choose another with "
                        "--port."
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
        before = {number: signal.getsignal(number) for number in _ENDS if signal.getsignal(number) != signal.SIG_IGN}
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


def below(environ: dict[str, Any], base: str) -> dict[str, Any]:
    """A request, with its path below the base path where it has that."""
    path = environ.get("PATH_INFO", "")
    # In constant time: the path may be a secret.
    if not hmac.compare_digest(f"{path}/"[: len(base)].encode(), base.encode()):
        return environ
    return environ | {"SCRIPT_NAME": base.rstrip("/"), "PATH_INFO": f"/{path[len(base) :]}"}


# -- its connections ------------------------------------------------------------------------------

MOST = 128
"""Connections of a server. Each takes a file descriptor, or a second one for what waits on the disk; some systems
give a process 256."""
LOOK_S = 1
"""Seconds between two looks for connections that have lasted too long."""
_NS_PER_S = 1_000_000_000
HEAD_NS = 10 * _NS_PER_S
"""From the first moment of a connection, or the first byte of another request on it, until the head is whole."""
PATIENCE_NS = 60 * _NS_PER_S
"""Without a byte of a body or an answer, or with no request at all."""
LEAST_BYTES_PER_S = 1_000
"""A body or an answer that moves no faster lasts no longer than `PATIENCE_NS`."""
_NEVER_NS = sys.maxsize

Allowed = Callable[[dict[str, Any], int], int]
"""How many bytes a request may bring, from its head as a WSGI environment, while others bring so many; 0 where it is
refused, which the application does."""


class _Parser(HTTPRequestParser):  # type: ignore[misc]
    """A request that is read as far as its head allows.

    Waitress stores a body whole before the application is asked, so that anybody could fill the disk otherwise.
    """

    adj: Any
    body_rcv: Any
    known = False
    """Whether the head shows that it may be answered."""

    def __init__(self, adj: Any, server: BaseWSGIServer, allowed: Allowed) -> None:
        super().__init__(adj)
        self._server = server
        self._allowed = allowed

    def parse_header(self, header_plus: bytes) -> None:
        super().parse_header(header_plus)
        head = {f"HTTP_{name}": value for name, value in self.headers.items()}
        port = str(self._server.effective_port)
        head |= {"REQUEST_METHOD": self.command, "PATH_INFO": self.path, "SERVER_PORT": port}
        others = [
            channel.request for channel in self._server.active_channels.values() if channel.request not in (None, self)
        ]
        coming_bytes = sum(max(request.content_length, request.body_bytes_received) for request in others)
        bytes_allowed = self._allowed(head, coming_bytes)
        self.known = bytes_allowed > 0
        if self.known:
            self.adj = copy.copy(self.adj)
            self.adj.max_request_body_size = bytes_allowed
        elif self.body_rcv is not None:
            # What follows is not looked at, least of all as another request: the answer closes the connection.
            self.body_rcv, self.content_length, self.expect_continue = None, 0, False
            self.headers["CONNECTION"] = "close"


class Connection(HTTPChannel):  # type: ignore[misc]
    """A connection and how long it may last."""

    def __init__(self, allowed: Allowed, server: BaseWSGIServer, *arguments: Any, **more: Any) -> None:
        self._allowed = allowed
        self.known = False
        """Whether a request on it could be answered."""
        self._is_cut = False
        self._until_ns = clock.now_ns() + HEAD_NS
        super().__init__(server, *arguments, **more)
        if len(server.active_channels) > MOST:
            waiting = [
                channel for channel in server.active_channels.values() if channel is not self and channel.is_waiting
            ]
            # The one that has been here longest without having shown the token, else the one that is due first.
            min(waiting, key=lambda channel: (channel.known, channel.due_ns), default=self).cut()

    def parser_class(self, adj: Any) -> _Parser:
        """A parser of the next request."""
        return _Parser(adj, self.server, self._allowed)

    @property
    def is_waiting(self) -> bool:
        """Whether what comes next is the other side's to do."""
        return not self.requests and not self._is_cut

    @property
    def due_ns(self) -> int:
        """Time at which it is closed, unless something moves; in nanoseconds of `base.clock`."""
        return self._until_ns

    def cut(self) -> None:
        """Ends it for both sides; then waitress closes it in its own time, for the next one takes over its number."""
        self._is_cut = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def received(self, data: bytes) -> bool:
        """Takes bytes of requests."""
        now_ns = clock.now_ns()
        if self.request is None:
            self._until_ns = min(self._until_ns, now_ns + HEAD_NS)
        elif self.request.headers_finished:
            self._moved(len(data), now_ns)
        in_head = self.request is None or not self.request.headers_finished
        done: bool = super().received(data)
        if in_head and self.request is not None and self.request.headers_finished:
            self._until_ns = now_ns + PATIENCE_NS
        self.known = self.known or any(
            request.known for request in (*self.requests, self.request) if request is not None
        )
        return done

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Gives bytes of an answer, as many as the other side takes."""
        sent: int = super().send(data, do_close)
        self._moved(sent, clock.now_ns())
        return sent

    def service(self) -> None:
        """Has a request answered, however long that takes."""
        self._until_ns = _NEVER_NS
        super().service()
        self._until_ns = clock.now_ns() + PATIENCE_NS

    def _moved(self, count: int, now_ns: int) -> None:
        if self.is_waiting:
            bought_ns = count * _NS_PER_S // LEAST_BYTES_PER_S
            self._until_ns = min(self._until_ns + bought_ns, now_ns + PATIENCE_NS)


def close_late(server: BaseWSGIServer, now: float) -> None:
    """Close the connections of a server that have lasted too long. `now` is waitress's time, which is not used."""
    for channel in list(server.active_channels.values()):
        if channel.is_waiting and channel.due_ns < clock.now_ns():
            channel.cut()

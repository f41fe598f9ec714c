"""Connections that hold up nobody else: who sends or takes too slowly is cut off, and strangers make room for others.

Waitress closes a connection on which nothing at all moved for a while, so that a byte now and then keeps it for ever,
and accepts no more once there are many. Here a request's head has to come in time, every byte of a body or an answer
buys a little more of it, and who has shown the token is never closed for who has not.
"""

from __future__ import annotations

import copy
import math
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer

MOST = 128
"""Connections of a server. Each takes a file descriptor, or a second one for what waits on the disk; some systems
give a process 256."""
HEAD_S = 10.0
"""From the first moment of a connection, or the first byte of another request on it, until the head is whole."""
PATIENCE_S = 60.0
"""Without a byte of a body or an answer, or with no request at all."""
LEAST_BYTES_PER_S = 1_000
"""A body or an answer that moves no faster lasts no longer than `PATIENCE_S`."""

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
        others = [one.request for one in self._server.active_channels.values() if one.request not in (None, self)]
        coming_bytes = sum(max(one.content_length, one.body_bytes_received) for one in others)
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
        self._until_s = time.monotonic() + HEAD_S
        super().__init__(server, *arguments, **more)
        if len(server.active_channels) > MOST:
            waiting = [one for one in server.active_channels.values() if one is not self and one.is_waiting]
            # The one that has been here longest without having shown the token, else the one that is due first.
            min(waiting, key=lambda one: (one.known, one.due_s), default=self).cut()

    def parser_class(self, adj: Any) -> _Parser:
        """A parser of the next request."""
        return _Parser(adj, self.server, self._allowed)

    @property
    def is_waiting(self) -> bool:
        """Whether what comes next is the other side's to do."""
        return not self.requests and not self._is_cut

    @property
    def due_s(self) -> float:
        """When it is closed, unless something moves."""
        return self._until_s

    def cut(self) -> None:
        """Ends it for both sides; then waitress closes it in its own time, for the next one takes over its number."""
        self._is_cut = True
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)

    def received(self, data: bytes) -> bool:
        """Takes bytes of requests."""
        now = time.monotonic()
        if self.request is None:
            self._until_s = min(self._until_s, now + HEAD_S)
        elif self.request.headers_finished:
            self._moved(len(data), now)
        in_head = self.request is None or not self.request.headers_finished
        done: bool = super().received(data)
        if in_head and self.request is not None and self.request.headers_finished:
            self._until_s = now + PATIENCE_S
        self.known = self.known or any(one.known for one in (*self.requests, self.request) if one is not None)
        return done

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Gives bytes of an answer, as many as the other side takes."""
        sent: int = super().send(data, do_close)
        self._moved(sent, time.monotonic())
        return sent

    def service(self) -> None:
        """Has a request answered, however long that takes."""
        self._until_s = math.inf
        super().service()
        self._until_s = time.monotonic() + PATIENCE_S

    def _moved(self, count: int, now: float) -> None:
        if self.is_waiting:
            self._until_s = min(self._until_s + count / LEAST_BYTES_PER_S, now + PATIENCE_S)


def close_late(server: BaseWSGIServer, now: float) -> None:
    """Closes the connections of a server that have lasted too long; `now` is the time that waitress goes by."""
    for one in list(server.active_channels.values()):
        if one.is_waiting and one.due_s < time.monotonic():
            one.cut()

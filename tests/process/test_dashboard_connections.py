"""Connections that send or take too slowly: a real server, real sockets, and a clock that tests move.

One test has the real clock.
"""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import threading
import time
from collections.abc import Iterator

import flask
import pytest

from overlapscope.base import clock
from overlapscope.dashboard import security, wsgi
from overlapscope.dashboard.wsgi import Listening
from tests.support.fake_clock import NS_PER_MS, FakeClock

TOKEN = "known to the test"
LARGE = 64 << 20
"""More than what lies between a server and who does not read."""
KNOWN = f"Host: localhost\r\nAuthorization: token {TOKEN}\r\n"
HEAD_S, PATIENCE_S = 10, 60
"""Time that the server waits for a head, and for anything else."""


class InProcessServer:
    """A server in this process."""

    def __init__(self) -> None:
        app = flask.Flask(__name__)
        security.guard(app, token=TOKEN, base="/")
        app.add_url_rule("/", "short", lambda: "here")
        app.add_url_rule("/large", "large", self._large)
        app.add_url_rule("/late", "late", self._late)
        app.add_url_rule("/length", "length", lambda: str(len(flask.request.get_data())), methods=["POST"])
        listening = Listening(
            app,
            host="127.0.0.1",
            port=0,
            base="/",
            body_bytes=lambda request, coming: 0 if security.refusal(request, TOKEN) else 1 << 20,
        )
        listening.run_aside()
        self.port = listening.port
        self.clock = FakeClock()
        self.large_was_given = threading.Event()
        """The application has given a large answer to the server, which sends it."""

    def passes(self, s: int) -> None:
        """Let so many seconds pass, and have the server look for connections that have lasted too long.

        Whatever was sent to it before is read before.
        """
        ask(self.port)
        self.clock.wait(s=s)
        ask(self.port)

    def _large(self) -> flask.Response:
        response = flask.Response(bytes(LARGE))
        response.call_on_close(self.large_was_given.set)
        return response

    def _late(self) -> str:
        self.passes(s=2 * PATIENCE_S)
        return "late"


@pytest.fixture(scope="module")
def server() -> Iterator[InProcessServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wsgi, "MOST", 40)
        patch.setattr(wsgi, "LOOK_S", 0)
        served = InProcessServer()
        patch.setattr(clock, "now_ns", served.clock)
        yield served


@pytest.fixture
def port(server: InProcessServer) -> int:
    return server.port


@contextlib.contextmanager
def connected(port: int, sent: str = "") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(sent.encode())
        yield connection


def rest(connection: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 20):
            parts.append(part)
    return b"".join(parts)


def is_open(connection: socket.socket) -> bool:
    """Return whether the server has neither sent anything nor closed the connection."""
    return not select.select([connection], [], [], 0)[0]


def answered(connection: socket.socket) -> None:
    """Wait for an answer that leaves the connection open."""
    received = b""
    while not received.endswith(b"here"):
        part = connection.recv(1 << 16)
        assert part
        received += part


def ask(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"Authorization": f"token {TOKEN}"})
        response = connection.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize(
    ("sent", "until_s"),
    [
        ("", HEAD_S),
        ("GET / HTTP/1.1\r\nHost: local", HEAD_S),
        (f"GET / HTTP/1.1\r\n{KNOWN}", HEAD_S),
        (f"POST /length HTTP/1.1\r\n{KNOWN}Content-Length: 1000\r\n\r\nabc", PATIENCE_S),
    ],
    ids=["nothing", "half a head", "half a head with the token", "half a body"],
)
def test_what_does_not_go_on_is_closed(server: InProcessServer, sent: str, until_s: int) -> None:
    with connected(server.port, sent) as connection:
        server.passes(s=until_s - 1)
        assert is_open(connection)
        server.passes(s=2)
        assert rest(connection) == b""


def test_in_real_time_the_server_looks_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "now_ns", time.perf_counter_ns)
    monkeypatch.setattr(wsgi, "HEAD_NS", 100 * NS_PER_MS)
    with connected(InProcessServer().port, "GET / HTTP/1.1\r\nHost: local") as connection:
        assert rest(connection) == b""


def test_an_answered_connection_is_closed_when_nothing_more_comes(server: InProcessServer) -> None:
    with connected(server.port, f"GET / HTTP/1.1\r\n{KNOWN}\r\n") as connection:
        answered(connection)
        # The time until it is closed begins a moment after the answer has come.
        while is_open(connection):
            server.passes(s=PATIENCE_S + 1)
        assert rest(connection) == b""


@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\r\nX: ", "\r\n\r\n"], ids=["a head", "empty lines"])
def test_a_byte_now_and_then_does_not_keep_a_connection(server: InProcessServer, sent: str) -> None:
    with connected(server.port, sent) as connection:
        for _ in range(HEAD_S + 1):
            assert is_open(connection)
            connection.sendall(sent[-2:].encode())
            server.passes(s=1)
        assert rest(connection) == b""


def test_a_body_that_drips_is_closed_and_one_that_is_merely_slow_is_not(server: InProcessServer) -> None:
    head = f"POST /length HTTP/1.1\r\n{KNOWN}Connection: close\r\nContent-Length: 70000\r\n\r\n"
    with connected(server.port, head) as connection:
        for _ in range(PATIENCE_S + 1):
            assert is_open(connection)
            connection.sendall(b"a")
            server.passes(s=1)
        assert rest(connection) == b""
    with connected(server.port, head) as connection:
        # Longer than anything may pause.
        for _ in range(PATIENCE_S + 10):
            connection.sendall(bytes(1000))
            server.passes(s=1)
        assert rest(connection).endswith(b"70000")


def test_who_does_not_read_is_closed_and_who_reads_slowly_gets_all(server: InProcessServer) -> None:
    asked = f"GET /large HTTP/1.1\r\n{KNOWN}Connection: close\r\n\r\n"
    with connected(server.port, asked) as connection:
        assert server.large_was_given.wait(60)
        for _ in range(10):
            server.passes(s=PATIENCE_S)
        assert len(rest(connection)) < LARGE
    with connected(server.port, asked) as connection:
        parts = []
        for _ in range(10):
            parts.append(connection.recv(LARGE // 20, socket.MSG_WAITALL))
            server.passes(s=10)
        assert len(b"".join([*parts, rest(connection)])) > LARGE


def test_an_answer_may_take_longer_than_a_reader_may(server: InProcessServer) -> None:
    with connected(server.port, f"GET /late HTTP/1.1\r\n{KNOWN}Connection: close\r\n\r\n") as connection:
        assert rest(connection).endswith(b"late")


@pytest.mark.parametrize("count", [150, 500])
@pytest.mark.parametrize(
    "sent",
    ["", "GET / HTTP/1.1\r\nHost: local", "POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
def test_slow_strangers_delay_and_displace_no_client(port: int, sent: str, count: int) -> None:
    encoded = f"GET / HTTP/1.1\r\n{KNOWN}\r\n".encode()
    with connected(port) as client, contextlib.ExitStack() as strangers:
        client.sendall(encoded)
        answered(client)
        for _ in range(count):
            strangers.enter_context(connected(port, sent))
        assert ask(port) == (200, b"here")
        client.sendall(encoded)
        answered(client)


def test_clients_with_the_token_do_not_delay_each_other(port: int) -> None:
    """More uploads that do not go on than there may be connections."""
    half = f"POST /length HTTP/1.1\r\n{KNOWN}Content-Length: 1000\r\n\r\nabc"
    with contextlib.ExitStack() as slow:
        for _ in range(150):
            slow.enter_context(connected(port, half))
        assert ask(port) == (200, b"here")

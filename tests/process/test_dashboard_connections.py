"""Connections that send or take too slowly: a real server with little patience, and real sockets."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator

import flask
import pytest

from overlapscope.dashboard import security, wsgi
from overlapscope.dashboard.wsgi import Listening

TOKEN = "known to the test"
LARGE = 64 << 20
"""More than what lies between a server and who does not read."""
KNOWN = f"Host: localhost\r\nAuthorization: token {TOKEN}\r\n"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    app = flask.Flask(__name__)
    security.guard(app, token=TOKEN, base="/")
    app.add_url_rule("/", "short", lambda: "here")
    app.add_url_rule("/large", "large", lambda: bytes(LARGE))
    app.add_url_rule("/late", "late", late)
    app.add_url_rule("/length", "length", lambda: str(len(flask.request.get_data())), methods=["POST"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wsgi, "MOST", 40)
        patch.setattr(wsgi, "HEAD_S", 1.0)
        patch.setattr(wsgi, "PATIENCE_S", 3.0)
        known = Listening(
            app,
            host="127.0.0.1",
            port=0,
            base="/",
            body_bytes=lambda request, coming: 0 if security.refusal(request, TOKEN) else 1 << 20,
        )
        known.run_aside()
        yield known.port


def late() -> str:
    time.sleep(2 * wsgi.PATIENCE_S)
    return "late"


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


def answered(connection: socket.socket) -> None:
    """Waits for an answer that leaves the connection open."""
    found = b""
    while not found.endswith(b"here"):
        part = connection.recv(1 << 16)
        assert part
        found += part


def ask(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        connection.request("GET", "/", headers={"Authorization": f"token {TOKEN}"})
        response = connection.getresponse()
        return response.status, response.read()


@contextlib.contextmanager
def again_and_again(act: Callable[[], object]) -> Iterator[None]:
    """Does it every tenth of a second, until it fails."""
    end = threading.Event()

    def repeat() -> None:
        with contextlib.suppress(OSError):
            while not end.wait(0.1):
                act()

    thread = threading.Thread(target=repeat)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "GET / HTTP/1.1\r\nHost: local",
        f"GET / HTTP/1.1\r\n{KNOWN}",
        f"POST /length HTTP/1.1\r\n{KNOWN}Content-Length: 1000\r\n\r\nabc",
    ],
    ids=["nothing", "half a head", "half a head with the token", "half a body"],
)
def test_what_does_not_go_on_is_closed(port: int, sent: str) -> None:
    with connected(port, sent) as connection:
        assert rest(connection) == b""


def test_an_answered_connection_is_closed_when_nothing_more_comes(port: int) -> None:
    with connected(port, f"GET / HTTP/1.1\r\n{KNOWN}\r\n") as connection:
        assert rest(connection).endswith(b"here")


@pytest.mark.parametrize("sent", ["GET / HTTP/1.1\r\nX: ", "\r\n\r\n"], ids=["a head", "empty lines"])
def test_a_byte_now_and_then_does_not_keep_a_connection(port: int, sent: str) -> None:
    with connected(port, sent) as connection, again_and_again(lambda: connection.sendall(sent[-2:].encode())):
        assert rest(connection) == b""


def test_a_body_that_drips_is_closed_and_one_that_is_merely_slow_is_not(port: int) -> None:
    head = f"POST /length HTTP/1.1\r\n{KNOWN}Connection: close\r\nContent-Length: 50000\r\n\r\n"
    with connected(port, head) as connection, again_and_again(lambda: connection.sendall(b"a")):
        assert rest(connection) == b""
    with connected(port, head) as connection:
        # Longer than anything may pause.
        for _ in range(50):
            connection.sendall(bytes(1000))
            time.sleep(0.1)
        assert rest(connection).endswith(b"50000")


def test_who_does_not_read_is_closed_and_who_reads_slowly_gets_all(port: int) -> None:
    asked = f"GET /large HTTP/1.1\r\n{KNOWN}Connection: close\r\n\r\n"
    with connected(port, asked) as connection:
        # Longer than the server waits for anything to be taken.
        time.sleep(2 * wsgi.PATIENCE_S)
        assert len(rest(connection)) < LARGE
    with connected(port, asked) as connection:
        parts = []
        for _ in range(10):
            parts.append(connection.recv(LARGE // 20, socket.MSG_WAITALL))
            time.sleep(0.5)
        assert len(b"".join([*parts, rest(connection)])) > LARGE


def test_an_answer_may_take_longer_than_a_reader_may(port: int) -> None:
    with connected(port, f"GET /late HTTP/1.1\r\n{KNOWN}Connection: close\r\n\r\n") as connection:
        assert rest(connection).endswith(b"late")


@pytest.mark.parametrize("count", [150, 500])
@pytest.mark.parametrize(
    "sent",
    ["", "GET / HTTP/1.1\r\nHost: local", "POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nabc"],
    ids=["nothing", "half a head", "half a body"],
)
def test_slow_strangers_hold_up_nobody_and_push_nobody_out(port: int, sent: str, count: int) -> None:
    one = f"GET / HTTP/1.1\r\n{KNOWN}\r\n".encode()
    with connected(port) as known, contextlib.ExitStack() as strangers:
        known.sendall(one)
        answered(known)
        for _ in range(count):
            strangers.enter_context(connected(port, sent))
        assert ask(port) == (200, b"here")
        known.sendall(one)
        answered(known)


def test_who_has_the_token_is_held_up_by_nobody_who_has_it_either(port: int) -> None:
    """More uploads that do not go on than there may be connections."""
    half = f"POST /length HTTP/1.1\r\n{KNOWN}Content-Length: 1000\r\n\r\nabc"
    with contextlib.ExitStack() as slow:
        for _ in range(150):
            slow.enter_context(connected(port, half))
        assert ask(port) == (200, b"here")

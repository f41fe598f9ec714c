"""Connections of a real server."""

from __future__ import annotations

import contextlib
import http.client
import socket

import flask
import pytest

from overlapscope.dashboard import server
from overlapscope.dashboard.server import Listening

LARGE = 20 << 20
"""More than waitress keeps of an answer before the thread that writes it has to wait."""


def test_clients_that_read_nothing_hold_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_THREADS", 2)
    app = flask.Flask(__name__)
    app.add_url_rule("/", "short", lambda: "here")
    app.add_url_rule("/large", "large", lambda: bytes(LARGE))
    listening = Listening(app, host="127.0.0.1", port=0, base="/", body_bytes=lambda request: 1)
    listening.run_aside()
    with contextlib.ExitStack() as idle:
        for _ in range(3):
            connection = idle.enter_context(socket.create_connection(("127.0.0.1", listening.port), timeout=60))
            connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            # The application has answered.
            assert connection.recv(1)
        client = http.client.HTTPConnection("127.0.0.1", listening.port, timeout=60)
        with contextlib.closing(client):
            client.request("GET", "/")
            assert client.getresponse().read() == b"here"

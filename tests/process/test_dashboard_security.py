"""Tests of access to the dashboard: requests to a real server over plain HTTP."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote, urlsplit

import flask
import pytest

from overlapscope.commands import main
from overlapscope.dashboard import security
from tests.support.dashboard_process import Served, ask, serve
from tests.support.dashboard_requests import HOSTILE, LIMIT, SMALL, head_of, raw, upload, write_hostile

PATHS = (
    "/",
    "/overview",
    "/_dash-layout",
    "/_dash-dependencies",
    "/assets/upload.js",
    "/api/upload",
    "/api/annotated?trace=hostile",
    "/api/timeline/model?trace=hostile",
    "/api/export.html?trace=hostile",
)
TRACE_ROUTES = ("/api/annotated?trace=", "/api/timeline/model?trace=", "/api/export.html?trace=")


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="module")
def local(traces: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Yield a server as it is by default, on the loopback address."""
    environment = {"TMPDIR": str(tmp_path_factory.mktemp("server"))}
    with serve(traces, f"--max-upload={LIMIT}B", environment=environment) as served:
        # Answered once the trace is loaded.
        assert ask(served, "/api/annotated?trace=hostile").status == 200
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_served_without_the_token_under_any_name(local: Served, path: str) -> None:
    """As a page has that gives this machine a name of its own."""
    for host in ("evil.example", "localhost", f"127.0.0.1:{local.port}", "0", "[", "\xff"):
        for headers in (
            {},
            {"Authorization": "token wrong"},
            {"Authorization": f"Basic {local.token}"},
            {"Cookie": f"{cookie_of(local).partition('=')[0]}=in.wrong.signature"},
            {"Cookie": f"{cookie_of(local).partition('=')[0]}={local.token}"},
        ):
            answer = ask(local, path, headers={"Host": host, **headers}, with_token=False)
            assert answer.status == 401
            assert b"<" not in answer.body and b"hostile" not in answer.body
        for wrong in ("", "x", local.token[:-1], f"{local.token}x"):
            with_query = f"{path}{'&' if '?' in path else '?'}token={wrong}"
            assert ask(local, with_query, headers={"Host": host}, with_token=False).status == 401
    assert upload(local, "x.json", SMALL, with_token=False).status == 401


@pytest.mark.parametrize("path", ["/api/upload?name=x.json", "/_dash-update-component"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
    ],
)
def test_another_sites_page_cannot_post(local: Served, path: str, headers: dict[str, str]) -> None:
    answer = ask(local, path, method="POST", headers={"Host": f"localhost:{local.port}", **headers}, body=b"{}")
    assert answer.status == 403


@pytest.mark.parametrize("path", PATHS)
def test_another_sites_page_cannot_ask_for_anything_but_to_go_there(local: Served, path: str) -> None:
    """Not even requests whose answers it cannot read are served, because a report takes seconds to compute."""
    for site in ("cross-site", "same-site"):
        headers = {"Host": f"localhost:{local.port}", "Sec-Fetch-Site": site}
        for mode in ("no-cors", "cors", "websocket"):
            assert ask(local, path, headers={**headers, "Sec-Fetch-Mode": mode}).status == 403
        assert ask(local, path, headers={**headers, "Sec-Fetch-Mode": "navigate"}).status == 200


def test_no_answer_invites_other_sites(local: Served) -> None:
    for path in PATHS:
        answer = ask(local, path, headers={"Origin": "http://evil.example"})
        assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize("path", [*PATHS, "/nowhere", "/api/nowhere", "/api/annotated?trace=nowhere"])
def test_every_answer_tells_the_browser_to_load_nothing_from_elsewhere(local: Served, path: str) -> None:
    headers = ask(local, path).headers
    policy = dict(part.strip().partition(" ")[::2] for part in headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == "'self'"
    assert policy["object-src"] == policy["base-uri"] == "'none'"
    assert "frame-ancestors" in policy
    assert not re.search(
        r"\*(?!\w)|https:", " ".join(value for key, value in policy.items() if key != "frame-ancestors")
    )
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def cookie_of(served: Served) -> str:
    """Return the cookie, name and value, of a browser that opened the printed address."""
    parts = urlsplit(served.address)
    return str(ask(served, f"{parts.path}?{parts.query}", with_token=False).headers["Set-Cookie"]).partition(";")[0]


def test_the_printed_address_lets_a_browser_in_and_keeps_the_token_out_of_its_history(local: Served) -> None:
    parts = urlsplit(local.address)
    answer = ask(local, f"{parts.path}timeline?trace=hostile&{parts.query}&from=5", with_token=False)
    assert answer.status == 302
    assert answer.headers["Location"] == "/timeline?trace=hostile&from=5"
    assert answer.headers["Cache-Control"] == "no-store"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    assert len(local.token) >= 32 and local.token not in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    assert all(ask(local, path, headers=headers, with_token=False).status == 200 for path in PATHS)


def test_the_token_is_not_on_the_command_line(local: Served) -> None:
    arguments = Path(f"/proc/{local.process.pid}/cmdline").read_text()
    assert local.token not in arguments
    assert main(["dashboard", "--token", "on-the-command-line"]) == 2


def test_a_cookie_is_worth_nothing_on_another_port_though_the_token_be_the_same(traces: Path) -> None:
    serves = partial(serve, traces, environment={"OVERLAPSCOPE_TOKEN": "the same everywhere"}, loaded=True)
    with serves() as first, serves() as other:
        assert first.token == other.token == "the same everywhere"
        name, _, value = cookie_of(first).partition("=")
        name_there, _, value_there = cookie_of(other).partition("=")
        assert name != name_there and value != value_there
        assert ask(first, "/", headers={"Cookie": f"{name}={value}"}, with_token=False).status == 200
        assert ask(first, "/", headers={"Cookie": f"{name}={value_there}"}, with_token=False).status == 401


@pytest.mark.parametrize(("days", "status"), [(6, 200), (8, 401)])
def test_a_cookie_is_good_for_a_week(monkeypatch: pytest.MonkeyPatch, days: int, status: int) -> None:
    server = flask.Flask(__name__)
    security.guard(server, token="a token", base="/")
    server.add_url_rule("/", view_func=lambda: "in")
    cookie = server.test_client().get("/?token=a+token").headers["Set-Cookie"].partition(";")[0]
    later = time.time() + days * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert server.test_client(use_cookies=False).get("/", headers={"Cookie": cookie}).status_code == status


@pytest.mark.parametrize("path", ["/%0d%0aX:1/", "/x%0a", "/%00", "/%7f"])
def test_a_path_with_control_characters_is_a_bad_request(path: str) -> None:
    server = flask.Flask(__name__)
    security.guard(server, token="a token", base="/")
    for query in ("", "?token=a+token"):
        answer = server.test_client().get(f"{path}{query}")
        assert (answer.status_code, answer.headers.get("X"), answer.headers.get("Location")) == (400, None, None)


def test_another_name_is_answered_who_has_the_token_but_no_other_sites_posts(local: Served) -> None:
    headers = {"Host": "workstation.example"}
    assert ask(local, "/", headers=headers).status == 200
    assert upload(local, "x.json", SMALL, Host="workstation.example", Origin="http://evil.example").status == 403


def test_the_redirect_stays_on_this_server(local: Served) -> None:
    token = urlsplit(local.address).query
    for path in ("//evil.example/x", "/\\evil.example", "//evil.example"):
        answer = raw(local, f"GET {path}?{token} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        location = re.search(rb"(?im)^location: (.*?)\r$", answer)
        assert location is None or not re.match(rb"(https?:)?[/\\]{2}evil", location[1])


def test_a_body_is_stored_only_for_who_has_the_token_and_where_one_is_due(local: Served) -> None:
    """Once its head has come: nothing of the body is sent here."""
    headers = {"Authorization": f"token {local.token}"}
    asked = [
        ("/api/upload?name=x.json", {}, b"401"),
        ("/_dash-update-component", {}, b"401"),
        ("/api/upload?name=x.json", {"Expect": "100-continue"}, b"401"),
        ("/_dash-update-component", headers, b"413"),
        ("/api/upload?name=x.json", headers, b"413"),
        ("/api/upload?name=x.json", headers | {"Sec-Fetch-Site": "cross-site"}, b"403"),
        ("/api/upload?name=x.json", headers | {"Content-Length": "40000", "Expect": "100-continue"}, b"100"),
    ]
    for path, more, status in asked:
        head = {"Host": "localhost", "Content-Length": "1000000000", **more}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        assert raw(local, f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("more", ["", "Connection: keep-alive\r\n"])
@pytest.mark.parametrize(
    ("version", "coding"),
    [("1.0", "Content-Length: {}\r\n"), ("1.1", "Content-Length: {}\r\n"), ("1.1", "Transfer-Encoding: chunked\r\n")],
)
def test_a_body_that_is_refused_is_not_taken_for_the_next_request(
    local: Served, more: str, version: str, coding: str
) -> None:
    inner = f"GET /_dash-layout HTTP/1.1\r\n{head_of(local)}\r\n"
    head = f"POST /api/upload?name=x HTTP/{version}\r\nHost: localhost\r\n{more}{coding.format(len(inner))}\r\n"
    for sent in (head + inner, head):
        with socket.create_connection(("127.0.0.1", local.port), timeout=30) as connection:
            connection.sendall(sent.encode())
            answer = b""
            with suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    answer += part
                    if sent == head:
                        connection.sendall(inner.encode())
        assert answer.count(b"HTTP/1.") <= 1 and b"props" not in answer
        assert answer[9:12] in (b"", b"401")


@pytest.mark.parametrize("route", TRACE_ROUTES)
@pytest.mark.parametrize(
    "trace",
    [
        "../secret.txt",
        "secret.txt",
        "../../../../etc/passwd",
        "/etc/passwd",
        "..\\secret.txt",
        "hostile/../secret.txt",
        "\0",
    ],
)
def test_no_path_leads_to_a_file_that_was_not_given(local: Served, traces: Path, route: str, trace: str) -> None:
    for asked in (trace, str(traces / trace) if "\0" not in trace else trace):
        answer = ask(local, route + quote(asked, safe=""))
        assert answer.status == 404
        assert b"the secret" not in answer.body and b"root:" not in answer.body


@pytest.mark.parametrize(
    "path", ["/assets/../server.py", "/assets/%2e%2e/server.py", "/assets/..%2fserver.py", "/assets//etc/passwd"]
)
def test_no_path_leads_out_of_the_assets(local: Served, path: str) -> None:
    answer = raw(local, f"GET {path} HTTP/1.1\r\n{head_of(local)}Connection: close\r\n\r\n".encode())
    assert b"root:" not in answer and b"import flask" not in answer


def test_what_a_url_says_is_never_answered_as_html(local: Served) -> None:
    for route in TRACE_ROUTES:
        answer = ask(local, route + quote(HOSTILE))
        assert answer.status == 404
        assert answer.headers.get_content_type() != "text/html" or HOSTILE.encode() not in answer.body

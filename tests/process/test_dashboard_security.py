"""Who may ask the dashboard for what: a real server, asked over plain HTTP."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest import mock
from urllib.parse import quote, urlsplit

import flask
import pytest

from overlapscope.commands import main
from overlapscope.dashboard import security
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.upload import Uploads, safe_name
from tests.support import kineto_files
from tests.support.dashboard_process import Answer, Served, ask, serve, stop

LIMIT = 500_000
HOSTILE = "<img src=x onerror=window.hacked=1>"
SMALL = json.dumps({"traceEvents": [kineto_files.kernel(1, 5), kineto_files.memcpy(8, 2, correlation=2)]}).encode()

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
    directory = tmp_path_factory.mktemp("traces")
    events = [
        kineto_files.call(0, 1, 1, name=f"cudaLaunchKernel{HOSTILE}"),
        kineto_files.kernel(1, 5, name=HOSTILE),
        kineto_files.memcpy(8, 2, correlation=2),
    ]
    kineto_files.write(directory / "hostile.json", events)
    (directory / "secret.txt").write_text("the secret")
    return directory


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def local(traces: Path, temporary: Path) -> Iterator[Served]:
    """A server as it is by default, on the loopback address."""
    with serve(traces, f"--max-upload={LIMIT}B", environment={"TMPDIR": str(temporary)}) as served:
        # Answered once the trace is loaded.
        assert ask(served, "/api/annotated?trace=hostile").status == 200
        yield served


def upload(served: Served, name: str, body: bytes, *, known: bool = True, **headers: str) -> Answer:
    path = f"/api/upload?name={quote(name, safe='')}"
    return ask(served, path, method="POST", headers=headers, body=body, known=known)


def head_of(served: Served) -> str:
    """The lines of a request that show the token."""
    return f"Host: localhost\r\nAuthorization: token {served.token}\r\n"


def raw(served: Served, request: bytes) -> bytes:
    """Bytes sent as they are, then no more; everything that comes back."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=30) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


# -- other sites


@pytest.mark.parametrize("path", PATHS)
def test_nobody_gets_anything_without_the_token_under_whatever_name(local: Served, path: str) -> None:
    """As a page has that gives this machine a name of its own."""
    for host in ("evil.example", "localhost", f"127.0.0.1:{local.port}", "0", "[", "\xff"):
        for headers in (
            {},
            {"Authorization": "token wrong"},
            {"Authorization": f"Basic {local.token}"},
            {"Cookie": f"{cookie_of(local).partition('=')[0]}=in.wrong.signature"},
            {"Cookie": f"{cookie_of(local).partition('=')[0]}={local.token}"},
        ):
            answer = ask(local, path, headers={"Host": host, **headers}, known=False)
            assert answer.status == 401
            assert b"<" not in answer.body and b"hostile" not in answer.body
        for wrong in ("", "x", local.token[:-1], f"{local.token}x"):
            with_query = f"{path}{'&' if '?' in path else '?'}token={wrong}"
            assert ask(local, with_query, headers={"Host": host}, known=False).status == 401
    assert upload(local, "x.json", SMALL, known=False).status == 401


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
    """Not even for what it cannot read: a report takes seconds to make."""
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


# -- the token


def cookie_of(served: Served) -> str:
    """What a browser keeps that opened the printed address: name and value."""
    parts = urlsplit(served.address)
    return str(ask(served, f"{parts.path}?{parts.query}", known=False).headers["Set-Cookie"]).partition(";")[0]


def test_the_printed_address_lets_a_browser_in_and_keeps_the_token_out_of_its_history(local: Served) -> None:
    parts = urlsplit(local.address)
    answer = ask(local, f"{parts.path}timeline?trace=hostile&{parts.query}&from=5", known=False)
    assert answer.status == 302
    assert answer.headers["Location"] == "/timeline?trace=hostile&from=5"
    assert answer.headers["Cache-Control"] == "no-store"
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
    assert len(local.token) >= 32 and local.token not in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    assert all(ask(local, path, headers=headers, known=False).status == 200 for path in PATHS)


def test_the_command_line_tells_nobody_the_token(local: Served) -> None:
    arguments = Path(f"/proc/{local.process.pid}/cmdline").read_text()
    assert local.token not in arguments
    assert main(["dashboard", "--token", "on-the-command-line"]) == 2


def test_a_cookie_is_worth_nothing_on_another_port_though_the_token_be_the_same(traces: Path) -> None:
    token = {"OVERLAPSCOPE_TOKEN": "the same everywhere"}
    with serve(traces, environment=token) as one, serve(traces, environment=token) as other:
        assert one.token == other.token == "the same everywhere"
        name, _, value = cookie_of(one).partition("=")
        name_there, _, value_there = cookie_of(other).partition("=")
        assert name != name_there and value != value_there
        assert ask(one, "/", headers={"Cookie": f"{name}={value}"}, known=False).status == 200
        assert ask(one, "/", headers={"Cookie": f"{name}={value_there}"}, known=False).status == 401


@pytest.mark.parametrize(("days", "status"), [(6, 200), (8, 401)])
def test_a_cookie_is_good_for_a_week(monkeypatch: pytest.MonkeyPatch, days: int, status: int) -> None:
    server = flask.Flask(__name__)
    security.guard(server, token="a token", base="/")
    server.add_url_rule("/", view_func=lambda: "in")
    cookie = server.test_client().get("/?token=a+token").headers["Set-Cookie"].partition(";")[0]
    later = time.time() + days * 86_400
    monkeypatch.setattr(time, "time", lambda: later)
    assert server.test_client(use_cookies=False).get("/", headers={"Cookie": cookie}).status_code == status


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
    known = {"Authorization": f"token {local.token}"}
    asked = [
        ("/api/upload?name=x.json", {}, b"401"),
        ("/_dash-update-component", {}, b"401"),
        ("/api/upload?name=x.json", {"Expect": "100-continue"}, b"401"),
        ("/_dash-update-component", known, b"413"),
        ("/api/upload?name=x.json", known, b"413"),
        ("/api/upload?name=x.json", known | {"Sec-Fetch-Site": "cross-site"}, b"403"),
        ("/api/upload?name=x.json", known | {"Content-Length": "40000", "Expect": "100-continue"}, b"100"),
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


# -- only the traces given


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


# -- dropped files


def test_a_dropped_trace_is_shown_under_its_own_name(local: Served) -> None:
    answer = upload(local, "my run (2).json", SMALL)
    id = json.loads(answer.body)["id"]
    assert (answer.status, id) == (200, "dropped/my run (2)")
    assert ask(local, f"/api/annotated?trace={quote(id)}").status == 200
    again = json.loads(upload(local, "my run (2).json", SMALL).body)["id"]
    assert again != id and ask(local, f"/api/annotated?trace={quote(again)}").status == 200


@pytest.mark.parametrize(
    "name", ["../../evil.json", "/etc/cron.d/evil.json", "..\\..\\evil.json", "a/../../evil.json", "....//evil.json"]
)
def test_a_dropped_files_name_is_never_a_path(local: Served, temporary: Path, name: str) -> None:
    before = {file for file in temporary.rglob("*") if file.is_file()}
    answer = upload(local, name, SMALL)
    assert re.fullmatch(r"dropped/evil( \(\d+\))?", json.loads(answer.body)["id"])
    (new,) = {file for file in temporary.rglob("*") if file.is_file()} - before
    assert new.parent.parent == temporary and "evil" not in new.name
    assert new.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", ["", ".", "..", "/", "\0\n", "x" * 5000 + ".json.gz", HOSTILE, "\u202ename", "\ud800"])
def test_a_safe_name_is_short_and_has_no_path_in_it(name: str) -> None:
    safe = safe_name(name)
    assert 0 < len(safe) <= 150 and safe.isprintable()
    assert not set(safe) & set("/\\<>\"'&\0") and safe.strip(".") == safe
    assert safe.endswith(".json.gz") == name.endswith(".json.gz")


def chunked(served: Served, body: bytes) -> bytes:
    """A request that uploads a body without saying how long it is."""
    pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]
    head = f"POST /api/upload?name=large.json HTTP/1.1\r\n{head_of(served)}Connection: close\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_all_files_together_stay_within_the_limit_and_what_is_refused_is_not_kept(traces: Path, tmp_path: Path) -> None:
    with serve(traces, f"--max-upload={LIMIT}B", environment={"TMPDIR": str(tmp_path)}) as served:
        large, half = SMALL.ljust(LIMIT + 1), SMALL.ljust(LIMIT // 2)
        answer = upload(served, "large.json", large)
        assert answer.status == 413
        assert json.loads(answer.body)["error"].startswith("large.json: is larger than the 500 kB; start")
        assert raw(served, chunked(served, large)).startswith(b"HTTP/1.1 413 ")
        assert stored_bytes(tmp_path) == 0
        assert upload(served, "half.json", half).status == 200
        assert raw(served, chunked(served, half)).startswith(b"HTTP/1.1 200 ")
        assert json.loads(ask(served, "/api/upload").body) == {"room_bytes": 0}
        answer = upload(served, "more.json", SMALL)
        assert answer.status == 413
        assert "is larger than the 0 B that is left for dropped files" in json.loads(answer.body)["error"]
        assert stored_bytes(tmp_path) == LIMIT


def stored_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())


def test_files_of_any_size_come_to_an_end() -> None:
    server = flask.Flask(__name__)
    Uploads(Library(), 1 << 40).register(server)
    client = server.test_client()
    with mock.patch("overlapscope.dashboard.upload.MOST_FILES", 3):
        answers = [client.post(f"/api/upload?name={n}.json", data=b"{}") for n in range(5)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 413, 413]
    assert json.loads(answers[3].data)["error"] == "3.json: 3 files were dropped already; start the dashboard anew."


def test_what_a_killed_server_left_is_removed_by_the_next_and_nothing_else_is(traces: Path, tmp_path: Path) -> None:
    stranger = tmp_path / "overlapscope-dashboard-file"
    stranger.write_text("no directory")
    target = tmp_path / "target"
    target.mkdir()
    (target / "kept").touch()
    (tmp_path / "overlapscope-dashboard-link").symlink_to(target)
    environment = {"TMPDIR": str(tmp_path)}
    with serve(traces, environment=environment) as killed, serve(traces, environment=environment) as living:
        for one in (killed, living):
            assert upload(one, "x.json", SMALL).status == 200
        assert stored_bytes(tmp_path) > 2 * len(SMALL)
        killed.process.kill()
        killed.process.wait()
        with serve(traces, environment=environment):
            assert len([one for one in tmp_path.glob("overlapscope-dashboard-*") if one.is_dir()]) == 3
        assert ask(living, "/api/annotated?trace=dropped/x").status == 200
        assert (target / "kept").exists() and stranger.exists()


@pytest.mark.parametrize("length", ["99999999999999999999", "5000000000000", "-5", "x", "1e9", "40000"])
def test_a_length_that_lies_stores_nothing(local: Served, temporary: Path, length: str) -> None:
    before = {file for file in temporary.rglob("*") if file.is_file()}
    head = f"POST /api/upload?name=large.json HTTP/1.1\r\n{head_of(local)}Content-Length: {length}\r\n\r\n"
    # Fewer bytes than were announced, and then the end.
    answer = raw(local, head.encode())
    assert answer == b"" or int(answer.split(b" ", 2)[1]) in (400, 413)
    assert {file for file in temporary.rglob("*") if file.is_file()} == before


def test_a_body_longer_than_announced_is_cut_there(local: Served) -> None:
    head = f"POST /api/upload?name=cut.json HTTP/1.1\r\n{head_of(local)}Content-Length: {len(SMALL)}\r\n\r\n"
    answer = raw(local, head.encode() + SMALL + b"GET /overview HTTP/1.0\r\nHost: evil.example\r\n\r\n")
    first, _, second = answer[1:].partition(b"HTTP/1.")
    assert first.startswith(b"TTP/1.1 200 ") and b"401" in second.split(b"\r\n")[0]


def test_a_refusal_is_a_sentence(local: Served) -> None:
    answer = upload(local, f"{HOSTILE}.json", b"")
    assert answer.status == 400
    assert answer.headers.get_content_type() == "application/json"
    assert json.loads(answer.body)["error"].endswith("record the trace again.")


UNREADABLE = {
    "a number with a huge exponent": b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":1,"pid":1e99999999}]}',
    "brackets alone": b'{"traceEvents":' + b"[" * 10_000_000,
    "a number of many digits": b'{"traceEvents":[{"ph":"X","cat":"kernel","ts":' + b"9" * 10_000_000 + b"}]}",
    "nothing between commas": b'{"traceEvents":[' + b"1," * 3_000_000,
    "many events": b'{"traceEvents":[' + SMALL[16:-2] + (b"," + SMALL[16:-2]) * 100_000 + b"]}",
}


@pytest.mark.parametrize("body", UNREADABLE.values(), ids=UNREADABLE)
def test_it_ends_at_once_while_a_dropped_file_is_read(tmp_path: Path, body: bytes) -> None:
    with serve(environment={"TMPDIR": str(tmp_path)}) as served:
        id = json.loads(upload(served, "x.json", body).body)["id"]
        # Has it read, and waits for it.
        asked = f"GET /api/annotated?trace={id} HTTP/1.1\r\n{head_of(served)}\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(asked)
            assert ask(served, "/_dash-layout").status == 200
            served.process.terminate()
            # Half a second for what is under way, and much more for a busy machine.
            assert served.process.wait(timeout=60) == 0
        assert not any(tmp_path.iterdir())


def test_dropped_files_are_gone_when_the_server_has_ended(traces: Path, tmp_path: Path) -> None:
    with serve(traces, environment={"TMPDIR": str(tmp_path)}) as served:
        assert upload(served, "x.json", SMALL).status == 200
        (directory,) = tmp_path.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert any(file.is_file() for file in tmp_path.rglob("*"))
        stop(served.process)
        assert not any(tmp_path.iterdir())

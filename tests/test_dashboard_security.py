"""Who may ask the dashboard for what: a real server, asked over plain HTTP."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from overlapscope.dashboard.upload import safe_name
from tests import kineto_files
from tests.dashboard_process import Answer, Served, ask, serve, stop

LIMIT = 50_000
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

pytestmark = pytest.mark.xdist_group("dashboard security")


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


@pytest.fixture(scope="module")
def public(traces: Path) -> Iterator[Served]:
    """A server that others can reach."""
    with serve(traces, "--host=0.0.0.0") as served:
        headers = {"Authorization": served.address.partition("?")[2].replace("=", " ")}
        assert ask(served, "/api/annotated?trace=hostile", headers=headers).status == 200
        yield served


def upload(served: Served, name: str, body: bytes, **headers: str) -> Answer:
    return ask(served, f"/api/upload?name={quote(name, safe='')}", method="POST", headers=headers, body=body)


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
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1", "0"]
)
def test_a_foreign_host_name_gets_nothing(local: Served, path: str, host: str) -> None:
    answer = ask(local, path, headers={"Host": host})
    assert answer.status == 403
    assert b"<" not in answer.body and b"hostile" not in answer.body


@pytest.mark.parametrize("path", PATHS)
def test_the_loopback_names_are_answered(local: Served, path: str) -> None:
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert ask(local, path, headers={"Host": f"{host}:{local.port}"}).status == 200


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


@pytest.mark.parametrize("path", PATHS)
def test_a_server_that_others_can_reach_demands_its_token(public: Served, path: str) -> None:
    for headers in ({}, {"Authorization": "token wrong"}, {"Cookie": f"{cookie_of(public)}=wrong"}):
        answer = ask(public, path, headers=headers)
        assert answer.status == 401
        assert b"hostile" not in answer.body
    assert ask(public, f"{path}{'&' if '?' in path else '?'}token=").status == 401
    assert upload(public, "x.json", SMALL).status == 401


def test_the_printed_address_lets_a_browser_in_and_keeps_the_token_out_of_its_history(public: Served) -> None:
    parts = urlsplit(public.address)
    answer = ask(public, f"{parts.path}timeline?trace=hostile&{parts.query}&from=5")
    assert answer.status == 302
    assert answer.headers["Location"].endswith("/timeline?trace=hostile&from=5")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
    headers = {"Cookie": cookie.partition(";")[0]}
    assert all(ask(public, path, headers=headers).status == 200 for path in PATHS)
    token = parts.query.removeprefix("token=")
    assert len(token) >= 32
    assert ask(public, "/", headers={"Authorization": f"token {token}"}).status == 200


def test_a_token_lets_other_names_in_but_no_other_sites_posts(public: Served) -> None:
    token = urlsplit(public.address).query.removeprefix("token=")
    headers = {"Authorization": f"token {token}", "Host": "workstation.example"}
    assert ask(public, "/", headers=headers).status == 200
    assert upload(public, "x.json", SMALL, **headers, Origin="http://evil.example").status == 403


def test_the_redirect_stays_on_this_server(public: Served) -> None:
    token = urlsplit(public.address).query
    for path in ("//evil.example/x", "/\\evil.example", "//evil.example"):
        answer = raw(public, f"GET {path}?{token} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        location = re.search(rb"(?im)^location: (.*?)\r$", answer)
        assert location is None or not re.match(rb"(https?:)?[/\\]{2}evil", location[1])


def test_a_token_can_be_given_for_the_loopback_address_too(traces: Path) -> None:
    with serve(traces, "--token=abc-123") as served:
        assert served.address.endswith("?token=abc-123")
        assert ask(served, "/").status == 401
        assert ask(served, "/", headers={"Authorization": "token abc-123"}).status == 200


def cookie_of(served: Served) -> str:
    """Name of the cookie that a server sets."""
    parts = urlsplit(served.address)
    return str(ask(served, f"{parts.path}?{parts.query}").headers["Set-Cookie"]).partition("=")[0]


def test_an_empty_token_is_none(traces: Path) -> None:
    with serve(traces, "--host=0.0.0.0", "--token=") as served:
        assert len(served.address.partition("?token=")[2]) >= 32
        assert ask(served, "/").status == 401 and ask(served, "/?token=").status == 401
        with serve(traces, "--token=a b&c") as other:
            assert cookie_of(other) != cookie_of(served)


def test_a_large_body_is_refused_before_it_is_stored(public: Served, local: Served) -> None:
    """Once its head has come: nothing of the body is sent here."""
    token = urlsplit(public.address).query.removeprefix("token=")
    asked = [
        (public, "/api/upload?name=x.json", {}, b"413"),
        (public, "/_dash-update-component", {"Authorization": f"token {token}"}, b"413"),
        (
            public,
            "/api/upload?name=x.json",
            {"Authorization": f"token {token}", "Sec-Fetch-Site": "cross-site"},
            b"413",
        ),
        (public, "/api/upload?name=x.json", {"Authorization": f"token {token}", "Expect": "100-continue"}, b"100"),
        (local, "/_dash-update-component", {}, b"413"),
    ]
    for served, path, more, status in asked:
        head = {"Host": "localhost", "Content-Length": "1000000000", **more}
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        assert raw(served, f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode()).startswith(b"HTTP/1.1 " + status)


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
    answer = raw(local, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
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


def chunked(body: bytes) -> bytes:
    """A request that uploads a body without saying how long it is."""
    pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]
    head = b"POST /api/upload?name=large.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_a_file_over_the_limit_is_refused_with_a_sentence(local: Served, temporary: Path) -> None:
    before = {file for file in temporary.rglob("*") if file.is_file()}
    fits, large = SMALL.ljust(LIMIT), SMALL.ljust(LIMIT + 1)
    answer = upload(local, "large.json", large)
    assert answer.status == 413
    assert json.loads(answer.body)["error"].startswith("large.json: is larger than 50 kB")
    assert raw(local, chunked(large)).startswith(b"HTTP/1.1 413 ")
    assert {file for file in temporary.rglob("*") if file.is_file()} == before
    assert upload(local, "fits.json", fits).status == 200
    assert raw(local, chunked(fits)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("length", ["99999999999999999999", "5000000000000", "-5", "x", "1e9", "40000"])
def test_a_length_that_lies_stores_nothing(local: Served, temporary: Path, length: str) -> None:
    before = {file for file in temporary.rglob("*") if file.is_file()}
    head = f"POST /api/upload?name=large.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n"
    # Fewer bytes than were announced, and then the end.
    answer = raw(local, head.encode())
    assert answer == b"" or int(answer.split(b" ", 2)[1]) in (400, 413)
    assert {file for file in temporary.rglob("*") if file.is_file()} == before


def test_a_body_longer_than_announced_is_cut_there(local: Served) -> None:
    head = f"POST /api/upload?name=cut.json HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(SMALL)}\r\n\r\n"
    answer = raw(local, head.encode() + SMALL + b"GET /overview HTTP/1.0\r\nHost: evil.example\r\n\r\n")
    first, _, second = answer[1:].partition(b"HTTP/1.")
    assert first.startswith(b"TTP/1.1 200 ") and b"403" in second.split(b"\r\n")[0]


def test_a_refusal_is_a_sentence(local: Served) -> None:
    answer = upload(local, f"{HOSTILE}.json", b"")
    assert answer.status == 400
    assert answer.headers.get_content_type() == "application/json"
    assert json.loads(answer.body)["error"].endswith("record the trace again.")


def test_dropped_files_are_gone_when_the_server_has_ended(traces: Path, tmp_path: Path) -> None:
    with serve(traces, environment={"TMPDIR": str(tmp_path)}) as served:
        assert upload(served, "x.json", SMALL).status == 200
        assert any(file.is_file() for file in tmp_path.rglob("*"))
        stop(served.process)
        assert not any(tmp_path.iterdir())

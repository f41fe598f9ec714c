"""Files that are dropped onto the dashboard: a real server, asked over plain HTTP."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest import mock
from urllib.parse import quote

import flask
import pytest

from overlapscope.dashboard.library import Library
from overlapscope.dashboard.upload import DroppedFiles, safe_name
from tests.support.dashboard_process import Served, ask, serve, stop
from tests.support.dashboard_requests import HOSTILE, LIMIT, SMALL, head_of, raw, upload, write_hostile


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hostile(tmp_path_factory.mktemp("traces"))


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("server")


@pytest.fixture(scope="module")
def local(traces: Path, temporary: Path) -> Iterator[Served]:
    """Yield a server as it is by default, on the loopback address."""
    with serve(traces, f"--max-upload={LIMIT}B", environment={"TMPDIR": str(temporary)}, loaded=True) as served:
        # Answered once the trace is loaded.
        assert ask(served, "/api/annotated?trace=hostile").status == 200
        yield served


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
    """Return a request that uploads a body without saying how long it is."""
    pieces = [body[at : at + 4096] for at in range(0, len(body), 4096)]
    head = f"POST /api/upload?name=large.json HTTP/1.1\r\n{head_of(served)}Connection: close\r\n"
    head += "Transfer-Encoding: chunked\r\n\r\n"
    return head.encode() + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def test_all_files_together_stay_within_the_limit_and_what_is_refused_is_not_kept(traces: Path, tmp_path: Path) -> None:
    with serve(traces, f"--max-upload={LIMIT}B", environment={"TMPDIR": str(tmp_path)}, loaded=True) as served:
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
    DroppedFiles(Library(), 1 << 40).register(server)
    client = server.test_client()
    with mock.patch("overlapscope.dashboard.upload.MAX_FILES", 3):
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
    serves = partial(serve, traces, environment={"TMPDIR": str(tmp_path)}, loaded=True)
    with serves() as killed, serves() as living:
        for item in (killed, living):
            assert upload(item, "x.json", SMALL).status == 200
        assert stored_bytes(tmp_path) > 2 * len(SMALL)
        killed.process.kill()
        killed.process.wait()
        with serves():
            assert len([path for path in tmp_path.glob("overlapscope-dashboard-*") if path.is_dir()]) == 3
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
    with serve(environment={"TMPDIR": str(tmp_path)}, loaded=True) as served:
        id = json.loads(upload(served, "x.json", body).body)["id"]
        # Has it read, and waits for it.
        asked = f"GET /api/annotated?trace={id} HTTP/1.1\r\n{head_of(served)}\r\n".encode()
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            connection.sendall(asked)
            assert ask(served, "/_dash-layout").status == 200
            served.process.terminate()
            # Half a second for requests under way, and much more for a busy machine.
            assert served.process.wait(timeout=60) == 0
        assert not any(tmp_path.iterdir())


def test_dropped_files_are_gone_when_the_server_has_ended(traces: Path, tmp_path: Path) -> None:
    with serve(traces, environment={"TMPDIR": str(tmp_path)}, loaded=True) as served:
        assert upload(served, "x.json", SMALL).status == 200
        (directory,) = tmp_path.iterdir()
        assert directory.stat().st_mode & 0o777 == 0o700
        assert any(file.is_file() for file in tmp_path.rglob("*"))
        stop(served.process)
        assert not any(tmp_path.iterdir())

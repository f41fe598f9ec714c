"""Tools that ask SQL, used by an assistant: answers are small and whole, and cost the server no memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overlapscope import analyze
from overlapscope.errors import UsageError
from overlapscope.plugins.sql.tools import in_child_process
from tests.support.assistant import Assistant, ToolError, assistant
from tests.support.helpers import TRACES

GPT2 = "gpt2_train.json.gz"


@pytest.fixture(scope="module")
def asked() -> Iterator[Assistant]:
    with assistant(TRACES) as shared:
        yield shared


@pytest.mark.parametrize("path", [GPT2, "known_causes/same_stream.json.gz"])
def test_an_answer_is_small_and_leaves_nothing_to_be_guessed(asked: Assistant, path: str) -> None:
    text = asked.text("query", path=path, sql="SELECT * FROM gpu_ops")
    assert len(text.encode()) <= 4_000
    answer = json.loads(text)
    assert answer["figures"] == "gpu_ops: of the recording" and "nanoseconds" in answer["units"]
    assert isinstance(answer["unknown"], list) and answer["columns"][0] == {"name": "source", "unit_by_name": None}


def test_pages_of_an_answer_have_every_row_once(asked: Assistant) -> None:
    numbers = asked.all("query", "values", path=GPT2, sql="SELECT id FROM gpu_ops ORDER BY id")
    count = asked.ask("query", path=GPT2, sql="SELECT count(*) FROM gpu_ops")["values"]
    assert numbers == [[number] for number in range(count[0][0])]


def test_a_timeline_holds_what_ran_and_why_nothing_did(asked: Assistant) -> None:
    path = "known_causes/same_stream.json.gz"
    [device] = analyze(TRACES / path).devices
    step = device.steps[-1]
    by_cause: dict[str, int] = {}
    for piece in asked.all("timeline", "pieces", path=path, step=step.name):
        if piece["what"] == "idle":
            inside = min(piece["end_ns"], step.window.end_ns) - max(piece["start_ns"], step.window.start_ns)
            by_cause[piece["cause"]] = by_cause.get(piece["cause"], 0) + inside
    assert by_cause == {cause: ns for cause, ns in step.idle_by_cause.items() if ns}
    with pytest.raises(ToolError, match="has no step 'nope'"):
        asked.ask("timeline", path=path, step="nope")


@pytest.mark.parametrize(
    "sql",
    [
        "COPY gpu_ops TO '/tmp/x'",
        "ATTACH '/tmp/x'",
        "INSTALL httpfs",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "DROP TABLE gpu_ops",
    ],
)
def test_sql_reads_no_file_and_changes_nothing(asked: Assistant, sql: str) -> None:
    with pytest.raises(ToolError):
        asked.ask("query", path=GPT2, sql=sql)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("timeline", {"path": GPT2, "step": "x" * 9000}, "has no step"),
        ("timeline", {"path": GPT2, "start_ns": 5, "end_ns": 1}, "larger end_ns"),
        ("tables", {"table": "x" * 9000}, "there is no table"),
        ("query", {"path": GPT2, "sql": "SELECT * FROM nothing"}, "there is no table"),
    ],
)
def test_errors_are_short_and_say_why(asked: Assistant, tool: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ToolError, match=message) as refused:
        asked.ask(tool, **arguments)
    assert len(str(refused.value)) < 1_200


@pytest.mark.parametrize("way", ["stdin", "ctrl-c"])
def test_it_ends_at_once_though_it_is_at_work(way: str) -> None:
    command = [sys.executable, "-m", "overlapscope", "mcp", str(TRACES)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert server.stdin is not None and server.stdout is not None
    sql = "SELECT count(*) FROM range(10000000) a, range(10000000) b"
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    for message in (
        {"id": 1, "method": "initialize", "params": about},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "query", "arguments": {"path": GPT2, "sql": sql}}},
        {"id": 3, "method": "tools/call", "params": {"name": "explain", "arguments": {"word": "pin"}}},
    ):
        server.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
    server.stdin.flush()
    assert [json.loads(server.stdout.readline())["id"] for _ in range(2)] == [1, 3]
    if way == "ctrl-c":
        server.send_signal(signal.SIGINT)
    server.stdin.close()
    assert server.wait(10) == (130 if way == "ctrl-c" else 0)
    assert server.stderr is not None
    assert server.stderr.read() == b""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems set no limit")
def test_questions_that_take_all_memory_leave_the_server_small() -> None:
    others = servers()
    with assistant(TRACES) as server:
        [process] = servers() - others
        server.ask("query", path=GPT2, sql="SELECT count(*) FROM gpu_ops")
        before = peak_bytes(process)
        for value in (*["repeat('x', 2000000000)"] * 5, "to_json(range(200000000))"):
            with pytest.raises(ToolError, match=r"the query needs more than 2\.15 GB of memory; ask for less"):
                server.ask("query", path=GPT2, sql=f"SELECT {value}")
        assert peak_bytes(process) - before < 50_000_000
        assert server.ask("query", path=GPT2, sql="SELECT 7")["values"] == [[7]]


def servers() -> set[Path]:
    """Return the entries in /proc of the servers that this process started."""
    return {
        folder
        for folder in Path("/proc").glob("[0-9]*")
        if (folder / "cmdline").read_bytes().split(b"\0")[1:4] == [b"-m", b"overlapscope", b"mcp"]
        and f"PPid:\t{os.getpid()}\n" in (folder / "status").read_text()
    }


def peak_bytes(process: Path) -> int:
    """Return the most memory that a process has had."""
    return int((process / "status").read_text().partition("VmHWM:")[2].split()[0]) << 10


def test_work_in_a_process_of_its_own_returns_its_text_or_raises_its_error() -> None:
    def fail() -> str:
        raise UsageError("ask otherwise --now", for_assistants="ask otherwise")

    assert in_child_process(lambda: "text" * 100_000, 60) == "text" * 100_000
    with pytest.raises(UsageError) as raised:
        in_child_process(fail, 60)
    assert raised.value.for_assistants == "ask otherwise"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems make no copy")
@pytest.mark.parametrize("end", [lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: time.sleep(600)])
def test_work_that_dies_or_takes_too_long_has_no_text(end: Callable[[], str]) -> None:
    assert in_child_process(end, 0.3) is None
    assert in_child_process(lambda: "text", 60) == "text"

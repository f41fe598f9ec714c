"""Programs that go on while others ask for recordings of them, as people start and ask them: in processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest

from benchmarks.several_gpus import free_port
from overlapscope.errors import UsageError
from overlapscope.plugins.watch import protocol
from overlapscope.plugins.watch.ask import Asking, ranks_of, record, status_of, statuses
from overlapscope.plugins.watch.protocol import RecordingRequest, Status
from overlapscope.plugins.watch.watcher import AskedRecording, Watcher
from overlapscope.reading import load
from overlapscope.recorder import recording
from overlapscope.recorder.options import Options
from tests.support import forked

TRAINING = """
import sys, time, torch
from torch import distributed
ranks = "RANK" in __import__("os").environ
if ranks:
    distributed.init_process_group("gloo")
model = torch.nn.Linear(100, 100)
model = torch.nn.parallel.DistributedDataParallel(model) if ranks else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for number in range(100_000):
    optimizer.zero_grad()
    model(torch.ones(8, 100)).square().mean().backward()
    optimizer.step()
    time.sleep(0.002)
    if __import__("os").path.exists("enough") and not number % 50:
        break
print("trained", model(torch.ones(1, 100)).shape)
if ranks:
    distributed.destroy_process_group()
"""
SERVER = """
import threading, torch
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        torch.ones(200, 200) @ torch.ones(200, 200)
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
open("port", "w").write(str(server.server_port))
server.serve_forever()
"""
ON_DEMAND = ("-m", "overlapscope", "run", "--on-demand")
PATIENCE_S = 180.0
Started = subprocess.Popen[str] | forked.ForkedProgram


def request_for(path: Path, **options: Any) -> RecordingRequest:
    return RecordingRequest(path=str(path), options=Options(**options))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Sockets of these tests alone; a short path, as sockets need."""
    with TemporaryDirectory(prefix="os-") as short:
        monkeypatch.setenv("XDG_RUNTIME_DIR", short)
        monkeypatch.setattr(protocol, "candidates", lambda: [Path(short, "overlapscope")])
        monkeypatch.chdir(tmp_path)
        yield Path(short, "overlapscope")


@pytest.fixture
def started(place: Path, tmp_path: Path) -> Iterator[Callable[..., Started]]:
    with ExitStack() as stack:

        def start(text: str, *, fresh: bool = False, **variables: str) -> Started:
            """Start a program that can be recorded on demand; a `fresh` one is on its own, and imports torch itself."""
            (tmp_path / "program.py").write_text(text)
            process: Started
            if fresh:
                process = subprocess.Popen(
                    [sys.executable, "program.py"],
                    cwd=tmp_path,
                    env={**os.environ, **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            else:
                process = forked.ForkedProgram([*ON_DEMAND, "program.py"], tmp_path, environment=variables)
            stack.callback(end, process)
            return process

        yield start


def end(process: Started) -> None:
    """With all its children: a launcher ends its ranks when it is asked to end."""
    process.terminate()
    try:
        process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()


def waited(ready: Callable[[list[Status]], bool]) -> list[Status]:
    until = time.monotonic() + PATIENCE_S
    while not ready(processes := statuses()):
        assert time.monotonic() < until, processes
        time.sleep(0.02)
    return processes


def stepping(count: int = 1) -> list[Status]:
    return waited(lambda watched: len(watched) == count and all(match.steps > 5 for match in watched))


def steps_of(trace: Path) -> list[str]:
    notes = load(trace).annotations
    names = {notes.name(row) for row in range(len(notes))}
    return sorted(name for name in names if name.startswith("ProfilerStep#"))


def overlapscope(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overlapscope", *arguments], capture_output=True, text=True, check=False
    )


def test_a_training_is_recorded_again_and_again_and_goes_on(started: Callable[..., Started], tmp_path: Path) -> None:
    training = started(TRAINING)
    (status,) = stepping()
    assert status.pid == training.pid and status.script == "program.py" and status.rank is None
    first = overlapscope("record", str(training.pid), "--steps", "3", "-o", "first.trace.json.gz")
    assert first.returncode == 0, first.stderr
    assert "The trace has no GPU activity" in first.stdout
    assert re.search(r"process \d+ is recorded from step \d+ on", first.stderr)
    assert len(steps_of(tmp_path / "first.trace.json.gz")) == 4  # one of them is warm-up
    assert len(load(tmp_path / "first.trace.json.gz").plain_steps.before.host_ns) == 10
    with Asking(training.pid, request_for(tmp_path / "light.trace.json.gz", active=5, light=True)) as asked:
        outcome = asked.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert outcome.failure == "" and outcome.path == str(tmp_path / "light.trace.json.gz")
    (status,) = stepping()
    assert status.recorded_at_ns is not None and status.plain_step_ns is not None and not status.recording
    (tmp_path / "enough").touch()
    printed, errors = training.communicate(timeout=PATIENCE_S)
    assert training.returncode == 0 and printed == "trained torch.Size([1, 100])\n"
    assert errors == f"overlapscope: `overlapscope record {training.pid}` records this program while it goes on.\n"
    assert statuses() == []


def test_a_server_without_steps_is_recorded_by_time(started: Callable[..., Started], tmp_path: Path) -> None:
    server = started(SERVER)
    written = tmp_path / "port"
    waited(lambda watched: len(watched) == 1 and written.exists() and written.read_text() != "")
    port = written.read_text()
    with Asking(server.pid, request_for(tmp_path / "x.trace.json.gz", duration_s=0.5, plain_steps=0)) as asked:
        begun: list[int] = []
        with ThreadPoolExecutor(1) as pool:
            outcome = pool.submit(asked.outcome, begun.append, until_begun_s=PATIENCE_S)
            while not outcome.done():
                urlopen(f"http://127.0.0.1:{port}", timeout=PATIENCE_S).close()
        assert outcome.result().failure == ""
    assert begun == [0]
    ops = load(tmp_path / "x.trace.json.gz").cpu_ops
    assert "aten::mm" in {ops.name(row) for row in range(len(ops))}
    urlopen(f"http://127.0.0.1:{port}", timeout=PATIENCE_S).close()
    assert server.poll() is None


def test_all_ranks_begin_with_the_same_step(started: Callable[..., Started], tmp_path: Path) -> None:
    # As torchrun sets them.
    job = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    for rank in ("0", "1"):
        started(TRAINING, RANK=rank, LOCAL_RANK=rank, **job)
    recording = stepping(2)
    assert sorted((step.rank, step.world_size) for step in recording) == [(0, 2), (1, 2)]
    ranks = ranks_of(recording[0])
    outcomes = record(ranks, request_for(tmp_path / "x.trace.json.gz", active=2), lambda *_: None)
    assert [outcome.failure for outcome in outcomes] == ["", ""]
    assert len({outcome.begun for outcome in outcomes}) == 1
    traces = sorted((tmp_path / "x.traces").iterdir())
    assert [trace.name for trace in traces] == ["rank0.trace.json.gz", "rank1.trace.json.gz"]
    assert steps_of(traces[0]) == steps_of(traces[1]) != []


def test_closing_the_connection_withdraws_the_request(started: Callable[..., Started], tmp_path: Path) -> None:
    training = started(TRAINING)
    stepping()
    asking = [sys.executable, "-m", "overlapscope", "record", str(training.pid), "--steps", "100000", "-o", "x.json"]
    client = subprocess.Popen(asking, stderr=subprocess.PIPE, text=True)
    assert client.stderr is not None
    while "is recorded from" not in client.stderr.readline():
        assert client.poll() is None
    client.kill()
    client.communicate()
    waited(lambda watched: not watched[0].recording)
    assert not (tmp_path / "x.json").exists()
    with Asking(training.pid, request_for(tmp_path / "y.json", active=1)) as asked:
        assert asked.outcome(lambda step: None, until_begun_s=PATIENCE_S).failure == ""
    assert training.poll() is None


def test_a_process_that_is_killed_leaves_neither_half_a_file_nor_a_socket(
    started: Callable[..., Started], place: Path, tmp_path: Path
) -> None:
    training = started(TRAINING)
    stepping()
    with Asking(training.pid, request_for(tmp_path / "x.json", active=100_000)) as asked:
        waited(lambda watched: watched[0].recording)
        training.send_signal(signal.SIGKILL)
        outcome = asked.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert outcome.failure == f"Process {training.pid} ended before its recording was complete."
    assert list(tmp_path.glob("x*")) == []
    training.wait()
    assert json.loads(overlapscope("record", "--list", "--format", "json").stdout) == []
    assert list(place.iterdir()) == []
    gone = overlapscope("record", str(training.pid))
    assert gone.returncode == 2 and f"there is no process {training.pid}" in gone.stderr


def test_a_recording_that_is_written_when_the_process_is_killed_is_reported(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    training = started(TRAINING)
    stepping()
    path = tmp_path / "x.json"
    # The steps that are timed after the recording take seconds.
    with Asking(training.pid, request_for(path, active=3, plain_steps=1_000)) as asked:
        while not path.exists():
            time.sleep(0.02)
        training.send_signal(signal.SIGTERM)
        outcome = asked.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert (training.wait(), outcome.path, outcome.failure) == (-signal.SIGTERM, str(path), "")
    assert "ended before all was timed" in outcome.notes[0] and steps_of(path)


def test_a_program_that_ends_meanwhile_leaves_what_was_recorded_and_says_so(
    started: Callable[..., Started], tmp_path: Path
) -> None:
    training = started(TRAINING)
    [status] = stepping()
    gone = msgspec.structs.replace(status, pid=2**22 + 1)
    with pytest.raises(UsageError, match=f"process {gone.pid} ended or cannot be asked"):
        record([status, gone], request_for(tmp_path / "x.json", active=5), lambda item, step: None)
    with Asking(training.pid, request_for(tmp_path / "x.json", active=100_000, plain_steps=0)) as asked:
        waited(lambda watched: watched[0].recording)
        (tmp_path / "enough").touch()
        outcome = asked.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert outcome.failure == "" and outcome.path == str(tmp_path / "x.json")
    assert steps_of(tmp_path / "x.json")
    assert training.wait(PATIENCE_S) == 0


def test_what_the_program_records_itself_takes_precedence(started: Callable[..., Started], tmp_path: Path) -> None:
    self_watching = TRAINING.replace(
        "for number in range(100_000):",
        "import overlapscope\nfor number in range(100_000):\n"
        "    if __import__('os').path.exists('own'):\n"
        "        __import__('os').remove('own')\n"
        "        with overlapscope.record('own.json') as recording: torch.ones(3) * 3; recording.step()",
    )
    training = started(self_watching)
    stepping()
    with Asking(training.pid, request_for(tmp_path / "x.json", active=100_000)) as asked:
        waited(lambda watched: watched[0].recording)
        (tmp_path / "own").touch()
        outcome = asked.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert outcome.failure == "The program began a recording of its own, which takes precedence."
    until = time.monotonic() + PATIENCE_S
    while not (tmp_path / "own.json").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert len(load(tmp_path / "own.json").cpu_ops)
    assert not (tmp_path / "x.json").exists()
    assert training.poll() is None


def test_a_variable_watches_what_imports_torch(started: Callable[..., Started], tmp_path: Path) -> None:
    # An installed package has this in its metadata.
    metadata = tmp_path / "site" / "overlapscope_watch-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: overlapscope-watch\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("[torch.backends]\nx = overlapscope.recorder.at_import:start\n")
    path = os.pathsep.join([str(tmp_path / "site"), *filter(None, sys.path)])
    training = started(TRAINING, fresh=True, PYTHONPATH=path, OVERLAPSCOPE_WATCH="1")
    (status,) = stepping()
    assert status.pid == training.pid
    with Asking(training.pid, request_for(tmp_path / "x.json", active=1)) as asked:
        assert asked.outcome(lambda step: None, until_begun_s=PATIENCE_S).failure == ""


def test_attach_watches_any_process_or_says_what_that_needs(
    started: Callable[..., Started],
) -> None:
    program = started("import time\nwhile True: time.sleep(0.01)", fresh=True)
    done = overlapscope("record", "--attach", "--seconds", "0.1", str(program.pid))
    if sys.version_info >= (3, 14):
        assert "needs Python 3.14" not in done.stderr
        assert [status.pid for status in statuses()] == [program.pid]
    else:
        assert done.returncode == 2
        assert "needs Python 3.14 or newer" in done.stderr and "OVERLAPSCOPE_WATCH=1" in done.stderr
    assert program.poll() is None


def test_what_comes_through_a_socket_and_is_not_from_us_harms_nothing(
    started: Callable[..., Started], place: Path
) -> None:
    training = started(TRAINING)
    stepping()
    for sent in (b"{}\n", b"\xff\n", b'{"type": "record", "path": 3}\n', b"x" * 200_000, b""):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(protocol.socket_of(place, training.pid)))
            try:
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert status_of(training.pid).steps > 0


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_cannot_connect(started: Callable[..., Started], place: Path) -> None:
    training = started(TRAINING)
    stepping()
    place.parent.chmod(0o755)
    assert place.stat().st_mode & 0o777 == 0o700
    path = protocol.socket_of(place, training.pid)
    assert path.stat().st_mode & 0o777 == 0o600
    assert as_somebody_else(path) == "PermissionError"
    # Even where the modes of the files would let them in.
    place.chmod(0o755)
    path.chmod(0o666)
    assert as_somebody_else(path) in ("nothing", "ConnectionResetError", "BrokenPipeError")
    # Files where others could have put them are not trusted either.
    assert statuses() == []


def as_somebody_else(path: Path) -> str:
    """Return the answer to another user's request for a process's status.

    It runs in a child, because others may not start this Python.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(b'{"type":"status"}\n')
                heard = client.recv(1000)
            os.write(writing, heard or b"nothing")
        except BaseException as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writing)
    with open(reading, "rb") as heard_there:
        return heard_there.read().decode()


def test_steps_of_other_threads_count_while_a_trace_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    watcher, counts = Watcher(), list[bool]()
    requested = AskedRecording("x.trace.json", Options())
    monkeypatch.setattr(recording, "_under_way", [requested])
    monkeypatch.setattr(AskedRecording, "end", lambda self: counts.append(watcher._is_the_programs()))
    watcher._running, watcher.begun = (requested, lambda outcome: None), 3
    watcher._end()
    assert counts == [True]
    assert not watcher._is_the_programs()

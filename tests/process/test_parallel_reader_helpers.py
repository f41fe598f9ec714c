"""Tests of the files that helpers read, and of helpers that fail."""

from __future__ import annotations

import gzip
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _crew, _processes, files, kineto
from overlapscope.reading._columns import EventColumns
from overlapscope.reading._crew import Crew
from tests.support.parallel_reading import dialect, events_of_all_kinds, read_both, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has helpers")


def in_helpers(what: Callable[[], None]) -> Callable[..., Any]:
    """A `StretchStream.batches` that does something first if it runs in a helper."""
    here, batches = os.getpid(), _crew.StretchStream.batches

    def changed(self: Any) -> Any:
        if os.getpid() != here:
            what()
        return batches(self)

    return changed


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _sometimes(what: Callable[[], None]) -> Callable[[], None]:
    turns = iter(range(1_000_000))

    def third_time() -> None:
        if next(turns) == 2:
            what()

    return third_time


def _fail() -> None:
    raise RuntimeError("a helper's own trouble")


FAILURES = [_kill, lambda: os._exit(3), _fail, lambda: sys.exit(1), lambda: time.sleep(60)]


@pytest.mark.parametrize("failure", FAILURES, ids=["killed", "exits", "raises", "system exit", "hangs"])
@pytest.mark.parametrize("later", [False, True])
def test_a_helper_that_fails_changes_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failure: Callable[[], None],
    later: bool,
) -> None:
    monkeypatch.setattr(_crew, "_PATIENCE_S", 0.2)
    monkeypatch.setattr(_crew.StretchStream, "batches", in_helpers(_sometimes(failure) if later else failure))
    path = write(tmp_path, dialect(events_of_all_kinds(800), "indented"))
    before = psutil.Process().children()
    read_both(path, 2000, processes=3)
    assert capfd.readouterr() == ("", "")
    assert psutil.Process().children() == before


def test_a_piece_that_is_cut_short_is_not_used(tmp_path: Path) -> None:
    piece = pickle.dumps(_crew.Piece(0, 5, EventColumns().share()), protocol=5)
    for size in range(len(piece)):
        file = (tmp_path / "results").open("w+b")
        file.write(piece + piece[:size])
        assert [result.held for result in _crew._results(file)] == [5]
    assert file.closed


@pytest.mark.parametrize("works", [0, 1])
def test_a_system_without_processes_to_spare_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    fork = os.fork
    turns = iter(range(100))

    def scarce() -> int:
        if next(turns) < works:
            return fork()
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(os, "fork", scarce)
    before = psutil.Process().children()
    _, counted, _ = read_both(write(tmp_path, dialect(events_of_all_kinds(300), "indented")), 1000, processes=3)
    assert counted == 0
    assert psutil.Process().children() == before


def test_an_application_that_ignores_its_children_gets_the_same(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        _, counted, _ = read_both(write(tmp_path, dialect(events_of_all_kinds(300), "indented")), 1000)
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert counted > 3


_INTERRUPTED = """
import os, sys, time
from overlapscope.reading import _crew, files, kineto
files.BLOCK_BYTES = 2000
batches = _crew.StretchStream.batches
def slow(self):
    os.write(1, b"reading\\n")
    time.sleep(0.05)
    return batches(self)
_crew.StretchStream.batches = slow
try:
    kineto.read(sys.argv[1], crew=_crew.Crew(3, 0, 1))
except KeyboardInterrupt:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("interrupted", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("to_all", [False, True])
def test_no_helper_outlives_an_interrupted_reader(tmp_path: Path, number: signal.Signals, to_all: bool) -> None:
    path = write(tmp_path, dialect(events_of_all_kinds(2000), "indented"))
    process = subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    for _ in range(6):
        assert process.stdout.readline() == "reading\n"
    (os.killpg if to_all else os.kill)(process.pid, number)
    # Both pipes end when the last process that could write to them has ended.
    out, err = process.communicate(timeout=30)
    assert err == ""
    if number == signal.SIGINT:
        assert out.endswith("interrupted\n")


def test_helpers_are_asked_for_large_plain_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(_crew, "_read_together", lambda stretches, processes, *_: asked.append(processes))
    monkeypatch.setattr(_crew, "alone", lambda: True)
    monkeypatch.setattr(_crew, "usable_cores", lambda: 2)
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    content = dialect(events_of_all_kinds(300), "indented")
    path = write(tmp_path, content)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(content))
    least = len(content) // 2

    kineto.read(path)
    kineto.read(packed, crew=Crew(None, 0, 1))
    kineto.read(path, crew=Crew(None, len(content), 1))
    assert asked == []
    kineto.read(path, crew=Crew(None, least, 1))
    assert asked == [2]
    monkeypatch.setattr(_crew, "usable_cores", lambda: 1)
    kineto.read(path, crew=Crew(None, least, 1))
    assert asked == [2]


def test_a_process_with_threads_reads_alone() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert not _processes.alone()
    finally:
        stop.set()
        thread.join()


def test_the_limit_holds_with_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    path = write(tmp_path, dialect(events_of_all_kinds(300), "indented"))
    size = path.stat().st_size
    crew = Crew(2, 0, 1)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        kineto.read(path, limit_bytes=size - 1, crew=crew)
    assert kineto.read(path, limit_bytes=size, crew=crew).damage.lost_events == 0


def test_a_file_that_grows_is_held_to_the_limit_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    path = write(tmp_path, dialect(events_of_all_kinds(300), "indented")[:-40])
    size = path.stat().st_size
    join = _crew._join

    def growing(*args: Any) -> None:
        with path.open("ab") as file:
            file.write(b" " * 2000)
        join(*args)

    monkeypatch.setattr(_crew, "_join", growing)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        kineto.read(path, limit_bytes=size + 1000, crew=Crew(2, 0, 1))

"""Tests of the files that threads read together, and of threads that fail."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _crew, files, kineto
from overlapscope.reading._crew import Crew
from tests.support.parallel_reading import dialect, events_of_all_kinds, read_both, write


@pytest.mark.parametrize("at", [0, 3])
def test_a_thread_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    batches = _crew.StretchStream.batches
    turns = iter(range(1_000_000))

    def failing(self: Any) -> Any:
        if next(turns) == at:
            raise MemoryError
        return batches(self)

    monkeypatch.setattr(_crew.StretchStream, "batches", failing)
    before = threading.active_count()
    _, counted = read_both(write(tmp_path, dialect(events_of_all_kinds(800), "indented")), 2000, threads=3)
    # Threads may overtake one another between taking a stretch and reading it.
    assert counted < at + 3
    assert threading.active_count() == before


@pytest.mark.parametrize("works", [0, 1])
def test_a_system_with_few_threads_to_spare_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    start = threading.Thread.start
    turns = iter(range(100))

    def scarce(self: threading.Thread) -> None:
        if next(turns) >= works:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    _, counted = read_both(write(tmp_path, dialect(events_of_all_kinds(300), "indented")), 1000, threads=3)
    assert (counted > 0) == (works > 0)


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
    print("interrupted", flush=True)
"""


def test_an_interrupted_reader_ends_without_reading_on(tmp_path: Path) -> None:
    path = write(tmp_path, dialect(events_of_all_kinds(2000), "indented"))
    with subprocess.Popen(
        [sys.executable, "-c", _INTERRUPTED, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        for _ in range(6):
            assert process.stdout.readline() == "reading\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert err == ""
    assert out.endswith("interrupted\n")
    assert out.count("reading\n") < path.stat().st_size // 2000 // 2


def test_threads_are_asked_for_large_plain_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(_crew, "_read_together", lambda stretches, threads, *_: asked.append(threads))
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


def test_the_limit_holds_with_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

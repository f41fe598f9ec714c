"""Tests of the files that threads read together, and of threads that fail."""

from __future__ import annotations

import gzip
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import files, kineto
from overlapscope.reading._stream import EventStream
from overlapscope.reading.files import SourceFile
from tests.support.parallel_reading import complete, dialect, events_of_all_kinds, read_both, write


@pytest.mark.parametrize("works", [0, 1])
def test_a_system_with_few_threads_to_spare_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: int
) -> None:
    start = threading.Thread.start
    turns = iter(range(1_000_000))

    def scarce(self: threading.Thread) -> None:
        if next(turns) >= works:
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", scarce)
    before = threading.active_count()
    events = [complete(number) for number in range(300)]
    _, counted = read_both(write(tmp_path, dialect(events, "indented")), 1000, threads=3)
    assert (counted > 0) == (works > 0)
    assert threading.active_count() == before


_INTERRUPTED = """
import os, sys, time
from overlapscope.reading import files, kineto
from overlapscope.reading._stream import EventStream
files.BLOCK_BYTES = 2000
take = EventStream._take
def slow(*args):
    os.write(1, b"reading\\n")
    time.sleep(0.05)
    return take(*args)
EventStream._take = slow
try:
    kineto.read(sys.argv[1], threads=3)
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


def test_threads_are_asked_for_large_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    start = EventStream.__init__

    def watched(self: EventStream, file: SourceFile, threads: int = 1) -> None:
        asked.append(threads)
        start(self, file, threads)

    monkeypatch.setattr(EventStream, "__init__", watched)
    monkeypatch.setattr(kineto, "usable_cores", lambda: 2)
    content = dialect(events_of_all_kinds(300), "indented")
    path = write(tmp_path, content)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(content))
    for least in ("_MIN_SHARED_BYTES", "_MIN_SHARED_PACKED_BYTES"):
        for file in (path, packed):
            kineto.read(file)
        assert asked == [1, 1] if least == "_MIN_SHARED_BYTES" else [2, 1]
        asked.clear()
        monkeypatch.setattr(kineto, least, 1000)
    for file in (path, packed):
        kineto.read(file)
    assert asked == [2, 2]


def test_a_reader_that_stops_early_leaves_no_thread_behind(tmp_path: Path) -> None:
    path = tmp_path / "no.json"
    path.write_bytes(b'{"traceEvents": [{"no trace": "at all"}' + b', {"no": 1}' * 400_000)
    before = threading.active_count()
    with pytest.raises(UnreadableTrace, match="none of its events can be read"):
        kineto.read(path, threads=2)
    assert threading.active_count() == before


def test_the_limit_holds_with_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BLOCK_BYTES", 1000)
    content = dialect(events_of_all_kinds(300), "indented")
    path = write(tmp_path, content)
    packed = tmp_path / "packed.json.gz"
    packed.write_bytes(gzip.compress(content))
    for file in (path, packed):
        with pytest.raises(UnreadableTrace, match="--max-size"):
            kineto.read(file, limit_bytes=len(content) - 1, threads=2)
        trace = kineto.read(file, limit_bytes=len(content), threads=2)
        assert trace.damage.lost_events == 0
        assert trace.unpacked_bytes == len(content)

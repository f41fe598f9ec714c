"""A file read by several processes is the same Trace, to the last column, as one read by one."""

from __future__ import annotations

import fcntl
import gzip
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _crew, _processes, files, kineto
from overlapscope.reading._columns import Columns, Share
from overlapscope.reading._crew import Crew
from overlapscope.trace.model import Damage, Table, Trace
from tests.support.helpers import various

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has helpers")

DATA = Path(__file__).parents[2] / "traces"
RECORDINGS = various()
ALONE = Crew(processes=1)
BASE_NS = 1_790_857_026_000_000_000


def assert_identical(one: Trace, other: Trace) -> None:
    for field in fields(Trace):
        a, b = getattr(one, field.name), getattr(other, field.name)
        if not isinstance(a, Table):
            assert a == b, field.name
            continue
        for column in fields(a):
            x, y = getattr(a, column.name), getattr(b, column.name)
            if column.name == "names":
                assert x == y
            else:
                assert x.dtype == y.dtype
                assert np.array_equal(x, y), (field.name, column.name)


@contextmanager
def patched(where: Any, name: str, value: Any) -> Iterator[None]:
    """A monkeypatch that ends within one example of hypothesis."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(where, name, value)
        yield


class Both(NamedTuple):
    trace: Trace
    counted: int
    """Stretches that counted."""
    helped: int
    """Stretches that helpers read."""


def read_both(path: Path, block: int, processes: int = 2, stretch_blocks: int = 1) -> Both:
    """The Trace in a file, which is the same either way."""
    counted = helped = 0
    here = os.getpid()
    add_share, pieces, join = Columns.add_share, _crew._pieces, _crew._join

    def counting(self: Columns, share: Share, numbers: Any) -> None:
        nonlocal counted
        counted += 1
        add_share(self, share, numbers)

    def joining(stretches: Any, by_reader: list[list[_crew.Piece]], *rest: Any) -> None:
        nonlocal helped
        helped = sum(map(len, by_reader[1:]))
        join(stretches, by_reader, *rest)

    def together(stretches: Any, stream: Any, tickets: BinaryIO) -> Iterator[_crew.Piece]:
        """Small files would be read before a helper had begun, so this process waits until one has."""
        if os.getpid() == here:
            deadline = time.monotonic() + 60
            while waiting(tickets) == 2 * len(stretches) and time.monotonic() < deadline:
                time.sleep(0.0005)
        for piece in pieces(stretches, stream, tickets):
            yield piece
            if os.getpid() == here:
                time.sleep(0.001)

    with (
        patched(files, "BLOCK_BYTES", block),
        patched(Columns, "add_share", counting),
        patched(_crew, "_pieces", together),
        patched(_crew, "_join", joining),
    ):
        alone = kineto.read(path, crew=ALONE)
        assert not counted
        trace = kineto.read(path, crew=Crew(processes, 0, stretch_blocks))
    assert_identical(trace, alone)
    return Both(trace, counted, helped)


def waiting(pipe: BinaryIO) -> int:
    """Bytes in a pipe."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def complete(number: int, name: str = "gemm", cat: str = "kernel", **rest: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": 7, "correlation": number, **rest}
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": 10.0 + 3 * number,
        "dur": 1.5,
        "args": args,
    }


def events_of_all_kinds(count: int) -> list[dict[str, Any]]:
    """Events whose names, categories and large streams are first met in every part of the file."""
    random_one = random.Random(count)
    kinds = ("kernel", "cuda_runtime", "cpu_op", "gpu_memcpy", "cuda_sync", "user_annotation", "python_function")
    events: list[dict[str, Any]] = []
    for number in range(count):
        stream = random_one.choice([7, -1, 20, 94_000_000_000_000 + random_one.randrange(12)])
        event = complete(
            number,
            name=f"name {random_one.randrange(1 + number // 2)}",
            cat=random_one.choice([*kinds, f"own {number // 9}"]),
            stream=stream,
            wait_on_stream=random_one.choice([stream, 94_000_000_000_500 + number % 5]),
            bytes=random_one.choice([12, "12", None]),
        )
        events.append(event)
        if number % 10 == 3:
            events.append({"ph": "f", "id": 2, "pid": 0, "tid": 7, "ts": 5.5, "cat": "fwdbwd", "name": "fwdbwd"})
    events.insert(count // 3, {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "ts": 1.0, "s": "g"})
    events.append({"ph": "i", "name": "Record Window End", "ts": 10.0 + 4 * count, "s": "g"})
    return events


def dialect(events: list[dict[str, Any]], how: str) -> bytes:
    head = {"schemaVersion": 1, "baseTimeNanoseconds": BASE_NS, "distributedInfo": {"rank": 3, "world_size": 8}}
    whole = {**head, "traceEvents": events, "traceName": "t"}
    match how:
        case "one line":
            return json.dumps(whole, separators=(",", ":")).encode()
        case "indented":
            return json.dumps(whole, indent=2).encode()
        case "crlf":
            return json.dumps(whole, indent=2).replace("\n", "\r\n").encode()
        case "bare":
            return json.dumps(events, ensure_ascii=False).encode()
        case "footer":
            return json.dumps({"traceEvents": events, **head}).encode()
        case "epoch":
            return json.dumps(
                {"traceEvents": [{**event, "ts": 1_790_857_026_000_000.25 + event["ts"]} for event in events]}
            ).encode()
    raise AssertionError(how)


DIALECTS = ("one line", "indented", "crlf", "bare", "footer", "epoch")


def write(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    return path


# -- the same Trace


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.split(".")[0])
def test_every_recording_is_the_same(tmp_path: Path, path: Path) -> None:
    processes = 2 + 2 * (RECORDINGS.index(path) % 2)
    plain = write(tmp_path, gzip.decompress(path.read_bytes()))
    trace, counted, helped = read_both(plain, max(plain.stat().st_size // 40, 3000), processes, stretch_blocks=2)
    assert counted > 3
    assert helped > 0
    assert trace.damage == kineto.read(path).damage


@pytest.mark.parametrize("how", DIALECTS)
@pytest.mark.parametrize("block", [700, 4096, 10_000])
def test_every_dialect_is_the_same(tmp_path: Path, how: str, block: int) -> None:
    path = write(tmp_path, dialect(events_of_all_kinds(400), how))
    trace, counted, helped = read_both(path, block, processes=3)
    # The whole file, but for its first two blocks and its last.
    assert counted == (path.stat().st_size - 1) // block - 2
    assert helped > 0
    assert trace.damage.lost_events == 0
    assert trace.damage.repaired_events > 0
    assert len(np.unique(trace.gpu_ops.stream)) > 10


HOSTILE = st.sampled_from(['"}, {"', "},\n{", '}, {"ph": "X"}, {', '\\"}],', "]}", "\\", "é\U0001f600", "{" * 40, ""])


@given(
    names=st.lists(st.one_of(HOSTILE, st.text(max_size=30)), min_size=30, max_size=60),
    how=st.sampled_from(DIALECTS),
    block=st.integers(60, 1500),
    stretch_blocks=st.integers(1, 4),
)
def test_hostile_names_are_the_same(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], how: str, block: int, stretch_blocks: int
) -> None:
    events = [complete(number, name=name, note=name) for number, name in enumerate(names)]
    path = write(tmp_path_factory.mktemp("hostile"), dialect(events, how))
    read_both(path, block, stretch_blocks=stretch_blocks)


@given(
    guesses=st.lists(st.one_of(st.none(), st.integers(0, 2500)), min_size=1, max_size=12),
    block=st.integers(150, 2500),
    right=st.integers(0, 3),
)
def test_wrong_guesses_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, guesses: list[int | None], block: int, right: int
) -> None:
    """Some stretches begin in strings, in arguments, or nowhere near an event."""
    # An event within a string of another one: reading may well begin there, and find an event.
    inner = json.dumps(complete(1, name="never happened"))
    events = [complete(number, name=f"n{number}", note=f"x}}, {inner}, {inner}, {{") for number in range(60)]
    path = write(tmp_path_factory.mktemp("guesses"), dialect(events, "one line"))
    true_guess = _crew.guess
    calls = iter(range(1_000_000))

    def wrong(file: files.SourceFile, end: int) -> int | None:
        number = next(calls)
        guess = true_guess(file, end) if number < right else guesses[number % len(guesses)]
        return None if guess is None else min(guess, end)

    with patched(_crew, "guess", wrong):
        trace, *_ = read_both(path, block)
    assert len(trace.gpu_ops) == 60


def test_arguments_that_look_like_events_are_guessed_wrong_and_found_out(tmp_path: Path) -> None:
    """Events inside arguments, which a stretch that begins among them takes for events of the file."""
    nested = [complete(number, name="never happened") for number in range(4)]
    events = [complete(number) | {"args": {"stream": 7, "list": nested}} for number in range(100)]
    path = write(tmp_path, dialect(events, "one line"))
    joined: list[int] = []
    join = _crew._join

    def watched(stretches: list[_crew.Stretch], by_reader: list[list[_crew.Piece]], *rest: Any) -> None:
        joined.append(len(stretches))
        join(stretches, by_reader, *rest)

    with patched(_crew, "_join", watched):
        trace, counted, _ = read_both(path, 3000)
    assert trace.names == ("gemm",)
    assert len(trace.gpu_ops) == 100
    assert counted < joined[0]


def test_trouble_after_a_wrong_guess_is_not_the_callers(tmp_path: Path) -> None:
    batches = _crew.StretchStream.batches
    turns = iter(range(1_000_000))

    def troubled(self: Any) -> Any:
        if next(turns) == 3:
            raise ValueError("nobody's business")
        return batches(self)

    with patched(_crew.StretchStream, "batches", troubled):
        read_both(write(tmp_path, dialect(events_of_all_kinds(300), "indented")), 1000)


def test_an_event_longer_than_a_stretch_is_the_same(tmp_path: Path) -> None:
    events = events_of_all_kinds(200)
    events[100]["args"]["note"] = "x" * 20_000
    _, counted, _ = read_both(write(tmp_path, dialect(events, "indented")), 1000)
    assert counted > 3


# -- damage


def test_a_file_cut_anywhere_is_the_same(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(120), "indented")
    chance = random.Random(5)
    for _ in range(40):
        trace, *_ = read_both(write(tmp_path, content[: chance.randrange(4000, len(content) - 80)]), 1000)
        assert trace.damage.truncated


@given(seed=st.integers(0, 10**9), flips=st.integers(1, 8), block=st.sampled_from([256, 1000, 3000]))
def test_a_damaged_file_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int, block: int
) -> None:
    chance = random.Random(seed)
    content = bytearray(dialect(events_of_all_kinds(150), chance.choice(DIALECTS)))
    for _ in range(flips):
        content[chance.randrange(2000, len(content))] = chance.choice(b'{}[]",:x\\\x00\xff 9')
    read_both(write(tmp_path_factory.mktemp("damaged"), bytes(content)), block)


def test_events_after_damage_are_kept_with_those_before(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(400), "indented")
    middle = content.index(b'"ph"', len(content) // 2)
    trace, counted, _ = read_both(write(tmp_path, content[:middle] + b'"x": nonsense, ' + content[middle:]), 1000)
    assert 0 < counted < len(content) // 1000 - 20
    assert trace.damage.examples


def test_an_array_that_ends_early_is_the_same(tmp_path: Path) -> None:
    content = dialect(events_of_all_kinds(400), "one line")
    middle = content.index(b', {"ph"') if b', {"ph"' in content else content.index(b',{"ph"', len(content) // 2)
    read_both(write(tmp_path, content[:middle] + b'], "displayTimeUnit": "ms"}'), 700)
    # Metadata after the events that is longer than several stretches.
    ended = content[:middle] + b'], "notes": ' + json.dumps(["y" * 300] * 50).encode() + b"}"
    trace, *_ = read_both(write(tmp_path, ended), 700)
    assert not trace.damage.truncated


# -- helpers that fail


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
    piece = pickle.dumps(_crew.Piece(0, 5, Columns().share()), protocol=5)
    for size in range(len(piece)):
        file = (tmp_path / "results").open("w+b")
        file.write(piece + piece[:size])
        assert [one.held for one in _crew._results(file)] == [5]
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


# -- when there are helpers


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


def test_a_clean_file_has_no_damage_with_helpers(tmp_path: Path) -> None:
    events = [complete(number) for number in range(500)]
    trace, counted, helped = read_both(write(tmp_path, dialect(events, "indented")), 1500, processes=4)
    assert counted > 10
    assert helped > 0
    assert trace.damage == Damage()
    assert len(trace.gpu_ops) == 500

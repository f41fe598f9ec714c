"""Tests of the cache: whatever happens to it, a trace is as if freshly read."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import resource
import shutil
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.dashboard.library import Library
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.reading import cache_folder, files, kineto
from overlapscope.reading.cache import (
    READER_DIGEST,
    BrokenEntry,
    Cache,
    _checksum,
    packed,
    read_entry,
    user_cache,
    write_entry,
)
from overlapscope.reading.cache_folder import Folder
from overlapscope.reading.source import ReadRequest
from overlapscope.report.model import build
from overlapscope.trace.model import Damage, Kind, Trace, TraceTable
from tests.support.helpers import MS, TRACES, Host, Op, Wait, make_trace, recordings, tried
from tests.support.kineto_files import kernel, write

pytestmark = pytest.mark.afresh

SMALL = TRACES / "streamed0_pinned0.json.gz"
REAL = tried(path for path in recordings() if "laboratory" not in path.parts)


def cache_in(folder: Path, **settings: Any) -> Cache:
    """Return a cache that keeps even tiny traces, and trusts a file's time as soon as the clock has ticked."""
    return Cache(Folder(folder), **({"limit_bytes": 1 << 30, "least_bytes": 0, "settled_ns": 0} | settings))


def load(cache: Cache, path: str | Path, **options: Any) -> Trace:
    return cache.load(path, ReadRequest(**({"progress": False} | options)))


def kept(cache: Cache, path: Path) -> bool:
    name = cache.entry_name(path)
    return name is not None and (cache.folder.path / name).is_file()


def assert_equal(first: Trace, other: Trace) -> None:
    for field in fields(Trace):
        mine, theirs = getattr(first, field.name), getattr(other, field.name)
        if not isinstance(mine, TraceTable):
            assert mine == theirs, field.name
            continue
        assert type(mine) is type(theirs) and mine.names is first.names
        for column in fields(mine):
            if column.name != "names":
                values, expected = getattr(mine, column.name), getattr(theirs, column.name)
                assert values.dtype == expected.dtype and np.array_equal(values, expected), (field.name, column.name)


def report(trace: Trace) -> bytes:
    return encode(build([analyze_trace(trace)]))


# -- the same as a fresh reading ------------------------------------------------------------------


@pytest.mark.parametrize("path", REAL, ids=lambda path: str(path.relative_to(TRACES)))
def test_a_kept_trace_is_the_one_that_was_read(path: Path, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fresh = kineto.read(path)
    assert_equal(load(cache, path), fresh)
    assert kept(cache, path)
    assert_equal(load(cache, path), fresh)


@pytest.mark.parametrize("path", [SMALL, TRACES / "gpt2_train.json.gz", TRACES / "ddp" / "rank1.json.gz"], ids=str)
def test_its_report_is_the_same_to_the_byte(path: Path, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, path)
    assert report(load(cache, path)) == report(kineto.read(path))


@pytest.mark.parametrize("spoil", ["cut", "cut-packed", "garbled", "impossible-time"])
def test_a_damaged_trace_is_kept_with_its_damage(spoil: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    content = gzip.decompress(SMALL.read_bytes())
    match spoil:
        case "cut":
            content = content[: len(content) * 2 // 3]
        case "cut-packed":
            content = SMALL.read_bytes()[:-900]
        case "garbled":
            middle = len(content) // 2
            content = content[:middle] + b'\x00"{[' + content[middle:]
        case "impossible-time":
            content = content.replace(b'"dur": ', b'"dur": -', 40)
    path.write_bytes(content)
    cache = cache_in(tmp_path / "cache")
    fresh = kineto.read(path)
    assert fresh.damage != Damage()
    load(cache, path)
    assert kept(cache, path)
    assert_equal(load(cache, path), fresh)


names = st.text(max_size=8) | st.sampled_from(["", "\0", "\U0001f600", "\N{REPLACEMENT CHARACTER}", "é" * 100])
hosts = st.lists(st.builds(Host, names, st.integers(0, 10), st.integers(10, 1 << 62), st.integers(-1, 9)), max_size=4)


@given(
    annotations=hosts,
    cpu_ops=hosts,
    named=st.lists(names, max_size=3),
    devices=st.dictionaries(st.integers(-1, 99), names),
    numbers=st.tuples(*[st.integers(-(1 << 62), 1 << 62)] * 3),
    rank=st.none() | st.integers(0, 1 << 40),
    damage=st.builds(Damage, st.booleans(), st.integers(0, 1 << 40), examples=st.tuples(names, names)),
)
def test_any_trace_comes_back_from_its_file(
    annotations: list[Host],
    cpu_ops: list[Host],
    named: list[str],
    devices: dict[int, str],
    numbers: tuple[int, int, int],
    rank: int | None,
    damage: Damage,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    trace = replace(
        make_trace(
            [Op(Kind.H2D, MS * number, MS * (number + 1), name=name) for number, name in enumerate(named)],
            annotations=annotations,
            cpu_ops=cpu_ops,
            waits=[Wait(5, 7)] if named else [],
            source="",
        ),
        device_names=devices,
        start_ns=numbers[0],
        end_ns=numbers[1],
        base_ns=numbers[2],
        rank=rank,
        versions=dict(zip("abc", named, strict=False)),
        flags=dict.fromkeys(named, True),
        damage=damage,
        recorder="another",
        unpacked_bytes=17,
    )
    path = tmp_path_factory.mktemp("any") / "any.npy"
    write_entry(path, packed(trace, path.name))
    assert_equal(replace(read_entry(path), source=""), trace)
    assert np.array_equal(np.load(path)["cpu_ops.start_ns"], trace.cpu_ops.start_ns)
    with pytest.raises(BrokenEntry, match="it was written as any"):
        read_entry(path.rename(path.with_name("another.npy")))


def test_a_trace_that_cannot_be_written_is_read_all_the_same(tmp_path: Path) -> None:
    # JSON has numbers that 64 bits have not.
    path = write(tmp_path / "t.json", [kernel(1, 5)], distributedInfo={"rank": 1 << 70})
    cache = cache_in(tmp_path / "cache")
    for _ in range(2):
        assert_equal(load(cache, path), kineto.read(path))


def test_columns_can_be_written_to_as_those_of_a_fresh_trace(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, SMALL)
    load(cache, SMALL).gpu_ops.start_ns[:] = 0
    assert_equal(load(cache, SMALL), kineto.read(SMALL))


# -- found by the file's state ----------------------------------------------------------------------


def test_the_source_is_the_path_as_given_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_in(tmp_path / "cache")
    shutil.copy(SMALL, tmp_path / "t.json")
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"bad\xff.json")
    # A link changes the file's state.
    os.link("t.json", name)
    load(cache, tmp_path / "t.json")
    for source in ("./t.json", Path("t.json"), name):
        assert load(cache, source).source == kineto.read(source).source
    assert len(cache.folder.held()) == 1


def test_a_rank_in_the_name_of_a_file_counts_as_in_a_fresh_reading(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    for _ in range(2):
        for name in ("rank3.json", "rank4.json", "t.json"):
            path = tmp_path / name
            if not path.exists():
                shutil.copy(SMALL, path)
            assert_equal(load(cache, path), kineto.read(path))
    assert [load(cache, tmp_path / name).rank for name in ("rank3.json", "rank4.json", "t.json")] == [3, 4, None]


def test_a_file_changed_in_place_with_its_time_put_back_is_read_again(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    path = write(tmp_path / "t.json", [kernel(1, 5)])
    state = path.stat()
    for digit in b"678":
        time.sleep(0.02)  # A tick of the file system's clock.
        load(cache, path)
        content = path.read_bytes()
        with path.open("r+b") as file:
            file.write(content.replace(b'"dur": 5', b'"dur": %c' % digit))
        os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
        assert (path.stat().st_mtime_ns, path.stat().st_size) == (state.st_mtime_ns, state.st_size)
        assert_equal(load(cache, path), kineto.read(path))
        assert load(cache, path).gpu_ops.end_ns[0] == 1000 * (1 + digit - ord("0"))
        path.write_bytes(content)


def test_a_file_changed_within_one_tick_is_read_again(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache", settled_ns=2_000_000_000)
    path = write(tmp_path / "t.json", [kernel(1, 0)])
    content = path.read_bytes()
    for number in range(200):
        duration = number % 10
        with path.open("r+b") as file:
            file.write(content.replace(b'"dur": 0', b'"dur": %d' % duration))
        os.utime(path, ns=(0, 0))
        assert load(cache, path).gpu_ops.end_ns[0] == 1000 * (1 + duration)
    assert cache.folder.held() == []


@pytest.mark.parametrize("settled_ns", [0, 2_000_000_000])
def test_a_file_that_changes_while_it_is_read_is_not_kept_under_the_wrong_content(
    settled_ns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_in(tmp_path / "cache", settled_ns=settled_ns)
    path = tmp_path / "t.json"
    content = gzip.decompress((TRACES / "pipeline_1stream.json.gz").read_bytes())
    changed = content.replace(b'"stream": 7', b'"stream": 9')
    assert len(content) > 1 << 20 and changed != content
    monkeypatch.setattr(files, "BLOCK_BYTES", 1 << 19)
    for moment in itertools.count(1):
        cache.folder.clear()
        path.write_bytes(content)
        time.sleep(0.02)
        calls = 0

        def at(done: int, total: int, moment: int = moment) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                path.write_bytes(changed)

        load(cache, path, progress=at)
        if calls < moment:
            break
        for now in (changed, content):
            path.write_bytes(now)
            assert_equal(load(cache, path), kineto.read(path))
    assert moment > 2


def test_what_is_not_a_regular_file_is_left_to_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # To read samples of it would be to take them away, or to wait for ever.
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        assert cache_in(tmp_path / "cache").entry_name(path) is None


def test_the_size_limit_holds_for_what_is_kept(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    unpacked = len(gzip.decompress(SMALL.read_bytes()))
    load(cache, SMALL)
    load(cache, SMALL, limit_bytes=unpacked)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        load(cache, SMALL, limit_bytes=unpacked - 1)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        kineto.read(SMALL, limit_bytes=unpacked - 1)
    assert kept(cache, SMALL)


def test_only_large_traces_are_kept(tmp_path: Path) -> None:
    unpacked = len(gzip.decompress(SMALL.read_bytes()))
    for least_bytes, count in ((unpacked + 1, 0), (unpacked, 1)):
        cache = cache_in(tmp_path, least_bytes=least_bytes)
        load(cache, SMALL)
        assert len(cache.folder.held()) == count


# -- entries that are not as they were written ----------------------------------------------------


def test_an_entry_cut_anywhere_is_known_as_broken(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, SMALL)
    (entry,) = cache.folder.held()
    content = entry.path.read_bytes()
    path = tmp_path / "cut" / entry.path.name
    path.parent.mkdir()
    for length in {*range(0, len(content), 997), *range(200), *range(len(content) - 300, len(content))}:
        path.write_bytes(content[:length])
        with pytest.raises(BrokenEntry):
            read_entry(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(BrokenEntry):
        read_entry(path)


def test_a_flipped_bit_anywhere_changes_nothing(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fresh = replace(load(cache, SMALL), source="")
    (entry,) = cache.folder.held()
    content = bytearray(entry.path.read_bytes())
    path = tmp_path / "flipped" / entry.path.name
    path.parent.mkdir()
    columns_begin = len(content) - len(np.load(entry.path).tobytes())
    for place in {*range(0, columns_begin, 37), *range(0, len(content), 499), *range(len(content) - 300, len(content))}:
        content[place] ^= 1 << place % 8
        path.write_bytes(content)
        try:
            trace = read_entry(path)
        except BrokenEntry:
            pass
        else:
            # White space of the header.
            assert place < columns_begin
            assert_equal(replace(trace, source=""), fresh)
        content[place] ^= 1 << place % 8


def test_pages_that_are_lost_or_in_each_others_place_are_noticed(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, TRACES / "gpt2_train.json.gz")
    (entry,) = cache.folder.held()
    content = entry.path.read_bytes()
    for first, second in ((10, 11), (3, 20), (4, 30)):
        pages = [content[at : at + 4096] for at in range(0, len(content), 4096)]
        pages[first], pages[second] = pages[second], pages[first]
        entry.path.write_bytes(b"".join(pages))
        with pytest.raises(BrokenEntry):
            read_entry(entry.path)
        pages[first] = bytes(4096)
        entry.path.write_bytes(b"".join(pages))
        with pytest.raises(BrokenEntry):
            read_entry(entry.path)
    entry.path.write_bytes(content)
    read_entry(entry.path)


@pytest.mark.parametrize("content", [b"", b"hello", bytes(100_000), b"{}" * 50, SMALL.read_bytes(), None])
def test_a_broken_or_foreign_entry_is_replaced(content: bytes | None, tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fresh = load(cache, SMALL)
    (entry,) = cache.folder.held()
    good = entry.path.read_bytes()
    entry.path.write_bytes(good[:-1000] if content is None else content)
    assert_equal(load(cache, SMALL), fresh)
    assert entry.path.read_bytes() == good


def test_a_whole_entry_with_other_columns_is_known_as_broken(tmp_path: Path) -> None:
    path = tmp_path / "entry"
    record = packed(make_trace([Op(Kind.COMPUTE, MS, 2 * MS)], cpu_ops=[Host("a", 0, MS)]), "entry")
    columns = {name: record[name] for name in record.dtype.names or () if name != "checksum"}
    about = json.loads(columns["about"].tobytes())

    def written(columns: dict[str, Any]) -> None:
        fields = [(name, values.dtype, values.shape) for name, values in columns.items()]
        record = np.empty((), [("checksum", np.uint64), *fields])
        for name, values in columns.items():
            record[name] = values
        record["checksum"] = _checksum(record)
        write_entry(path, record)

    def stated(**changes: Any) -> dict[str, Any]:
        return {"about": np.frombuffer(msgspec.json.encode(about | changes), np.uint8)}

    start_ns = columns["gpu_ops.start_ns"]
    written(columns | stated())
    read_entry(path)
    changes: list[dict[str, Any]] = [
        {"gpu_ops.start_ns": start_ns.astype(np.int32)},
        {"gpu_ops.start_ns": start_ns.astype(">i8")},
        {"gpu_ops.start_ns": start_ns.reshape(1, 1)},
        {"gpu_ops.start_ns": start_ns.repeat(2)},
        {"gpu_ops.start_ns": start_ns[:0]},
        {"about": columns["about"][:-1]},
        {"about": columns["about"][:0]},
        stated(source="another"),
        stated(more=1),
        stated(names=[1]),
    ]
    for change in changes:
        written(columns | change)
        with pytest.raises(BrokenEntry):
            read_entry(path)
    for missing in columns:
        written({name: values for name, values in columns.items() if name != missing})
        with pytest.raises(BrokenEntry):
            read_entry(path)
    for array in (record["gpu_ops.start_ns"], record.reshape(1), np.array([{}], object)):
        with path.open("wb") as file:
            np.save(file, array)
        with pytest.raises(BrokenEntry):
            read_entry(path)


@pytest.mark.parametrize("beyond_bytes", [1 << 16, 100_000_000_000])
def test_an_entry_of_any_size_keeps_nothing_from_being_read(beyond_bytes: int, tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    path = Path(shutil.copy(SMALL, tmp_path / "t.json"))
    time.sleep(0.02)
    fresh = load(cache, path)
    for file in cache.folder.path.glob("*.npy"):
        os.truncate(file, beyond_bytes)
    tracemalloc.start()
    try:
        assert_equal(load(cache, path), fresh)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_an_entry_under_the_name_of_another_traces_is_not_taken(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "cache")
    mine, other = (write(tmp_path / f"{name}.json", [kernel(1, dur)]) for name, dur in (("mine", 5), ("other", 7)))
    load(cache, mine)
    (entry,) = cache.folder.held()
    load(cache, other)
    (foreign,) = (file for file in cache.folder.held() if file.path != entry.path)
    shutil.copy(foreign.path, entry.path)
    assert_equal(load(cache, mine), kineto.read(mine))
    assert kept(cache, mine)


def test_a_change_through_memory_that_leaves_the_times_is_noticed_in_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = cache_in(tmp_path / "cache")
    path = write(tmp_path / "t.json", [kernel(1, 5)])
    time.sleep(0.02)
    load(cache, path)
    before = path.stat()
    path.write_bytes(path.read_bytes().replace(b'"dur": 5', b'"dur": 6'))
    # As if the change had left no other trace.
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda _: before)
        name = cache.entry_name(path)
    assert name is not None and not (cache.folder.path / name).exists()
    assert name.split("-")[1:5] == cache.folder.held()[0].path.name.split("-")[1:5]


def test_an_entry_of_another_reader_is_not_taken(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, SMALL)
    (entry,) = cache.folder.held()
    entry.path.rename(str(entry.path).replace(READER_DIGEST, "0" * 8))
    assert not kept(cache, SMALL)


# -- processes ------------------------------------------------------------------------------------


def test_threads_that_share_a_cache_all_get_what_is_right(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fresh = kineto.read(SMALL)
    wrong: list[BaseException] = []

    def work() -> None:
        try:
            for turn in range(10):
                assert_equal(load(cache, SMALL), fresh)
                if turn % 3 == 0:
                    cache.folder.clear()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- the folder -----------------------------------------------------------------------------------


def written_traces(folder: Path, count: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    return [write(folder / f"{number}.json", [kernel(1, 5 + number)] * 400) for number in range(count)]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    paths = written_traces(tmp_path / "traces", 4)
    cache = cache_in(tmp_path / "cache")
    for path in paths[:3]:
        load(cache, path)
        time.sleep(0.01)
    size = max(entry.bytes for entry in cache.folder.held())
    load(cache, paths[0])
    time.sleep(0.01)
    load(replace(cache, limit_bytes=int(3.5 * size)), paths[3])
    assert [kept(cache, path) for path in paths] == [True, False, True, True]


def test_a_trace_larger_than_the_limit_is_not_kept_and_drives_nothing_out(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    load(cache, SMALL)
    (entry,) = cache.folder.held()
    load(replace(cache, limit_bytes=entry.bytes + 1000), TRACES / "gpt2_train.json.gz")
    assert cache.folder.held() == [entry]


def test_only_its_user_may_look_into_the_folder(tmp_path: Path) -> None:
    cache = cache_in(tmp_path / "new" / "cache")
    load(cache, SMALL)
    assert cache.folder.path.stat().st_mode & 0o777 == 0o700
    assert all(entry.path.stat().st_mode & 0o777 == 0o600 for entry in cache.folder.held())


def test_a_folder_that_cannot_be_made_or_read_keeps_nothing_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        cache = cache_in(folder)
        for _ in range(2):
            assert_equal(load(cache, SMALL), kineto.read(SMALL))


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Make writes beyond this size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with pytest.MonkeyPatch.context() as patch:
        # If a module were first imported meanwhile, Python would leave truncated bytecode for good.
        patch.setattr(sys, "dont_write_bytecode", True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_is_full_keeps_nothing_from_being_read(tmp_path: Path) -> None:
    cache = cache_in(tmp_path)
    fresh = kineto.read(SMALL)
    for size in (0, 1000, 5000):
        with files_no_larger_than(size):
            trace = load(cache, SMALL)
        assert_equal(trace, fresh)
        assert cache.folder.held() == []
    load(cache, SMALL)
    assert len(cache.folder.held()) == 1


# -- as its users get it --------------------------------------------------------------------------


@pytest.fixture
def users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return the user's folder. Files are trusted as soon as the clock has ticked."""
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", str(tmp_path / "cache"))

    def at_once() -> Cache | None:
        cache = user_cache()
        return None if cache is None else replace(cache, settled_ns=0)

    monkeypatch.setattr("overlapscope.reading.cache.user_cache", at_once)
    return Folder(tmp_path / "cache")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Return a real trace, with enough white space to be large enough for the cache."""
    path = tmp_path / "large.json.gz"
    content = gzip.decompress(SMALL.read_bytes())
    path.write_bytes(gzip.compress(b"{" + b" " * (16 << 20) + content.removeprefix(b"{"), 0))
    return path


def test_load_keeps_large_traces_and_no_others(large: Path, users_folder: Folder) -> None:
    ov.load(SMALL)
    assert users_folder.held() == []
    ov.load(large, cache=False)
    assert users_folder.held() == []
    fresh = ov.load(large)
    assert len(users_folder.held()) == 1
    assert_equal(ov.load(large), fresh)
    assert_equal(ov.load(large, cache=False), fresh)


def test_a_limit_of_0_turns_the_cache_off(large: Path, users_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_SIZE", "0")
    assert user_cache() is None
    ov.load(large)
    assert users_folder.held() == []


def test_commands_use_the_cache_unless_asked_not_to(
    large: Path, users_folder: Folder, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    reports = []
    for more, count in (["--no-cache"], 0), ([], 1), ([], 1):
        assert main(["analyze", str(large), "--format", "json", *more]) == 0
        reports.append(capsysbinary.readouterr().out)
        assert len(users_folder.held()) == count
    assert len(set(reports)) == 1
    for command in (
        ["diff", str(large), str(large)],
        ["check", str(large), "--budget", "step_time >= 0 ms"],
        ["check", str(large), "--write-baseline", "--baseline", str(tmp_path / "b.json")],
    ):
        users_folder.clear()
        main([*command, "--no-cache"])
        assert users_folder.held() == []
        (tmp_path / "b.json").unlink(missing_ok=True)
        main(command)
        assert len(users_folder.held()) == 1, command


def test_the_dashboard_keeps_what_it_shows_but_nothing_of_dropped_files(large: Path, users_folder: Folder) -> None:
    for cache in (False, True):
        library = Library([large.parent], cache=cache)
        (shown,) = library.entries()
        opened = library.wait(shown.id)
        assert len(users_folder.held()) == cache
    assert library.wait(shown.id).page.report == opened.page.report
    users_folder.clear()
    library = Library()
    library.wait(library.add(large, "mine.json.gz"))
    assert users_folder.held() == []


def test_cache_info_and_clear(
    large: Path, users_folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def info() -> dict[str, Any]:
        assert main(["cache", "info", "--format", "json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    assert (info()["entries"], info()["bytes"], info()["problem"]) == (0, 0, None)
    ov.load(large)
    precious = users_folder.path / "precious.npy"
    precious.write_bytes(b"x")
    state = info()
    assert state["folder"] == str(users_folder.path)
    assert state["entries"] == 1
    assert state["bytes"] == sum(file.bytes for file in users_folder.held()) > 1000
    assert state["limit_bytes"] == 5 << 30
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_SIZE", "1 GiB")
    assert main(["cache", "info"]) == 0
    text = capsys.readouterr().out
    assert str(users_folder.path) in text and "1 trace, " in text and "1.07 GB" in text
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("Removed 1 trace, ")
    assert users_folder.held() == [] and precious.exists()
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out == f"{users_folder.path} was empty.\n"


def test_cache_info_says_why_nothing_is_kept(
    tmp_path: Path, users_folder: Folder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def last_line() -> str:
        assert main(["cache", "info"]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    with files_no_larger_than(4096):
        assert last_line().startswith(f"Nothing new is stored, because {tmp_path} is not writable (")
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_SIZE", "0")
    assert last_line() == "Nothing new is stored, because the limit is 0."
    (tmp_path / "cache").write_bytes(b"")
    monkeypatch.delenv("OVERLAPSCOPE_CACHE_SIZE")
    assert last_line().startswith("Nothing new is stored, because the folder cannot be read (")


def test_a_limit_that_is_not_a_size_is_reported(
    large: Path, users_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_SIZE", "lots")
    with pytest.raises(UsageError, match="OVERLAPSCOPE_CACHE_SIZE: 'lots' is not a size"):
        ov.load(large)
    ov.load(large, cache=False)
    # Small files are not looked for in the cache.
    ov.load(SMALL)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVERLAPSCOPE_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    usual = {"darwin": "/home/me/Library/Caches/overlapscope"}.get(sys.platform, "/home/me/.cache/overlapscope")
    assert cache_folder.default_folder() == Path(usual)
    if sys.platform == "linux":
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        assert cache_folder.default_folder() == Path(usual)
        monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
        assert cache_folder.default_folder() == Path("/var/cache/me/overlapscope")
    monkeypatch.setenv("OVERLAPSCOPE_CACHE_DIR", "~/mine")
    assert cache_folder.default_folder() == Path("/home/me/mine")

"""A packed file that another thread unpacks is the same Trace."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _crew, kineto
from overlapscope.reading._crew import Crew
from overlapscope.trace.model import Trace
from tests.support.parallel_reading import ALONE, RECORDINGS, assert_identical, dialect, events_of_all_kinds

AHEAD = Crew(2, least_packed_bytes=0)


def zstd(data: bytes) -> bytes:
    try:
        from compression import zstd  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        from backports import zstd  # type: ignore[no-redef,unused-ignore]
    packed: bytes = zstd.compress(data)
    return packed


PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstd}


def packed(tmp_path: Path, how: str, count: int = 6000) -> Path:
    path = tmp_path / f"trace.json.{how}"
    path.write_bytes(PACK[how](dialect(events_of_all_kinds(count), "indented")))
    return path


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def outcome(path: Path, crew: Crew) -> Trace | str:
    """Return the trace, or why there is none."""
    try:
        return kineto.read(path, crew=crew)
    except UnreadableTrace as refused:
        return str(refused)


@pytest.mark.parametrize("path", RECORDINGS[::12], ids=lambda path: path.name.split(".")[0])
def test_recordings_are_the_same(path: Path) -> None:
    assert_identical(kineto.read(path, crew=AHEAD), kineto.read(path, crew=ALONE))


@pytest.mark.parametrize("how", PACK)
@pytest.mark.parametrize("harm", ["none", "cut", "garbled", "cut at once"])
def test_damaged_files_are_the_same(tmp_path: Path, how: str, harm: str) -> None:
    path = packed(tmp_path, how)
    data = path.read_bytes()
    middle = len(data) // 2
    path.write_bytes(
        {
            "none": data,
            "cut": data[:-1000],
            "garbled": data[:middle] + b"\xff" * 400 + data[middle + 400 :],
            "cut at once": data[:40],
        }[harm]
    )
    alone, ahead = outcome(path, ALONE), outcome(path, AHEAD)
    if isinstance(alone, Trace) and isinstance(ahead, Trace):
        assert_identical(ahead, alone)
        assert alone.damage.truncated == (harm != "none")
    else:
        assert ahead == alone


def test_the_limit_holds(tmp_path: Path) -> None:
    path = packed(tmp_path, "gz")
    trace = kineto.read(path, crew=AHEAD)
    size = trace.unpacked_bytes
    assert size == len(gzip.decompress(path.read_bytes()))
    assert_identical(kineto.read(path, limit_bytes=size, crew=AHEAD), trace)
    with pytest.raises(UnreadableTrace, match="--max-size"):
        kineto.read(path, limit_bytes=size - 1, crew=AHEAD)


def test_a_system_without_threads_to_spare_unpacks_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, "gz")

    def scarce(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", scarce)
        trace = kineto.read(path, crew=AHEAD)
    assert_identical(trace, kineto.read(path, crew=ALONE))


def test_a_stream_without_its_last_bytes_is_the_same(tmp_path: Path) -> None:
    """The thread learns that they are missing before the reader has come to the end of the events."""
    path = packed(tmp_path, "gz")
    path.write_bytes(path.read_bytes()[:-4])
    assert_identical(kineto.read(path, crew=AHEAD), kineto.read(path, crew=ALONE))


def test_a_reader_that_stops_early_leaves_no_thread_behind(tmp_path: Path) -> None:
    path = tmp_path / "no.json.gz"
    path.write_bytes(gzip.compress(b"no trace at all, " * 50_000))
    with pytest.raises(UnreadableTrace, match="not JSON"):
        kineto.read(path, crew=AHEAD)


def test_only_large_packed_files_are_unpacked_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed(tmp_path, "gz", count=500)
    monkeypatch.setattr(_crew, "unpacked_ahead", lambda file: pytest.fail("a thread was started"))
    kineto.read(path)
    kineto.read(path, crew=Crew(1, least_packed_bytes=0))

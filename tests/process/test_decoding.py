"""Tests that an event becomes the same rows however it is decoded: scanned, in Python, or from text to repair."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _stream, files, kineto
from overlapscope.reading._events import Batch
from overlapscope.reading._scan import CATEGORIES
from overlapscope.trace.model import Trace
from tests.support.parallel_reading import RECORDINGS, assert_identical, dialect, events_of_all_kinds, patched, write


def decoded(path: Path) -> Trace:
    """Without the compiled reader."""
    with patched(_stream, "scanner", lambda: lambda _: None):
        return kineto.read(path, threads=1)


def as_if_broken(path: Path) -> Trace:
    """By the code that reads damaged text."""
    with patched(_stream.EventStream, "_typed_array", lambda *_: ("broken", Batch())):
        return decoded(path)


@pytest.mark.parametrize("path", RECORDINGS[::8], ids=lambda path: path.name.split(".")[0])
def test_recordings_are_the_same_either_way(path: Path) -> None:
    assert_identical(as_if_broken(path), decoded(path))
    assert_identical(decoded(path), kineto.read(path, threads=1))


OF_ALL_CATEGORIES = (*CATEGORIES, "ac2g", "fwdbwd", "cpu_instant_event", "cuda_event", "cuda_profiler_range", "own", "")

numbers = st.one_of(
    st.integers(-5, 5000), st.floats(0, 5000).map(lambda us: round(us, 3)), st.just("7"), st.none(), st.just(2.5e15)
)
identities = st.one_of(st.integers(-1, 9), st.sampled_from(["stream 7", "Spans", ""]))
ARGS = st.fixed_dictionaries(
    {},
    optional={
        "device": st.integers(-1, 3),
        "stream": st.one_of(st.integers(-1, 30), st.just(4294967295), st.just(94_000_000_000_001)),
        "correlation": st.one_of(st.integers(-1, 50), st.just("12")),
        "bytes": st.one_of(st.integers(0, 1 << 20), st.none()),
        "memory bandwidth (GB/s)": st.one_of(st.floats(0, 60), st.just("N/A"), st.just([1])),
        "Collective name": st.one_of(st.sampled_from(["allreduce", ""]), st.just(3)),
        "Process Group Name": st.one_of(st.sampled_from(["0", "dp"]), st.integers(0, 3), st.none()),
        "Process Group Ranks": st.one_of(st.just("[0, 1]"), st.just([0, 1])),
        "dtype": st.sampled_from(["Float", ""]),
        "Seq": st.integers(-1, 100),
        "wait_on_stream": st.integers(-1, 20),
        "cuda_sync_kind": st.sampled_from(["Stream Sync", "Event Sync", "Stream Wait Event"]),
    },
)
EVENT = st.fixed_dictionaries(
    {"ph": st.sampled_from("XXXXXXifs"), "cat": st.sampled_from(OF_ALL_CATEGORIES)},
    optional={
        "name": st.sampled_from(["gemm", "Memcpy HtoD (Pinned -> Device)", "Iteration Start: x", "[memory]", "é"]),
        "pid": identities,
        "tid": identities,
        "ts": numbers,
        "dur": numbers,
        "args": st.one_of(ARGS, st.none()),
    },
)


@given(events=st.lists(EVENT, min_size=1, max_size=25), block=st.sampled_from([150, 700, 1 << 19]))
def test_any_events_are_the_same_either_way(
    tmp_path_factory: pytest.TempPathFactory, events: list[dict[str, Any]], block: int
) -> None:
    """In one stretch or in many: an odd event changes how its neighbors are decoded, but not the result."""
    path = write(tmp_path_factory.mktemp("any"), json.dumps({"traceEvents": events}).encode())
    try:
        whole = kineto.read(path, threads=1)
    except UnreadableTrace as error:
        # There is no known event, or there are several processes.
        for read in (decoded, as_if_broken):
            with pytest.raises(UnreadableTrace, match=re.escape(str(error))):
                read(path)
        return
    with patched(files, "BLOCK_BYTES", block):
        assert_identical(kineto.read(path, threads=1), whole)
        for read in (decoded, as_if_broken):
            trace = read(path)
            # The examples quote the event as text or as a value.
            damage = replace(trace.damage, examples=whole.damage.examples)
            assert_identical(replace(trace, damage=damage), whole)


def test_an_odd_event_costs_its_neighbours_nothing(tmp_path: Path) -> None:
    events = events_of_all_kinds(60)
    plain = kineto.read(write(tmp_path, dialect(events, "indented")))
    odd = {
        "ph": "X",
        "cat": "kernel",
        "name": "odd",
        "pid": 0,
        "tid": 7,
        "ts": "500",
        "dur": 1,
        "args": {"device": "0"},
    }
    assert len(kineto.read(write(tmp_path, dialect([*events, odd], "indented"))).gpu_ops) == len(plain.gpu_ops) + 1


def test_one_odd_argument_costs_the_others_nothing(tmp_path: Path) -> None:
    usual = {"device": 0, "stream": 7, "bytes": 4096, "memory bandwidth (GB/s)": 12.5, "Collective name": "allreduce"}

    def event(number: int, **odd: Any) -> dict[str, Any]:
        args = usual | odd
        return {"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": 7, "ts": number, "dur": 1, "args": args}

    ranks = "Process Group Ranks"
    events = [event(1), event(2, bytes=None, **{ranks: [0, 1]}), event(3, **{ranks: "[0, 1]"})]
    trace = kineto.read(write(tmp_path, json.dumps(events).encode()))
    assert trace.gpu_ops.stated_gb_per_s.tolist() == [12.5, 12.5, 12.5]
    assert [trace.names[rank] if rank >= 0 else None for rank in trace.collectives.ranks] == [None, "[0, 1]", "[0, 1]"]


def test_grids_and_blocks_are_read_as_numbers_of_their_items(tmp_path: Path) -> None:
    grids: tuple[Any, ...] = (
        [4, 2, 1],
        [8],
        "[3, 1, 1]",
        [4, 0, 1],
        [1 << 31, 1 << 31, 1 << 31],
        [1.5, 1, 1],
        [],
        None,
        "none",
    )
    events = [
        {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": number, "dur": 1, "args": args}
        for number, args in enumerate([*({"stream": 7, "grid": grid, "block": [32, 4, 1]} for grid in grids), {}])
    ]
    path = write(tmp_path, json.dumps({"traceEvents": events}).encode())
    trace = kineto.read(path)
    assert trace.gpu_ops.blocks.tolist() == [8, 8, 3, *[-1] * 7]
    assert trace.gpu_ops.block_threads.tolist() == [*[128] * 9, -1]
    assert_identical(decoded(path), trace)


def test_places_are_those_in_the_list_of_events() -> None:
    path = RECORDINGS[0]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    trace = kineto.read(path)
    for table in (trace.gpu_ops, trace.cpu_ops, trace.runtime_calls, trace.device_annotations):
        assert [events[place]["name"] for place in table.place.tolist()] == [table.name(i) for i in range(len(table))]

"""Files that were made of the traces of several processes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

import overlapscope as ov
from overlapscope.errors import UnreadableTrace
from overlapscope.reading import _scan, expand
from overlapscope.trace.model import Trace, TraceTable
from tests.support.kineto_files import Event, write

Rename = Callable[[int, Any], int | str]
RENAMED: dict[str, Rename] = {
    "nothing": lambda rank, pid: pid,
    "labels": lambda rank, pid: f"[TP{rank:02d}] {pid}",
    "prefixes": lambda rank, pid: f"rank{rank}_{pid}",
    "strides": lambda rank, pid: pid if pid == "Spans" else pid + rank * 100_000_000,
    "texts": lambda rank, pid: str(pid),
}


def process(rank: int, seed: int, *, pid: int, device: int) -> list[Event]:
    """Return the events of a process, in the order in which Kineto writes them."""
    draw = random.Random(seed)
    host: list[Event] = []
    gpu: list[Event] = []
    now = 1000.0 + draw.randrange(5)
    free = 0.0
    for number in range(1, draw.randrange(4, 12)):
        length = draw.randrange(2, 9)
        name = draw.choice(["cudaLaunchKernel", "cudaMemcpyAsync"])
        args = {"External id": number, "correlation": number}
        event = {"ph": "X", "pid": pid, "tid": draw.choice([pid, 77]), "ts": now, "dur": length}
        host.append(event | {"cat": "cpu_op", "name": "aten::mm", "args": {"External id": number}})
        host.append(event | {"cat": "cuda_runtime", "name": name, "args": args})
        stream = draw.choice([7, 20])
        free = max(free, now + 1) + draw.randrange(3)
        op: Event = {"ph": "X", "pid": device, "tid": stream, "ts": free, "dur": draw.randrange(1, 30)}
        free += op["dur"]
        where = args | {"device": device, "stream": stream, "context": 1}
        copy = name == "cudaMemcpyAsync"
        gpu.append(
            op | {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "args": where | {"bytes": 64}}
            if copy
            else op | {"cat": "kernel", "name": f"k{draw.randrange(3)}", "args": where}
        )
        now += length + draw.randrange(9)
    host.append({"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": pid, "tid": pid, "ts": 1000})
    host[-1] |= {"dur": now - 1000, "args": {}}
    gpu.append({"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#3", "pid": device, "tid": 7, "ts": 1001})
    gpu[-1] |= {"dur": 9, "args": {}}
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 900}
    return [*host, *gpu, span | {"dur": now + rank, "args": {}}]


def renamed(events: list[Event], rank: int, rename: Rename) -> list[Event]:
    return [event | {"pid": rename(rank, event["pid"])} for event in events]


def assert_same(one: Trace, other: Trace) -> None:
    for table in fields(Trace):
        a, b = getattr(one, table.name), getattr(other, table.name)
        if isinstance(a, TraceTable):
            assert [a.name(row) for row in range(len(a))] == [b.name(row) for row in range(len(b))], table.name
            for column in fields(a):
                # The device of a copied annotation is its process, which some tools write in a way of their own.
                if column.name not in ("names", "name_id", "place") and (table.name, column.name) != (
                    "device_annotations",
                    "device",
                ):
                    assert np.array_equal(getattr(a, column.name), getattr(b, column.name)), (table.name, column.name)
        elif table.name in ("start_ns", "end_ns", "device_names", "damage"):
            assert a == b, table.name


@pytest.mark.parametrize("way", RENAMED)
@given(
    compiled=st.booleans(),
    seeds=st.tuples(st.integers(0, 999), st.integers(0, 999)),
    devices=st.sampled_from([(0, 1), (1, 0), (0, 0)]),
)
def test_a_merged_file_is_read_as_the_files_that_it_was_made_of(
    tmp_path_factory: pytest.TempPathFactory,
    way: str,
    compiled: bool,
    seeds: tuple[int, int],
    devices: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("merged")
    made = [
        process(rank, seed, pid=100 + rank, device=device)
        for rank, (seed, device) in enumerate(zip(seeds, devices, strict=True))
    ]
    merged = write(folder / "merged.json", [e for rank, es in enumerate(made) for e in renamed(es, rank, RENAMED[way])])
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(_scan, "_library", lambda: None)
        order = [1, 0] if devices == (1, 0) and way in ("nothing", "texts") else [0, 1]
        assert expand([merged]) == [Path(f"{merged}@0"), Path(f"{merged}@1")]
        for part, rank in enumerate(order):
            alone = ov.load(write(folder / f"{rank}.json", made[rank]))
            trace = ov.load(f"{merged}@{part}")
            assert trace.rank == part
            assert_same(alone, trace)


@given(seeds=st.tuples(st.integers(0, 999), st.integers(0, 999)), shift=st.sampled_from([0.0, 0.5, 3.0, 50.0]))
def test_events_sorted_by_time_are_refused_unless_they_have_labels(
    tmp_path_factory: pytest.TempPathFactory, seeds: tuple[int, int], shift: float
) -> None:
    folder = tmp_path_factory.mktemp("merged")
    made = [process(rank, seed, pid=100 + rank, device=rank)[:-1] for rank, seed in enumerate(seeds)]
    made[1] = [event | {"ts": event["ts"] + shift} for event in made[1]]
    merged = write(folder / "merged.json", sorted((e for es in made for e in es), key=lambda event: event["ts"]))
    with pytest.raises(UnreadableTrace, match="several processes, mixed so"):
        ov.load(f"{merged}@0")
    labelled = [event for rank, events in enumerate(made) for event in renamed(events, rank, RENAMED["labels"])]
    merged = write(folder / "merged.json", sorted(labelled, key=lambda event: event["ts"]))
    for rank in (0, 1):
        assert_same(ov.load(write(folder / f"{rank}.json", made[rank])), ov.load(f"{merged}@{rank}"))


def test_workers_without_gpu_work_are_no_processes(tmp_path: Path) -> None:
    events = process(0, 1, pid=100, device=0)
    workers = [event | {"pid": 200 + i} for i in range(3) for event in events if event["cat"] == "cpu_op"]
    asked = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGetDeviceCount", "pid": 201, "tid": 1, "ts": 1, "dur": 1}
    path = write(tmp_path / "workers.json", [*events, *workers, asked | {"args": {"correlation": 1}}])
    assert expand([path]) == [path]
    assert len(ov.load(path).cpu_ops) == 4 * len([event for event in events if event["cat"] == "cpu_op"])


def test_a_merged_file_read_without_its_processes_names_them(tmp_path: Path) -> None:
    path = write(tmp_path / "m.json", process(0, 1, pid=100, device=0) + process(1, 1, pid=101, device=1))
    with pytest.raises(UnreadableTrace, match=r"holds 2 processes; name one of .*m\.json@0 and .*m\.json@1\.$"):
        ov.load(path)
    with pytest.raises(UnreadableTrace, match=r"m\.json has 2 processes, counted from 0\.$"):
        ov.load(f"{path}@2")
    assert [trace.rank for trace in ov.analyze(path).traces] == [0, 1]


def test_a_file_in_kinetos_own_layout_is_not_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = json.dumps(process(0, 1, pid=100, device=0)[0]).replace('"ph"', '\n    "ph"')
    path = tmp_path / "own.json"
    path.write_text('{\n  "schemaVersion": 1,\n  "traceEvents": [\n  ' + event + "]}")
    monkeypatch.setattr("overlapscope.reading.kineto.EventStream", None)
    assert expand([path]) == [path]


def test_a_file_with_the_same_step_at_two_times_is_refused(tmp_path: Path) -> None:
    events = process(0, 1, pid=100, device=0)
    later = [event | {"ts": event["ts"] + 9000} for event in events]
    elsewhere = [event | {"tid": 5, "ts": event["ts"] + 1} for event in events if event["cat"] == "user_annotation"]
    for again in (later, elsewhere):
        with pytest.raises(
            UnreadableTrace,
            match=r"has ProfilerStep#3 more than once, so it holds several recordings; name the file of each\.$",
        ):
            ov.load(write(tmp_path / "c.json", events + again))
    noted_twice = [event | {"ts": event["ts"] + 1} for event in events if event["cat"] == "user_annotation"]
    assert len(ov.load(write(tmp_path / "d.json", events + noted_twice)).annotations) == 2


@given(position=st.integers(0, 2000), junk=st.sampled_from([b"\xff", b'"', b"{", b"}", b"]", b",", b""]))
def test_a_damaged_merged_file_is_read_or_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, position: int, junk: bytes
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "m.json"
    whole = write(path, process(0, 1, pid=100, device=0) + process(1, 2, pid=101, device=1)).read_bytes()
    path.write_bytes(whole[:position] + junk + whole[position + 3 :])
    for part in expand([path]):
        with suppress(UnreadableTrace):
            ov.load(part)


def test_a_process_of_its_own_for_each_call_is_refused_before_all_are_compared(tmp_path: Path) -> None:
    # Comparing each process with each op would take time and memory in proportion to the product.
    events = [event for number in range(257) for event in process(0, number, pid=1000 + number, device=0)]
    events = [event | {"pid": 7 + number} if event["cat"] == "kernel" else event for number, event in enumerate(events)]
    with pytest.raises(
        UnreadableTrace, match=r": holds events of 257 processes that launched GPU ops, more than 256; "
    ):
        ov.load(write(tmp_path / "mixed.json", events))

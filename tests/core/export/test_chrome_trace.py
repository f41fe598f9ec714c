"""Tests that a Trace written as a Chrome trace is read back unchanged, and has everything that viewers need."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import fields, replace

import overlapscope as ov
from overlapscope.export import chrome_trace
from overlapscope.trace.model import Trace, TraceTable
from tests.support import kineto_files

TRACES = Path(__file__).parents[3] / "traces"
RECORDINGS = (
    "ddp/rank1",  # collectives, syncs without a stream
    "known_causes/host_sync_stacks",  # Python frames
    "mixed_workloads/graph_with_copies",  # many ops of a single launch
    "mixed_workloads/model_on_two_devices",  # copies between devices
    "laboratory/activation_offload/none.trace",  # the profiler's own time
    "recorder/overlapscope.trace",  # waits whose stream the recorder noted, warm-up steps
)
OF_A_TEXT = ("name_id", "group", "ranks", "dtype", "description", "parts_in", "parts_out")


def again(trace: Trace, path: Path) -> Trace:
    path.write_bytes(b"".join(chrome_trace.blocks(trace, packed=path.suffix == ".gz")))
    return ov.load(path)


def assert_same(first: Trace, other: Trace) -> None:
    for field in fields(Trace):
        value, expected = getattr(first, field.name), getattr(other, field.name)
        if isinstance(expected, TraceTable):
            assert len(value) == len(expected), field.name
            for column in fields(expected):
                if column.name not in ("names", "place"):
                    mine, theirs = texts_of(value, column.name), texts_of(expected, column.name)
                    assert mine.dtype == theirs.dtype and np.array_equal(mine, theirs), (field.name, column.name)
        elif field.name not in ("source", "names", "unpacked_bytes"):
            assert value == expected, field.name


def texts_of(table: TraceTable, column: str) -> Any:
    values = getattr(table, column)
    return np.array([table.names[i] if i >= 0 else "" for i in values.tolist()]) if column in OF_A_TEXT else values


@pytest.mark.parametrize("name", RECORDINGS)
def test_a_recording_is_read_back_as_it_was(name: str, tmp_path: Path) -> None:
    trace = ov.load(TRACES / f"{name}.json.gz")
    assert_same(again(trace, tmp_path / "again.json.gz"), trace)


EVENTS = st.one_of(
    st.builds(
        kineto_files.kernel,
        st.integers(0, 10**7).map(lambda ns: ns / 1000),
        st.integers(0, 10**5).map(lambda ns: ns / 1000),
        stream=st.sampled_from([0, 7, -1, 4294967295]),
        correlation=st.integers(0, 9),
        name=st.sampled_from(
            ["k", "ncclDevKernel_AllReduce", "__amd_rocclr_copyBuffer", "CopyHostToDevice", 'q"\\\n☃']
        ),
        device=st.sampled_from([0, 3, -1]),
    ),
    st.builds(
        kineto_files.memcpy,
        st.integers(0, 10**7).map(lambda ns: ns / 1000),
        st.integers(0, 10**5).map(lambda ns: ns / 1000),
        name=st.sampled_from(
            [
                "Memcpy HtoD (Pageable -> Device)",
                "Memcpy DtoH (Device -> Pinned)",
                "CopyDeviceToHost",
                "?",
                "Memset (x)",
            ]
        ),
        bytes=st.integers(-1, 2**40),
    ),
    st.builds(
        kineto_files.call,
        st.integers(0, 10**7).map(lambda ns: ns / 1000),
        st.integers(0, 10**5).map(lambda ns: ns / 1000),
        st.integers(0, 9),
        name=st.sampled_from(["cudaLaunchKernel", "cuLaunchKernel", "hipLaunchKernel"]),
        tid=st.sampled_from([1, -1, 2**63 + 5]),
    ),
    st.builds(
        kineto_files.host,
        st.sampled_from(
            ["cpu_op", "user_annotation", "python_function", "overhead", "gpu_user_annotation", "cuda_sync"]
        ),
        st.sampled_from(["aten::mm", "ProfilerStep#3", "Stream Sync", ""]),
        st.integers(0, 10**7).map(lambda ns: ns / 1000),
        st.integers(0, 10**5).map(lambda ns: ns / 1000),
        correlation=st.integers(0, 9),
        wait_on_stream=st.sampled_from([-1, 7]),
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(EVENTS, max_size=12), st.sampled_from([0, 1790857026000000000]))
@example([kineto_files.kernel(0.0, 0.0, stream=stream) for stream in (0, 2**32 - 1)], 0)
def test_any_events_are_read_back_as_they_were(tmp_path: Path, events: list[dict[str, Any]], base: int) -> None:
    # A file with a step twice holds several recordings.
    steps = [number for number, event in enumerate(events) if event["name"] == "ProfilerStep#3"]
    events = [event for number, event in enumerate(events) if number not in steps[1:]]
    top = {"baseTimeNanoseconds": base, "distributedInfo": {"rank": 3}, "with_stack": 1, "cupti_version": "007"}
    trace = ov.load(kineto_files.write(tmp_path / "made.json", events, **top))
    # A size that no copy can have is not written.
    written = replace(trace, damage=replace(trace.damage, impossible_sizes={}))
    assert_same(again(trace, tmp_path / "again.json"), written)


def test_viewers_find_names_and_arrows(tmp_path: Path) -> None:
    trace = ov.load(TRACES / "mixed_workloads" / "graph_with_copies.json.gz")
    path = tmp_path / "again.json.gz"
    again(trace, path)
    document = json.loads(gzip.decompress(path.read_bytes()))
    events = document["traceEvents"]
    named = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert named[0, 7] == "stream 7" and named[0, 999_999] == "waits for the device, or an event"
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"host", "NVIDIA H200"}
    lanes = {(e["pid"], e["tid"]) for e in events if e["ph"] == "X" and e["cat"] != "Trace"}
    assert lanes <= set(named)
    flows = Counter((e["id"], e["ph"]) for e in events if e.get("cat") == "ac2g")
    launched = int((trace.gpu_ops.launch >= 0).sum())
    assert launched > 100 and flows == Counter((n, p) for n in range(1, launched + 1) for p in "sf")
    assert document["traceName"] == "graph_with_copies.json.gz" and "overlapscope" not in document


def test_a_prediction_says_that_it_is_one(tmp_path: Path) -> None:
    recorded = ov.load(TRACES / "recorder" / "overlapscope.trace.json.gz")
    assert recorded.predicted_by is None
    trace = replace(recorded, predicted_by=("pin", "no-sync cudaStreamSynchronize"))
    path = tmp_path / "again.json.gz"
    assert again(trace, path).predicted_by == trace.predicted_by
    document = json.loads(gzip.decompress(path.read_bytes()))
    assert document["traceName"] == ("prediction of overlapscope.trace.json.gz with pin, no-sync cudaStreamSynchronize")
    assert document["overlapscope"]["prediction"] == {
        "of": "overlapscope.trace.json.gz",
        "interventions": ["pin", "no-sync cudaStreamSynchronize"],
    }
    assert document["overlapscope"]["warm_up_steps"] == 2

"""Tests of the hardware's properties that a trace shows, on traces built by hand and on recordings."""

from __future__ import annotations

import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.prediction.calibration import Constants, SizedTime
from overlapscope.prediction.hardware import MIN_OBSERVATIONS, observe
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, TRACES, US, Host, Op, Wait, make_trace, tried
from tests.support.recordings import trace_of

RECORDINGS = tried(
    path
    for folder in ("known_causes", "mixed_workloads", "laboratory/offload_pipeline", "laboratory/cuda_graph", "ddp")
    for path in sorted((TRACES / folder).glob("*.json.gz"))
)
FIRST = Op(Kind.COMPUTE, 0, 1 * US, launch=(-10 * US, -5 * US))
"""Before the first op, nothing is known of the device."""


def kernel(start: int, end: int, called: int, returned: int | None = None, **rest: Any) -> Op:
    return Op(Kind.COMPUTE, start, end, launch=(called, called + 4 * US if returned is None else returned), **rest)


def copy(start: int, end: int, called: int, *, size: int = 1 << 20, back: bool = False, **rest: Any) -> Op:
    ends = (Memory.DEVICE, Memory.PINNED) if back else (Memory.PINNED, Memory.DEVICE)
    rest = {"source": ends[0], "target": ends[1]} | rest
    kind = Kind.D2H if back else Kind.H2D
    return Op(kind, start, end, launch=(called, called + 2 * US), call="cudaMemcpyAsync", size=size, **rest)


# -- copies ---------------------------------------------------------------------------------------


def test_copies_that_run_alone_are_measured_by_size() -> None:
    lengths = [100, 101, 102, 103, 190]
    ops = [copy(n * MS, n * MS + us * US, n * MS - 50 * US) for n, us in enumerate(lengths)]
    ops += [copy(n * MS, n * MS + 7 * US, n * MS - 50 * US, size=4096) for n in range(10, 13)]
    observations = observe(make_trace(ops))
    assert observations.h2d == (
        SizedTime(bytes=4096, duration_ns=7 * US, low_ns=7 * US, high_ns=7 * US),
        SizedTime(bytes=1 << 20, duration_ns=102 * US, low_ns=100 * US, high_ns=190 * US),
    )
    assert observations.d2h == ()


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"source": Memory.PAGEABLE}, id="pageable"),
        pytest.param({"source": Memory.UNKNOWN}, id="unknown memory"),
        pytest.param({"size": -1}, id="unknown size"),
    ],
)
def test_other_copies_are_not_measured(other: dict[str, Any]) -> None:
    assert observe(make_trace([copy(n * MS, n * MS + US, n * MS - 1, **other) for n in range(5)])).h2d == ()


def test_of_too_few_copies_nothing_is_reported() -> None:
    ops = [copy(n * MS, n * MS + US, n * MS - 1) for n in range(MIN_OBSERVATIONS)]
    assert observe(make_trace(ops[:-1])).h2d == ()
    assert len(observe(make_trace(ops)).h2d) == 1


def test_copies_of_one_direction_that_share_the_link_are_not_measured() -> None:
    ops = []
    for n in range(5):
        ops += [copy(n * MS, n * MS + 200 * US, n * MS - 9, stream=s) for s in (7, 8)]
    assert observe(make_trace(ops)).h2d == ()


def test_both_ways_at_once_give_the_factor_by_which_each_is_slower() -> None:
    ops = [copy(n * MS, n * MS + 100 * US, n * MS - 9) for n in range(3)]
    ops += [copy(n * MS, n * MS + 90 * US, n * MS - 9, back=True) for n in range(3, 6)]
    for n in range(6, 12):
        # At 0.8 of its rate for 100 us, then alone: 20 us of work are left. The other: 0.9 x 100 = 90 us.
        ops += [copy(n * MS, n * MS + 120 * US, n * MS - 9), copy(n * MS, n * MS + 100 * US, n * MS - 9, back=True)]
        ops[-1] = ops[-1]._replace(stream=9)
    observations = observe(make_trace(ops))
    assert observations.h2d_two_way == pytest.approx(0.8) and observations.d2h_two_way == pytest.approx(0.9)
    assert [item.duration_ns for item in observations.h2d + observations.d2h] == [100 * US, 90 * US]


# -- launches -------------------------------------------------------------------------------------


def test_a_launch_on_an_idle_device_shows_its_latency() -> None:
    ops = [FIRST]
    for n in range(1, 8):
        # The second one of each pair waits for the first.
        ops += [
            kernel(n * MS + 7 * US, n * MS + 500 * US, n * MS),
            kernel(n * MS + 501 * US, n * MS + 600 * US, n * MS + 9),
        ]
    observations = observe(make_trace(ops))
    assert (observations.launch_latency_ns, observations.launch_call_ns) == (7 * US, 4 * US)


def test_an_asynchronous_copy_has_a_latency_of_its_own() -> None:
    ops = [FIRST] + [copy(n * MS + 5 * US, n * MS + 9 * US, n * MS) for n in range(1, 6)]
    observations = observe(make_trace(ops))
    assert (observations.copy_latency_ns, observations.copy_call_ns, observations.launch_latency_ns) == (
        5 * US,
        2 * US,
        None,
    )


def test_queued_kernels_show_the_gap_between_them() -> None:
    ops = [kernel(n * 101 * US, n * 101 * US + 100 * US, n - 90 * US, n - 80 * US) for n in range(6)]
    # Launched when the one before had ended: late, not queued.
    ops += [kernel(2 * MS, 2 * MS + US, 2 * MS - 5 * US)]
    assert observe(make_trace(ops)).kernel_gap_ns == 1 * US


def test_an_event_between_two_kernels_is_not_a_gap() -> None:
    ops = [kernel(n * 109 * US, n * 109 * US + 100 * US, 10 * n - 90 * US, 10 * n - 80 * US) for n in range(6)]
    events = [Host("cudaEventRecord", 10 * n - 90 * US + 5, 10 * n - 90 * US + 6) for n in range(6)]
    assert observe(make_trace(ops, calls=events)).kernel_gap_ns is None


def test_a_full_queue_does_not_make_launch_calls_long() -> None:
    ops = []
    for n in range(1000):
        length = 100 * US if n > 300 else 3 * US
        ops.append(kernel(MS + n * MS, MS + n * MS + MS, n * 200 * US, n * 200 * US + length))
    assert observe(make_trace(ops)).launch_call_ns == 3 * US


def test_an_event_hands_over_from_a_copy_to_a_kernel() -> None:
    ops, waits, records = [], [], []
    for n in range(5):
        at = n * MS
        ops += [copy(at, at + 300 * US, at - 9 * US, stream=20), kernel(at + 306 * US, at + 400 * US, at + 9 * US)]
        records.append(Host("cudaEventRecord", at, at + 500))
        waits.append(Wait(at + 3 * US, stream=7))
    observations = observe(make_trace(ops, calls=records, waits=waits))
    assert observations.handover_ns == 6 * US


# -- synchronizes ---------------------------------------------------------------------------------


def test_a_synchronize_shows_when_it_returns_and_what_it_takes_by_itself() -> None:
    ops, calls = [], []
    for n in range(4):
        at = n * MS
        ops.append(kernel(at, at + 100 * US, at - 10 * US))
        calls += [
            Host("cudaDeviceSynchronize", at, at + 104 * US),
            Host("cudaStreamSynchronize", at + 200 * US, at + 202 * US),
        ]
    observations = observe(make_trace(ops, calls=calls))
    assert (observations.return_ns, observations.sync_call_ns) == (4 * US, 2 * US)


# -- graphs ---------------------------------------------------------------------------------------


def graphs(sizes: list[int], base: int, node: int) -> Trace:
    """Graphs of chains of kernels; each kernel is first an op of its own, then joined to its graph's launch."""
    ops, launch_of = [FIRST], {}
    for number, size in enumerate(sizes):
        called = (number + 1) * MS
        returned = called + base + node * (size - 1)
        for n in range(size):
            launch_of[returned + 5 * US + n * 1200] = called
            start = returned + 5 * US + n * 1200
            ops.append(Op(Kind.COMPUTE, start, start + 1000, launch=(called, returned), call="cudaGraphLaunch"))
    trace = make_trace(ops)
    first = {int(at): row for row, at in reversed(list(enumerate(trace.runtime_calls.start_ns.tolist())))}
    launch = [first[launch_of.get(int(at), -10 * US)] for at in trace.gpu_ops.start_ns]
    return replace(trace, gpu_ops=replace(trace.gpu_ops, launch=np.array(launch)))


def test_graphs_of_several_sizes_show_what_a_launch_and_a_node_cost() -> None:
    observations = observe(graphs([1, 10, 100, 1, 10, 100], base=3000, node=700))
    assert observations.graph_call_ns == pytest.approx(3000, abs=1)
    assert observations.graph_node_call_ns == pytest.approx(700)
    assert observations.graph_latency_ns == pytest.approx(8000, abs=1)
    assert observations.graph_gap_ns == 200


def test_graphs_of_one_size_show_their_gaps_alone() -> None:
    observations = observe(graphs([10, 10, 10], base=3000, node=700))
    assert (observations.graph_call_ns, observations.graph_node_call_ns, observations.graph_latency_ns) == (
        None,
        None,
        None,
    )
    assert observations.graph_gap_ns == 200


# -- recordings -----------------------------------------------------------------------------------


def test_a_trace_that_shows_nothing_gives_nothing() -> None:
    assert observe(make_trace([])) == Constants()
    assert observe(make_trace([Op(Kind.COMPUTE, 0, 5)])) == Constants()


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_what_recordings_show_is_possible(path: Path) -> None:
    observations = observe(trace_of(path))
    for copies in (observations.h2d, observations.d2h):
        for copy in copies:
            assert 0 < copy.low_ns <= copy.duration_ns <= copy.high_ns
            # A PCIe 5 link of 16 lanes carries 63 GB/s.
            assert copy.bytes / copy.low_ns < 63
        assert [copy.bytes for copy in copies] == sorted({copy.bytes for copy in copies})
    times = {
        name: value
        for name, value in msgspec.structs.asdict(observations).items()
        if name.endswith("_ns") and value is not None
    }
    assert all(value >= 0 for value in times.values())
    assert all(value < 100 * US for name, value in times.items() if not name.startswith("graph"))
    for factor in (observations.h2d_two_way, observations.d2h_two_way):
        assert factor is None or 0.4 < factor <= 1


@pytest.mark.parametrize("name", ["mixed_workloads/kv_offload", "known_causes/engine_busy"])
def test_copies_and_gaps_are_those_that_a_plain_loop_finds(name: str) -> None:
    trace = trace_of(TRACES / f"{name}.json.gz")
    ops, calls = trace.gpu_ops, trace.runtime_calls
    rows = range(len(ops))
    alone = defaultdict(list)
    for row in rows:
        pinned = Memory.PINNED in (ops.source_kind[row], ops.target_kind[row])
        others = (
            other
            for other in rows
            if other != row
            and ops.kind[other] in (Kind.H2D, Kind.D2H)
            and ops.start_ns[other] < ops.end_ns[row]
            and ops.start_ns[row] < ops.end_ns[other]
        )
        if ops.kind[row] == Kind.H2D and pinned and not any(True for _ in others):
            alone[int(ops.bytes[row])].append(int(ops.end_ns[row] - ops.start_ns[row]))
    observations = observe(trace)
    assert {item.bytes: item.duration_ns for item in observations.h2d} == {
        size: statistics.median_low(lengths) for size, lengths in alone.items() if len(lengths) >= MIN_OBSERVATIONS
    }

    events = [row for row in range(len(calls)) if calls.name(row) in ("cudaEventRecord", "cudaStreamWaitEvent")]
    times = calls.start_ns[events]
    gaps: list[int] = []
    last: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: int(calls.start_ns[ops.launch[row]])):
        stream, called = int(ops.stream[row]), calls.start_ns[ops.launch[row]]
        before = last.get(stream)
        last[stream] = row
        if before is None or {int(ops.kind[row]), int(ops.kind[before])} != {Kind.COMPUTE}:
            continue
        queued = calls.end_ns[ops.launch[row]] <= ops.end_ns[before] - 20 * US
        if queued and not ((times >= calls.start_ns[ops.launch[before]]) & (times < called)).any():
            gaps.append(int(ops.start_ns[row] - ops.end_ns[before]))
    assert observations.kernel_gap_ns == statistics.median_low(gaps)


def test_clocks_that_contradict_each_other_give_nothing_negative() -> None:
    trace = trace_of(TRACES / "mixed_workloads" / "amp_training.json.gz")
    ops = trace.gpu_ops
    for skew in (-30 * US, 30 * US):
        moved = replace(ops, start_ns=ops.start_ns + skew, end_ns=ops.end_ns + skew)
        observations = observe(replace(trace, gpu_ops=moved))
        values = [value for value in msgspec.structs.asdict(observations).values() if isinstance(value, int | float)]
        assert values and min(values) > 0
        # Figures from a single clock stay.
        assert (observations.h2d, observations.launch_call_ns) == (observe(trace).h2d, observe(trace).launch_call_ns)


def test_the_same_trace_at_another_time_shows_the_same() -> None:
    trace = trace_of(TRACES / "laboratory" / "cuda_graph" / "graphed_callables.trace.json.gz")
    tables = {
        name: replace(table, start_ns=table.start_ns + 7 * MS, end_ns=table.end_ns + 7 * MS)
        for name in ("gpu_ops", "runtime_calls", "syncs", "cpu_ops", "annotations")
        for table in [getattr(trace, name)]
    }
    assert observe(replace(trace, **tables)) == observe(trace)

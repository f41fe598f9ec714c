"""Tests of defects observed in other analysers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.reading import load
from overlapscope.trace.model import Kind
from tests.support.helpers import various
from tests.support.kineto_files import call, host, kernel, memcpy, write
from tests.support.recordings import analysis_of, trace_of

DATA = Path(__file__).parents[3] / "traces"


def analysed(path: Path) -> TraceAnalysis:
    return analyze_trace(load(path))


def device_of(path: Path) -> Device:
    (device,) = analysed(path).result.devices
    return device


def test_times_are_not_rounded_to_microseconds(tmp_path: Path) -> None:
    """Rounding each of these copies to whole microseconds loses a third of the copy time."""
    events = [memcpy(10 * i + 0.9, 1.499, correlation=i + 1) for i in range(100)]
    device = device_of(write(tmp_path / "t.json", [*events, kernel(2000, 1, correlation=200)]))
    assert device.overlap.copy_ns == 100 * 1499
    assert device.window.start_ns == 900


def test_ops_without_a_launch_are_kept(tmp_path: Path) -> None:
    events = [kernel(0, 5, correlation=1), kernel(10, 5, correlation=20), call(8, 1, 20)]
    analysis = analysed(write(tmp_path / "t.json", events))
    assert analysis.result.devices[0].buckets.compute_ns == 10_000
    assert analysis.result.devices[0].lead_in_ns == 5_000


def test_the_last_step_is_kept() -> None:
    names = [step.name for step in device_of(DATA / "gpt2_train.json.gz").steps]
    assert names == ["ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5"]


def test_syncs_and_annotations_are_no_gpu_work(tmp_path: Path) -> None:
    waiting = {"stream": 4294967295, "correlation": 3, "device": 0, "cuda_sync_kind": "Context Sync"}
    events = [
        kernel(0, 5, correlation=1),
        call(-5, 1, 1),
        kernel(0, 900, stream=4294967295, correlation=3)
        | {"cat": "cuda_sync", "name": "Context Sync", "args": waiting},
        kernel(-0.001, 800, correlation=4) | {"cat": "gpu_user_annotation", "name": "ProfilerStep#1", "args": {}},
        kernel(0, 700, correlation=5) | {"cat": "overhead", "name": "Activity Buffer Request"},
    ]
    device = device_of(write(tmp_path / "t.json", events))
    assert device.span_ns == device.buckets.compute_ns == 5_000
    assert [use.stream for use in device.streams] == [7]


def test_gaps_are_measured_from_the_last_end_not_the_previous_op(tmp_path: Path) -> None:
    """A short kernel inside a long one: the gap begins where the long one ends."""
    events = [
        kernel(0, 100, stream=7, correlation=1),
        kernel(10, 5, stream=9, correlation=2),
        kernel(130, 10, stream=7, correlation=3),
        *(call(t, 1, c) for t, c in ((-5, 1), (5, 2), (125, 3))),
    ]
    device = device_of(write(tmp_path / "t.json", events))
    assert device.buckets.idle_ns == 30_000
    assert min(device.idle_by_cause.values()) >= 0


def test_the_category_is_judged_before_the_name(tmp_path: Path) -> None:
    events = [
        kernel(0, 10, name="void SyncBatchNorm_nccl_like_forward<float>", correlation=1),
        kernel(20, 10, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", correlation=2),
        memcpy(40, 10, name="Memcpy HtoD (Host -> Device)", correlation=3),
        call(35, 1, 3, name="hipMemcpyAsync"),
        host("cpu_op", "nccl:all_reduce", 0, 50),
    ]
    trace = load(write(tmp_path / "t.json", events))
    assert trace.gpu_ops.kind.tolist() == [Kind.COMPUTE, Kind.COMM, Kind.H2D]


def test_memory_kinds_survive(tmp_path: Path) -> None:
    events = [
        memcpy(0, 10, name="Memcpy HtoD (Pageable -> Device)", correlation=1),
        memcpy(20, 10, name="Memcpy HtoD (Pinned -> Device)", correlation=2),
        memcpy(40, 10, name="Memcpy DtoH (Device -> Pinned)", correlation=3),
    ]
    groups = device_of(write(tmp_path / "t.json", events)).copies
    assert {(g.direction, g.source_kind, g.target_kind) for g in groups} == {
        ("h2d", "pageable", "device"),
        ("h2d", "pinned", "device"),
        ("d2h", "device", "pinned"),
    }


def test_concurrent_ops_are_counted_once(tmp_path: Path) -> None:
    events = [kernel(0, 100, stream=s, correlation=s) for s in (7, 9, 11)]
    device = device_of(write(tmp_path / "t.json", [*events, memcpy(50, 100, correlation=30)]))
    assert device.buckets.compute_ns == 100_000
    assert device.overlap.hidden_copy_pct == 50
    assert device.overlap.efficiency_pct == 50


def test_one_corrupt_duration_does_not_falsify_the_report(tmp_path: Path) -> None:
    events = [kernel(100 * i, 90, correlation=i + 1) for i in range(1000)]
    events += [call(100 * i - 10, 1, i + 1) for i in range(1000)]
    events += [memcpy(100 * i + 91, 0.4, correlation=5000 + i) for i in range(1000)]
    clean = device_of(write(tmp_path / "clean.json", events))
    years = memcpy(50_000, 3.15e13, correlation=9000)
    analysis = analysed(write(tmp_path / "corrupt.json", [*events, years]))
    (corrupt,) = analysis.result.devices
    assert corrupt.buckets == clean.buckets
    assert [c.status for c in analysis.result.trust.checks if c.id == "durations"] == ["warn"]


def test_kernels_of_a_graph_launch_keep_their_own_names_and_times() -> None:
    trace = trace_of(DATA / "known_causes" / "launch_bound_graph.json.gz")
    device = analyze_trace(trace).result.devices[0]
    assert len(trace.gpu_ops) == 4 * 300
    assert len(set(trace.gpu_ops.launch.tolist())) == 4
    assert [step.buckets.idle_ns < 0.05 * step.span_ns for step in device.steps] == [True] * 4


def test_two_files_of_one_rank_are_both_kept(tmp_path: Path) -> None:
    from overlapscope.reading import load_all

    for name in ("a.json", "b.json"):
        write(tmp_path / name, [kernel(0, 5)], distributedInfo={"rank": 3, "world_size": 8})
    assert [trace.rank for trace in load_all([tmp_path])] == [3, 3]


@pytest.mark.parametrize("path", various(), ids=lambda p: p.stem)
def test_no_percentage_exceeds_a_hundred(path: Path) -> None:
    for device in analysis_of(path).result.devices:
        periods = (*device.steps, *device.ranges)
        for overlap in (device.overlap, *(period.overlap for period in periods)):
            for value in (overlap.efficiency_pct, overlap.hidden_copy_pct, overlap.comm_compute_pct):
                assert value is None or 0 <= value <= 100 + sys.float_info.epsilon

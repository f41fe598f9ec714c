"""Steps that the recorder made for the pipeline to fill are in the trace, and not judged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope import load
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import Host, Op, make_trace
from tests.support.kineto_files import kernel, write

STEPS = [Host(f"ProfilerStep#{number}", 10 * number, 10 * number + 10) for number in range(3)]
OPS = [
    Op(Kind.H2D, 100, 200, stream=13, launch=(1, 2)),
    Op(Kind.COMPUTE, 200, 300, launch=(2, 3)),
    Op(Kind.COMPUTE, 310, 400, launch=(11, 12)),
    Op(Kind.COMPUTE, 410, 500, launch=(21, 22)),
]


def recording(warm_up_steps: int, ops: list[Op] = OPS, steps: list[Host] = STEPS) -> Trace:
    return replace(make_trace(ops, annotations=steps), warm_up_steps=warm_up_steps)


def analysed(trace: Trace) -> Device:
    (device,) = analyze_trace(trace).result.devices
    return device


def test_steps_begin_behind_the_warm_up() -> None:
    assert [step.name for step in analysed(recording(1)).steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    assert [step.name for step in analysed(recording(2)).steps] == ["ProfilerStep#2"]


def test_what_is_exposed_while_the_pipeline_fills_is_not_judged() -> None:
    device = analysed(recording(1))
    assert device.lead_in_ns == 210
    assert {cause: ns for cause, ns in device.exposed_copy_by_cause.items() if ns} == {"lead-in": 100}
    assert device.idle_by_cause["lead-in"] == 10


def test_the_buckets_are_of_the_whole_window_all_the_same() -> None:
    assert analysed(recording(1)).buckets == analysed(recording(0)).buckets


def test_a_program_that_ended_in_its_warm_up_is_judged_whole() -> None:
    device = analysed(recording(3))
    assert device.lead_in_ns == 0
    assert device.exposed_copy_by_cause["lead-in"] == 0


def test_a_warm_up_is_not_a_reason_for_distrust() -> None:
    checks = {check.id: check for check in analyze_trace(recording(2)).result.trust.checks}
    assert checks["lead-in"].status == "ok" and "pipeline" in checks["lead-in"].detail


@pytest.mark.parametrize(("begin", "status"), [(290, "ok"), (300, "warn"), (400, "warn")])
def test_the_profilers_work_counts_only_where_anything_is_judged(begin: int, status: str) -> None:
    overhead = [Host("Activity Buffer Request", begin, begin + 20)]
    trace = replace(make_trace(OPS, annotations=STEPS, overheads=overhead), warm_up_steps=1)
    checks = {check.id: check for check in analyze_trace(trace).result.trust.checks}
    assert checks["profiler-overhead"].status == status
    assert checks["steps"].status == "ok"


def test_a_lead_in_that_outlasts_the_warm_up_is_still_reported() -> None:
    before = Op(Kind.COMPUTE, 0, 450, stream=17, correlation=1)
    checks = {check.id: check for check in analyze_trace(recording(1, [before, *OPS])).result.trust.checks}
    assert checks["lead-in"].status == "fail"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ({"version": "1", "warm_up_steps": 2}, 2),
        ({"warm_up_steps": "2"}, 2),
        ({"warm_up_steps": -1}, 0),
        ({"warm_up_steps": 1e300}, 0),
        ({"warm_up_steps": None}, 0),
        ([2], 0),
        ("2", 0),
    ],
)
def test_the_file_says_how_many(tmp_path: Path, written: Any, read: int) -> None:
    trace = load(write(tmp_path / "t.json", [kernel(1, 1)], overlapscope=written), progress=False)
    assert trace.warm_up_steps == read


RECORDED = Path(__file__).parents[3] / "traces" / "recorder"


def test_a_loop_far_ahead_of_its_gpu_is_recorded_without_lead_in_and_judged_with_a_full_pipeline() -> None:
    """By torch.profiler alone the recording of the same loop is mostly lead-in; see `benchmarks/clean_recording.py`."""
    alone, ours = (
        analyze_trace(load(RECORDED / f"{name}.trace.json.gz", progress=False))
        for name in ("torch_profiler", "overlapscope")
    )
    assert {check.id: check.status for check in alone.result.trust.checks}["lead-in"] == "warn"
    assert ours.result.trust.verdict == "trusted"
    assert not (ours.trace.gpu_ops.launch < 0).any()
    (device,) = ours.result.devices
    assert [step.name for step in device.steps] == [f"ProfilerStep#{number}" for number in range(42, 48)]
    assert all((step.overlap.hidden_copy_pct or 0) > 99 for step in device.steps)

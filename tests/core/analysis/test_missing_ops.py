"""Tests of time in which the host waits for the GPU and the trace has no op: the GPU ran unrecorded work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis.results import Check, Device
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace, various
from tests.support.recordings import analysis_of

C, D2H = Kind.COMPUTE, Kind.D2H


def device(trace: Trace) -> Device:
    (device,) = ov.analyze(trace).devices
    assert sum(device.idle_by_cause.values()) == device.buckets.idle_ns
    assert sum(device.partition.values()) == device.span_ns
    return device


def missing(trace: Trace) -> int:
    return device(trace).idle_by_cause["missing-ops"]


def check(trace: Trace) -> Check:
    (checks,) = (check for check in ov.analyze(trace).traces[0].trust.checks if check.id == "missing-ops")
    return checks


def queued(waits: Sequence[Host], *, rest: Sequence[Op] = (), **more: Any) -> Trace:
    """Return an op of 1 ms, and another that is launched at once and begins after 300 ms."""
    ops = [
        Op(C, 0, 1 * MS, launch=(-20 * US, -10 * US)),
        Op(C, 300 * MS, 301 * MS, launch=(10 * US, 20 * US)),
    ]
    return make_trace([*ops, *rest], calls=waits, **more)


def test_a_wait_for_an_op_that_was_held_back_by_nothing_recorded() -> None:
    trace = queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS + 5 * US)])
    assert missing(trace) == 298 * MS
    device_result = device(trace)
    assert device_result.idle_by_cause["unknown"] == 1 * MS and device_result.idle_by_cause["host-sync"] == 0
    assert device_result.partition["idle"] == 1 * MS and device_result.partition["missing ops"] == 298 * MS
    assert check(trace).status == "fail" and "cudaStreamSynchronize" in check(trace).detail
    [section] = Page(ov.analyze(trace)).sections()
    verdict = judge(section)
    assert "298 ms (missing-ops). Costliest place: cudaStreamSynchronize." in verdict.why
    assert verdict.remedy.startswith("Next: Synchronize before recording")


def test_a_copy_that_blocks_waits_until_its_own_op_begins() -> None:
    copy = Op(D2H, 300 * MS, 301 * MS, launch=(2 * MS, 302 * MS), call="hipMemcpyWithStream", size=256)
    ops = [Op(C, 0, 1 * MS, launch=(-20 * US, -10 * US)), replace_memory(copy)]
    assert missing(make_trace(ops)) == 298 * MS


def replace_memory(op: Op) -> Op:
    return op._replace(source=Memory.DEVICE, target=Memory.UNKNOWN)


def test_a_large_copy_may_prepare_the_hosts_memory_first() -> None:
    copy = Op(D2H, 300 * MS, 301 * MS, launch=(2 * MS, 302 * MS), call="hipMemcpyWithStream", size=500_000_000)
    assert missing(make_trace([Op(C, 0, 1 * MS, launch=(-20 * US, -10 * US)), replace_memory(copy)])) == 0


def test_a_synchronize_long_after_everything_recorded_has_ended() -> None:
    ops = [
        Op(C, 0, 1 * MS, launch=(-20 * US, -10 * US)),
        Op(C, 301 * MS, 302 * MS, launch=(300 * MS + 10 * US, 300 * MS + 20 * US)),
    ]
    trace = make_trace(ops, calls=[Host("cudaDeviceSynchronize", 500 * US, 300 * MS)])
    assert missing(trace) == 299 * MS
    rules = {finding.rule for finding in ov.analyze(trace).findings}
    assert "host-sync" not in rules


def test_graphs_whose_kernels_were_not_recorded() -> None:
    """A step waits 8 ms for a graph of which no kernel is in the trace, 20 times."""
    ops, calls = [], []
    for step in range(20):
        at = step * 10 * MS
        ops.append(Op(C, at, at + 1 * MS, launch=(at - 20 * US, at - 10 * US)))
        calls.append(Host("cudaGraphLaunch", at + 10 * US, at + 30 * US))
        calls.append(Host("cudaStreamSynchronize", at + 40 * US, at + 9 * MS))
    trace = make_trace(ops, calls=calls)
    # The wait after the last op lies outside the window.
    assert missing(trace) == 19 * 8 * MS
    waits = [call for call in calls if call.name != "cudaGraphLaunch"]
    late = [wait if step % 2 else wait._replace(end=wait.start + 960 * US) for step, wait in enumerate(waits)]
    assert missing(make_trace(ops, calls=late)) == 0, "a thread can be woken late"


@pytest.mark.parametrize(
    ("late", "quick", "found"),
    [
        (7 * MS, 0, 4 * 7 * MS),
        (1100 * US, 0, 4 * 1100 * US),
        (300 * US, 10 * US, 5 * 300 * US),
        (900 * US, 80 * US, 5 * 900 * US),
        (900 * US, 0, 0),  # perhaps every wait returns late on this machine
        (900 * US, 200 * US, 0),
    ],
)
def test_a_loop_in_a_graph_that_was_not_recorded(late: int, quick: int, found: int) -> None:
    """Each step waits for a graph whose loop no op shows and, if `quick`, for an op that ends right before."""
    ops, calls = [], []
    for step in range(5):
        at = step * 10 * MS
        ops.append(Op(C, at, at + MS, launch=(at - 10 * US, at - 5 * US), call="cudaGraphLaunch", name="loop"))
        calls.append(Host("cudaStreamSynchronize", at, at + MS + late))
        if quick:
            at += MS + late + 100 * US
            ops.append(Op(C, at, at + MS, launch=(at - 10 * US, at - 5 * US), name="other"))
            calls.append(Host("cudaStreamSynchronize", at, at + MS + quick))
    assert missing(make_trace(ops, calls=calls)) == found


def test_what_is_not_a_wait_for_this_gpu() -> None:
    wait = Host("cudaStreamSynchronize", 2 * MS, 301 * MS)
    assert missing(queued([Host("cudaEventQuery", 2 * MS, 301 * MS)])) == 0, "a poll"
    assert missing(queued([Host("cudaFree", 2 * MS, 301 * MS)])) == 0, "memory"
    assert missing(queued([wait, Host("cudaLaunchHostFunc", 0, 1 * US)])) == 0, "the GPU may wait for the host"
    assert missing(queued([wait, Host("cuModuleLoadData", 1 * MS, 301 * MS, thread=2)])) == 0, "the driver's locks"
    assert missing(queued([wait], overheads=[Host("Buffer Flush", 2 * MS, 300 * MS, thread=9)])) == 0, "the profiler"
    other = Op(C, 0, 301 * MS, device=1, launch=(-9 * US, -8 * US))
    trace = queued([wait], rest=[other])
    assert all(device.idle_by_cause["missing-ops"] == 0 for device in ov.analyze(trace).devices), "another GPU works"


def test_a_poll_from_another_thread_hides_nothing() -> None:
    polls = [Host("cudaEventQuery", at, at + 2 * US, thread=2) for at in range(2 * MS, 300 * MS, 500 * US)]
    assert missing(queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS), *polls])) == 298 * MS


def test_two_threads_that_wait_at_once_count_once() -> None:
    waits = [Host("cudaStreamSynchronize", 2 * MS, 301 * MS), Host("cudaEventSynchronize", 50 * MS, 301 * MS, thread=2)]
    assert missing(queued(waits)) == 298 * MS


def test_the_lead_in_stays_the_lead_in() -> None:
    trace = queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)], rest=[Op(C, 99 * MS, 100 * MS, correlation=7)])
    device_result = device(trace)
    assert device_result.lead_in_ns == 100 * MS
    assert device_result.idle_by_cause["missing-ops"] == 200 * MS


def test_clocks_that_disagree_and_launches_that_are_missing_say_nothing() -> None:
    trace = queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)])
    assert missing(replace(trace, gpu_ops=replace(trace.gpu_ops, launch=np.full(2, -1)))) == 0
    skewed = replace(trace.gpu_ops, start_ns=trace.gpu_ops.start_ns - 20 * MS, end_ns=trace.gpu_ops.end_ns - 20 * MS)
    assert missing(replace(trace, gpu_ops=skewed)) == 0


def test_a_little_is_a_warning() -> None:
    rest = [Op(C, 301 * MS, 6_000 * MS, launch=(301 * MS - 10 * US, 301 * MS - 5 * US))]
    assert check(queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)], rest=rest)).status == "warn"
    rest = [Op(C, 301 * MS, 60_000 * MS, launch=(301 * MS - 10 * US, 301 * MS - 5 * US))]
    assert check(queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)], rest=rest)).status == "ok"


def test_the_verdict_calls_it_neither_idle_nor_good() -> None:
    report = ov.analyze(queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)]))
    (section,) = Page(report).sections()
    result = judge(section)
    assert result.level != "good"
    assert "GPU ops are missing from the recording for 298 ms (99.0%)" in result.text and "is idle" not in result.text


def test_a_budget_on_idle_time_does_not_judge_it() -> None:
    report = ov.analyze(queued([Host("cudaStreamSynchronize", 2 * MS, 301 * MS)]))
    settings = {"budgets": {"idle_pct": {"max": "50%", "scope": "window"}}}
    (budget,) = ov.check(report, settings).verdicts
    assert budget.status == "unknown"


@pytest.mark.parametrize("path", various(), ids=lambda path: path.stem)
def test_no_bundled_recording_lacks_ops(path: Any) -> None:
    for device in analysis_of(path).result.devices:
        assert device.idle_by_cause["missing-ops"] == 0

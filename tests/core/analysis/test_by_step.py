"""Tests of a report's figures by step, compared with a count of every nanosecond and every op."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.average import in_frame
from overlapscope.analysis.results import KernelGroup
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.report.model import build
from overlapscope.report.page import Page
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind
from tests.core.analysis.test_sums import gpu_ops, host_events, running, steps, waits
from tests.support.helpers import TRACES, Host, Op, Wait, make_trace


def _members(group: KernelGroup, kernels: list[Op]) -> list[Op]:
    kind = Kind.COMM if group.comm else Kind.COMPUTE
    return [op for op in kernels if (op.kind, op.name, op.stream) == (kind, group.kernel, group.stream)]


def _sums(kernels: list[Op], ops: list[Op]) -> tuple[int, int, int]:
    """Return the number of some kernels, their time, and the time in which no other kernel computes."""
    exposed_ns = 0
    for kernel in kernels:
        others = [op for op in ops if op is not kernel and op.kind == Kind.COMPUTE]
        exposed_ns += sum(not any(op.start <= t < op.end for op in others) for t in range(kernel.start, kernel.end))
    return len(kernels), sum(op.end - op.start for op in kernels), exposed_ns


@given(gpu_ops(), host_events("cudaDeviceSynchronize", "cudaMalloc", "cudaHostAlloc"), steps, waits)
def test_copies_kernels_and_stalls_of_each_step(
    ops: list[Op], calls: list[Host], notes: list[Host], waiting: list[Wait]
) -> None:
    analysis = analyze_trace(make_trace(ops, calls=calls, annotations=notes, waits=waiting))
    kernel = running(ops, Kind.COMPUTE, Kind.COMM)
    for device in analysis.result.devices:
        windows = [range(step.window.start_ns, step.window.end_ns) for step in device.steps]
        for group in device.copies:
            kind = Kind[group.direction.upper()]
            mine = [
                op
                for op in ops
                if (op.kind, op.stream) == (kind, group.stream)
                and (op.source.name.lower(), op.target.name.lower()) == (group.source_kind, group.target_kind)
            ]
            copying = running(mine, kind)
            judged_from = device.window.start_ns + (device.lead_in_ns or 0)
            judged = [op for op in mine if op.size >= 0 and op.start >= judged_from]
            assert group.judged_bytes == sum(op.size for op in judged)
            assert group.judged_duration_ns == sum(op.end - op.start for op in judged)
            by_step = group.by_step
            for number, window in enumerate(windows):
                begun = [op for op in mine if op.start in window]
                sized = [op for op in begun if op.size >= 0]
                assert by_step.count[number] == len(begun)
                assert by_step.bytes[number] == sum(op.size for op in sized)
                assert by_step.duration_ns[number] == sum(op.end - op.start for op in sized)
                assert by_step.time_ns[number] == sum(copying(t) for t in window)
                assert by_step.exposed_ns[number] == sum(copying(t) and not kernel(t) for t in window)
        kernels = [op for op in ops if op.kind in (Kind.COMPUTE, Kind.COMM)]
        assert sum(group.count for group in device.kernels) == len(kernels)
        for launched in device.kernels:
            alike = _members(launched, kernels)
            assert (launched.count, launched.time_ns, launched.exposed_ns) == _sums(alike, ops)
            longest = max(op.end - op.start for op in alike)
            assert launched.example.end_ns - launched.example.start_ns == longest
            each = launched.by_step
            for number, window in enumerate(windows):
                begun = [op for op in alike if op.start in window]
                assert (each.count[number], each.time_ns[number], each.exposed_ns[number]) == _sums(begun, ops)
        for number, step in enumerate(device.steps):
            caused = sum(stall.by_step.idle_caused_ns[number] for stall in device.host_stalls)
            blamed = sum(step.idle_by_cause[cause] for cause in ("host-sync", "allocation", "host-staging"))
            assert caused <= blamed
            window = windows[number]
            for stall in device.host_stalls:
                assert 0 <= stall.by_step.host_wait_ns[number] <= min(stall.host_wait_ns, len(window) * stall.count)


_EARLIER = st.builds(
    lambda kind, start, length, correlation: Op(kind, start, start + length, stream=13, correlation=correlation),
    st.sampled_from((Kind.COMPUTE, Kind.H2D, Kind.D2H, Kind.COMM)),
    st.integers(-20, 10),
    st.integers(1, 30),
    st.integers(1, 5),
)
"""GPU ops that were launched before the recording, so that the window up to their end is its lead-in."""


@given(gpu_ops(), st.lists(_EARLIER, min_size=1, max_size=3), host_events("cudaStreamSynchronize", "cudaMalloc"), waits)
def test_without_steps_every_list_covers_the_time_after_the_lead_in(
    launched: list[Op], earlier: list[Op], calls: list[Host], waiting: list[Wait]
) -> None:
    ops = [*launched, *earlier]
    (device,) = analyze_trace(make_trace(ops, calls=calls, waits=waiting)).result.devices
    shown, begin, end = in_frame(device), device.window.start_ns + (device.lead_in_ns or 0), device.window.end_ns
    if device.judged is None:
        assert shown is device
        return
    kernel = running(ops, Kind.COMPUTE, Kind.COMM)
    assert shown.span_ns == end - begin
    for group in shown.copies:
        kind = Kind[group.direction.upper()]
        mine = [
            op
            for op in ops
            if (op.kind, op.stream) == (kind, group.stream)
            and (op.source.name.lower(), op.target.name.lower()) == (group.source_kind, group.target_kind)
        ]
        copying = running(mine, kind)
        begun = [op for op in mine if op.start >= begin]
        assert group.count == len(begun)
        assert (group.bytes or 0) == sum(op.size for op in begun if op.size >= 0)
        assert group.time_ns == sum(copying(t) for t in range(begin, end))
        assert group.exposed_ns == sum(copying(t) and not kernel(t) for t in range(begin, end))
    judged = [op for op in ops if op.kind in (Kind.COMPUTE, Kind.COMM) and op.start >= begin]
    assert sum(group.count for group in shown.kernels) == len(judged)
    for kernels in shown.kernels:
        assert (kernels.count, kernels.time_ns, kernels.exposed_ns) == _sums(_members(kernels, judged), ops)
    for subject, ns in (("exposed-copy", shown.buckets.exposed_copy_ns), ("idle", shown.buckets.idle_ns)):
        assert sum(case.time_ns for case in shown.evidence if case.subject == subject) == ns
    blamed = sum(shown.idle_by_cause[cause] for cause in ("host-sync", "allocation", "host-staging"))
    assert sum(stall.idle_caused_ns for stall in shown.host_stalls) <= blamed
    # Launches of pageable copies block, too.
    for stall in (stall for stall in shown.host_stalls if stall.call != "cudaLaunchKernel"):
        called = [
            call
            for call in calls
            if (call.name, call.thread) == (stall.call, stall.thread)
            and device.window.start_ns < call.end
            and call.start < end
        ]
        assert stall.count == sum(call.start >= begin for call in called)
        assert stall.host_wait_ns == sum(max(0, call.end - max(call.start, begin)) for call in called)


@given(gpu_ops())
def test_exposed_copies_by_direction(ops: list[Op]) -> None:
    (device,) = analyze_trace(make_trace(ops)).result.devices
    kernel, window = running(ops, Kind.COMPUTE, Kind.COMM), range(device.window.start_ns, device.window.end_ns)
    for kind, exposed in ((Kind.H2D, device.overlap.exposed_h2d_ns), (Kind.D2H, device.overlap.exposed_d2h_ns)):
        copying = running(ops, kind)
        assert exposed == sum(copying(t) and not kernel(t) for t in window)


@given(st.integers(0, 5))
def test_a_step_that_began_in_the_lead_in_is_partial(ahead: int) -> None:
    launched = [Op(Kind.COMPUTE, 100 * n, 100 * n + 50, launch=(100 * n - 20, 100 * n - 10)) for n in range(1, 9)]
    lead_in = Op(Kind.COMM, 0, 100 * ahead + 30, correlation=1, stream=13)
    notes = [Host(f"ProfilerStep#{n}", 100 * n - 30, 100 * n + 60) for n in range(1, 9)]
    (device,) = analyze_trace(make_trace([lead_in, *launched], annotations=notes)).result.devices
    partial = [step.name for step in device.steps if step.partial]
    assert partial == ([f"ProfilerStep#{ahead}"] if ahead else [])


def test_a_report_says_why_figures_are_of_no_step_although_steps_are_marked() -> None:
    ops = [Op(Kind.COMM, 0, 130, correlation=1, stream=13), Op(Kind.COMPUTE, 100, 150, launch=(80, 90))]
    analysis = analyze_trace(make_trace(ops, annotations=[Host("ProfilerStep#118", 70, 160)]))
    [section] = Page(build([analysis])).sections()
    assert section.steps == 0
    assert judge(section).steps == (
        "ProfilerStep#118 was not recorded as a whole, so figures are of all that was recorded."
    )


@pytest.mark.parametrize("missing", ["per_step", "exposed_comm_by_cause"])
def test_a_report_that_lacks_figures_is_to_be_made_again(
    missing: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = json.loads(encode(ov.analyze(TRACES / "pipeline_1stream.json.gz")))
    del written["traces"][0]["devices"][0][missing]
    path = tmp_path / "report.json"
    path.write_text(json.dumps(written))
    assert main(["check", str(path)]) == 2
    error = capsys.readouterr().err
    assert "not of this version" in error and missing in error and "analyze its traces again" in error

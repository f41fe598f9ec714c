"""Causes: on recordings whose truth follows from the program, and on minimal made-up traces."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Device
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, US, Host, Op, Wait, make_trace, various
from tests.support.recordings import analysis_of, trace_of

DATA = Path(__file__).parents[3] / "traces"
RECORDED = DATA / "known_causes"
MIXED = DATA / "mixed_workloads"
# Facts that follow from the recorded programs; `traces/README.md` explains each entry.
TRUTH: dict[str, dict[str, Any]] = tomllib.loads((DATA / "truth.toml").read_text())


def recorded(path: Path) -> Device:
    (device,) = analysis_of(path.with_name(path.name + ".json.gz")).result.devices
    return device


def share(causes: dict[str, int], cause: str) -> float:
    return causes[cause] / sum(causes.values())


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if "exposed_copy" in truth])
def test_exposed_copies_of_recordings(name: str) -> None:
    truth = TRUTH[name]["exposed_copy"]
    assert share(recorded(DATA / name).exposed_copy_by_cause, truth["cause"]) >= truth["least_share"]


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if "idle" in truth])
def test_idle_time_of_recordings(name: str) -> None:
    truth = TRUTH[name]["idle"]
    for device in analysis_of(DATA / f"{name}.json.gz").result.devices:
        assert share(device.idle_by_cause, truth["cause"]) >= truth["least_share"]


@pytest.mark.parametrize("path", various(), ids=lambda p: p.stem)
def test_next_to_nothing_stays_unknown(path: Path) -> None:
    for device in analysis_of(path).result.devices:
        for causes in (device.exposed_copy_by_cause, device.idle_by_cause):
            assert causes["unknown"] <= 0.005 * device.span_ns


def test_one_stream_pipeline_is_limited_by_supply() -> None:
    """22.4 ms of copies and 6.1 ms of compute a step: moving the copies hides what compute there is, no more."""
    device = recorded(DATA / "pipeline_1stream")
    for step in device.steps:
        causes = step.exposed_copy_by_cause
        assert causes["same-stream"] == step.buckets.compute_ns
        assert causes["no-compute"] == step.buckets.exposed_copy_ns - step.buckets.compute_ns


def test_a_checkpoint_under_the_next_step_is_hidden() -> None:
    overlap = recorded(MIXED / "async_checkpoint").overlap
    assert overlap.efficiency_pct is not None
    assert overlap.efficiency_pct > 95


def test_healthy_prefetch_hides_its_copies() -> None:
    device = recorded(RECORDED / "healthy_prefetch")
    assert device.overlap.efficiency_pct is not None
    assert device.overlap.efficiency_pct > 99


def test_a_recording_that_starts_in_mid_flight_judges_nothing_in_its_lead_in() -> None:
    device = recorded(RECORDED / "healthy_prefetch_running_ahead")
    assert device.lead_in_ns is not None
    assert device.lead_in_ns > 40 * MS
    assert device.steps[0].window.start_ns >= device.window.start_ns + device.lead_in_ns


def test_stalls_name_the_line() -> None:
    stall = recorded(RECORDED / "item_every_step_stacks").host_stalls[0]
    assert (stall.call, stall.op, stall.count) == ("cudaStreamSynchronize", "aten::_local_scalar_dense", 4)
    assert stall.where is not None
    assert stall.where.startswith("known_causes.py:")
    assert stall.where.endswith("in step")


def test_the_profilers_own_synchronize_is_not_a_stall() -> None:
    for name in ("item_every_step", "host_sync"):
        calls = [stall.call for stall in recorded(RECORDED / name).host_stalls]
        assert "cudaDeviceSynchronize" not in calls


# -- minimal traces -------------------------------------------------------------------------------


def device_of(trace: Trace) -> Device:
    (device,) = analyze_trace(trace).result.devices
    return device


def only(causes: dict[str, int]) -> dict[str, int]:
    return {cause: ns for cause, ns in causes.items() if ns}


def compute(start: int, end: int, **rest: object) -> Op:
    return Op(Kind.COMPUTE, start, end, **({"launch": (start - 10 * US, start - 5 * US)} | rest))  # type: ignore[arg-type]


def copy(start: int, end: int, **rest: object) -> Op:
    defaults: dict[str, object] = {
        "launch": (start - 10 * US, start - 5 * US),
        "call": "cudaMemcpyAsync",
        "stream": 13,
    }
    return Op(Kind.H2D, start, end, **(defaults | rest))  # type: ignore[arg-type]


def test_supply_comes_before_order() -> None:
    """3 ms of copies, 1 ms of compute: 2 ms cannot be hidden, whatever the stream."""
    device = device_of(make_trace([copy(0, 3 * MS, stream=7), compute(3 * MS, 4 * MS)]))
    assert only(device.exposed_copy_by_cause) == {"no-compute": 2 * MS, "same-stream": 1 * MS}


def test_pageable_comes_before_supply() -> None:
    device = device_of(make_trace([copy(0, 3 * MS, source=Memory.PAGEABLE), compute(3 * MS, 4 * MS)]))
    assert only(device.exposed_copy_by_cause) == {"pageable-memory": 3 * MS}


def test_supply_is_weighed_per_step() -> None:
    """Compute of another step cannot hide a copy."""
    ops = [
        compute(0, 5 * MS),
        copy(5 * MS, 7 * MS),
        compute(7 * MS, 8 * MS),
        copy(8 * MS, 9 * MS),
    ]
    steps = [
        Host("ProfilerStep#1", -20 * US, 6 * MS),
        Host("ProfilerStep#2", 6 * MS, 9 * MS),
    ]
    device = device_of(make_trace(ops, annotations=steps))
    first, second = device.steps
    assert first.exposed_copy_by_cause["no-compute"] == 0
    assert second.exposed_copy_by_cause["no-compute"] == 0
    ops[3] = copy(8 * MS, 11 * MS)
    second = device_of(make_trace(ops, annotations=steps)).steps[1]
    assert second.exposed_copy_by_cause["no-compute"] == 2 * MS


def test_the_lead_in_is_never_judged() -> None:
    ops = [
        Op(Kind.COMPUTE, 0, 2 * MS, launch=None, correlation=1),
        copy(2 * MS, 3 * MS, launch=None, correlation=2),
        compute(4 * MS, 5 * MS),
    ]
    device = device_of(make_trace(ops))
    assert device.lead_in_ns == 3 * MS
    assert only(device.exposed_copy_by_cause) == {"lead-in": 1 * MS}
    assert device.idle_by_cause["lead-in"] == 0
    assert sum(device.idle_by_cause.values()) == 1 * MS


def test_a_launch_lost_later_on_is_not_a_lead_in() -> None:
    """Correlations are given in launch order: a higher one than those recorded was launched later."""
    ops = [compute(0, MS), Op(Kind.COMPUTE, 2 * MS, 3 * MS, launch=None, correlation=9_999)]
    device = device_of(make_trace(ops))
    assert device.lead_in_ns == 0
    assert only(device.idle_by_cause) == {"unknown": 1 * MS}


def test_no_launches_at_all_leave_the_lead_in_unknown() -> None:
    analysis = analyze_trace(make_trace([Op(Kind.COMPUTE, 0, MS), Op(Kind.COMPUTE, 2 * MS, 3 * MS)]))
    assert analysis.result.devices[0].lead_in_ns is None
    assert only(analysis.result.devices[0].idle_by_cause) == {"unknown": 1 * MS}
    assert {c.id for c in analysis.result.trust.checks if c.status == "fail"} == {"launches"}


def test_an_edge_the_timeline_contradicts_is_not_drawn() -> None:
    """The compute still runs when the copy begins, so the copy cannot have waited for it."""
    ops = [
        compute(0, 5 * MS),
        copy(4 * MS, 6 * MS, launch=(20 * US, 25 * US)),
        compute(7 * MS, 9 * MS, launch=(30 * US, 35 * US)),
    ]
    calls = [Host("cudaEventRecord", 12 * US, 13 * US)]
    device = device_of(make_trace(ops, calls=calls, waits=[Wait(15 * US, 13)]))
    assert device.exposed_copy_by_cause["event-wait"] == 0


@pytest.mark.parametrize("recorded", [True, False])
def test_an_event_wait_that_holds_the_copy(recorded: bool) -> None:
    ops = [
        compute(0, 5 * MS),
        copy(5 * MS + 3 * US, 7 * MS, launch=(20 * US, 25 * US)),
        compute(7 * MS + 3 * US, 9 * MS, launch=(30 * US, 35 * US)),
    ]
    calls = [Host("cudaEventRecord", 12 * US, 13 * US)]
    device = device_of(make_trace(ops, calls=calls, waits=[Wait(15 * US, 13, recorded=recorded)]))
    assert only(device.exposed_copy_by_cause) == {"event-wait": 2 * MS - 3 * US}
    evidence = next(e for e in device.evidence if e.cause == "event-wait")
    assert evidence.confidence == "rebuilt"


def test_a_stated_edge_is_exact() -> None:
    ops = [
        compute(0, 5 * MS),
        copy(5 * MS + 3 * US, 7 * MS, launch=(20 * US, 25 * US)),
        compute(7 * MS + 3 * US, 9 * MS, launch=(30 * US, 35 * US)),
    ]
    calls = [Host("cudaEventRecord", 12 * US, 13 * US)]
    # Correlations are 1000 + place in call order: the record call is the second call.
    wait = Wait(15 * US, 13, source_stream=7, record_correlation=1001)
    device = device_of(make_trace(ops, calls=calls, waits=[wait]))
    evidence = next(e for e in device.evidence if e.cause == "event-wait")
    assert evidence.confidence == "exact"


def test_host_sync_needs_the_next_compute_to_be_late() -> None:
    """The host waits for the copy in both, but in the second the compute had been launched before."""
    blocked = Host("cudaStreamSynchronize", 2 * MS, 4 * MS + 5 * US)
    before = [compute(0, 2 * MS), copy(2 * MS, 4 * MS)]
    late = device_of(make_trace([*before, compute(4 * MS + 20 * US, 9 * MS)], calls=[blocked]))
    assert only(late.exposed_copy_by_cause) == {"host-sync": 2 * MS}
    early = compute(4 * MS + 20 * US, 9 * MS, launch=(MS, MS + US))
    assert device_of(make_trace([*before, early], calls=[blocked])).exposed_copy_by_cause["host-sync"] == 0


def test_engine_busy_names_the_copy_behind_another() -> None:
    ops = [
        compute(0, 3 * MS),
        copy(0, 4 * MS, stream=13),
        copy(4 * MS + 2 * US, 5 * MS, stream=14, launch=(10 * US, 15 * US)),
        compute(5 * MS + 5 * US, 9 * MS),
    ]
    device = device_of(make_trace(ops))
    assert device.exposed_copy_by_cause["engine-busy"] == MS - 2 * US


def test_a_cast_behind_the_copy_makes_no_compute_stream() -> None:
    """Prefetchers often convert on the copy stream; that kernel is not the compute to hide under."""
    ops = [
        compute(0, 5 * MS, stream=7),
        copy(5 * MS, 7 * MS, stream=13),
        compute(7 * MS, 7 * MS + 50 * US, stream=13),
        compute(7 * MS + 60 * US, 12 * MS, stream=7),
    ]
    device = device_of(make_trace(ops))
    assert device.exposed_copy_by_cause["same-stream"] == 0


def test_legacy_default_stream_orders_everything_unless_work_ran_beside_it() -> None:
    ops = [
        compute(0, 2 * MS, stream=13),
        copy(2 * MS + US, 3 * MS, stream=7, launch=(10 * US, 15 * US)),
        compute(3 * MS + US, 9 * MS, stream=13, launch=(20 * US, 25 * US)),
    ]
    device = device_of(make_trace(ops))
    assert only(device.exposed_copy_by_cause) == {"same-stream": MS - US}
    ops.append(compute(4 * MS, 5 * MS, stream=7))
    assert device_of(make_trace(ops)).exposed_copy_by_cause["same-stream"] == 0


def gap_after(blocker: Host | None, *, launch: int, gap: tuple[int, int], **tables: Any) -> dict[str, int]:
    first = compute(gap[0] - 2 * MS, gap[0])
    second = Op(Kind.COMPUTE, gap[1], gap[1] + MS, launch=(launch - 5 * US, launch))
    calls = [] if blocker is None else [blocker]
    return only(device_of(make_trace([first, second], calls=calls, **tables)).idle_by_cause)


def test_idle_after_a_synchronize() -> None:
    blocker = Host("cudaStreamSynchronize", 2 * MS, 10 * MS + 8 * US)
    gap = gap_after(blocker, launch=10 * MS + 300 * US, gap=(10 * MS, 10 * MS + 305 * US))
    assert gap == {"host-sync": 305 * US}


def test_a_short_wait_is_charged_no_more_than_it_held_the_host() -> None:
    """The host waited 100 us, then worked for 5 ms: without the wait 100 us of idle time would be gone."""
    blocker = Host("cudaStreamSynchronize", 10 * MS - 100 * US, 10 * MS)
    gap = gap_after(blocker, launch=15 * MS - 5 * US, gap=(10 * MS, 15 * MS))
    assert 95 * US <= gap.pop("host-sync") <= 105 * US
    assert gap.pop("dispatch") == 5 * US  # the launch call itself
    assert set(gap) == {"not-recorded"}


def test_the_lead_a_wait_cost_is_gone_for_all_launches_behind_it() -> None:
    """After a synchronize of 5 ms the host launches small kernels separately; without it they would have queued."""
    ops = [compute(0, 5 * MS)]
    for number in range(20):
        begin = 5 * MS + (40 + 30 * number) * US
        ops.append(compute(begin, begin + 10 * US))
    calls = [Host("cudaStreamSynchronize", 50 * US, 5 * MS + 8 * US)]
    assert set(only(device_of(make_trace(ops, calls=calls)).idle_by_cause)) == {"host-sync"}
    short = [Host("cudaStreamSynchronize", 5 * MS - 100 * US, 5 * MS + 8 * US)]
    idle = only(device_of(make_trace(ops, calls=short)).idle_by_cause)
    assert 80 * US <= idle["host-sync"] <= 120 * US
    assert set(idle) == {"host-sync", "dispatch"}


def test_each_wait_pays_for_its_own_lead_the_latest_first() -> None:
    ops = [compute(0, 5 * MS), compute(5 * MS + 300 * US, 6 * MS)]
    calls = [
        Host("cudaEventSynchronize", 50 * US, 2 * MS),
        Host("cudaStreamSynchronize", 5 * MS - 100 * US, 5 * MS),
    ]
    stalls = device_of(make_trace(ops, calls=calls)).host_stalls
    assert {s.call: s.idle_caused_ns for s in stalls} == {
        "cudaStreamSynchronize": 100 * US,
        "cudaEventSynchronize": 200 * US,
    }


def test_a_poll_is_not_a_wait() -> None:
    blocker = Host("cudaEventQuery", 2 * MS, 10 * MS + 8 * US)
    gap = gap_after(blocker, launch=10 * MS + 300 * US, gap=(10 * MS, 10 * MS + 305 * US))
    assert "host-sync" not in gap


def test_idle_inside_specific_host_work() -> None:
    gap, launch = (10 * MS, 20 * MS), 20 * MS - 5 * US
    inside = Host("", 10 * MS, 19 * MS)
    loader = inside._replace(name="enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")
    assert gap_after(None, launch=launch, gap=gap, annotations=[loader])["data-loading"] >= 8.9 * MS
    for name in ("cudaMalloc", "urUSMDeviceAlloc"):
        assert gap_after(inside._replace(name=name), launch=launch, gap=gap)["allocation"] >= 8.9 * MS
    pinned = inside._replace(name="cudaHostAlloc")
    pinning = gap_after(pinned, launch=launch, gap=gap, cpu_ops=[inside._replace(name="aten::pin_memory")])
    assert pinning["host-staging"] >= 8.9 * MS
    profiler = inside._replace(name="Activity Buffer Request")
    assert gap_after(None, launch=launch, gap=gap, overheads=[profiler])["profiler-overhead"] >= 8.9 * MS
    assert gap_after(None, launch=launch, gap=gap)["not-recorded"] >= 9.9 * MS


def test_launches_into_a_graph_under_capture_run_nothing() -> None:
    capture = [Host("hipStreamBeginCapture", 2 * MS, 2 * MS + US), Host("hipStreamEndCapture", 8 * MS, 8 * MS + US)]
    captured = [Host("hipLaunchKernel", at * MS, at * MS + 5 * US) for at in range(3, 8)]
    ops = [compute(MS, 2 * MS), compute(10 * MS, 11 * MS, launch=(10 * MS - 5 * US, 10 * MS - 2 * US))]
    trace = make_trace(ops, calls=[*capture, *captured], cpu_ops=[Host("aten::mul", 0, US)])
    causes = device_of(trace).idle_by_cause
    assert causes["graph-capture"] == 6 * MS + US
    assert sum(causes.values()) == 8 * MS


def test_the_first_launch_of_a_kernel_may_load_its_code() -> None:
    """Each kernel's first launch takes 5 ms; a later one of 5 ms is ordinary dispatch."""
    ops, at = [], 0
    for name, length in [("a", 5 * MS), ("b", 5 * MS), *[("a", 5 * US)] * 30, ("a", 5 * MS)]:
        end = at + length
        ops.append(compute(end + US, end + 2 * US, launch=(at, end))._replace(name=name))
        at = end + 2 * US
    causes = device_of(make_trace(ops)).idle_by_cause
    assert causes["first-launch"] == 5 * MS  # The window begins with the first op.
    assert 5 * MS <= causes["dispatch"] <= 5 * MS + 30 * 8 * US


def test_long_calls_beside_a_first_launch_belong_to_the_first_use() -> None:
    """The library of a convolution sets itself up when it is used for the first time."""
    ops = [compute(MS, 2 * MS), compute(20 * MS + US, 21 * MS, launch=(15 * MS, 20 * MS))._replace(name="conv")]
    trace = make_trace(ops, calls=[Host("cudaFree", 5 * MS, 15 * MS)], cpu_ops=[Host("aten::conv", 4 * MS, 20 * MS)])
    causes = device_of(trace).idle_by_cause
    assert (causes["first-launch"], causes["allocation"]) == (16 * MS, 0)


@pytest.mark.parametrize("later_ms", [0, 5])
def test_an_op_that_sets_a_library_up_is_a_first_use(later_ms: int) -> None:
    """The first product takes 20 ms, of which no call shows much; if each takes a few, they are ordinary dispatch."""
    ops, calls, at = [compute(MS, 2 * MS)], [], 3 * MS
    for length in [20 * MS] + [later_ms * MS + 20 * US] * 30:
        end = at + length
        calls.append(Host("aten::mm", at, end))
        ops.append(compute(end + US, end + 2 * US, launch=(end - 5 * US, end))._replace(name="gemm"))
        at = end + 2 * US
    causes = device_of(make_trace(ops, cpu_ops=calls)).idle_by_cause
    assert causes["first-launch"] == (0 if later_ms else 20 * MS)


def test_a_queued_op_that_starts_late_is_not_the_hosts_fault() -> None:
    gap = gap_after(None, launch=MS, gap=(10 * MS, 10 * MS + 4 * US))
    assert gap == {"launch-latency": 4 * US}


def test_clocks_that_disagree_make_host_causes_unknown() -> None:
    ops = [compute(0, MS), Op(Kind.COMPUTE, 3 * MS, 4 * MS, launch=(9 * MS, 9 * MS + US))]
    analysis = analyze_trace(make_trace(ops))
    assert only(analysis.result.devices[0].idle_by_cause) == {"unknown": 2 * MS}
    assert {c.id for c in analysis.result.trust.checks if c.status == "fail"} == {"clock-skew"}


def test_copies_name_their_call_even_if_clocks_disagree() -> None:
    (device,) = analyze_trace(
        make_trace([compute(0, MS), copy(3 * MS, 4 * MS, launch=(9 * MS, 9 * MS + US))])
    ).result.devices
    assert {case.call for case in device.evidence if case.subject == "exposed-copy"} == {"cudaMemcpyAsync"}


def moved(trace: Trace, ns: int) -> Trace:
    """Return the same recording with the device's clock ahead of the host's."""
    ops = trace.gpu_ops
    return replace(trace, gpu_ops=replace(ops, start_ns=ops.start_ns + ns, end_ns=ops.end_ns + ns))


@pytest.mark.parametrize("skew", [-9 * US, 9 * US, 12 * US, 30 * US])
@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if "idle" in truth])
def test_skewed_clocks_change_no_cause(name: str, skew: int) -> None:
    """Host and device clocks are matched to some 10 us only."""
    truth = TRUTH[name]["idle"]
    for device in analyze_trace(moved(trace_of(DATA / f"{name}.json.gz"), skew)).result.devices:
        assert share(device.idle_by_cause, truth["cause"]) >= min(truth["least_share"], 0.95) - 0.15


@pytest.mark.parametrize("streams", [(13, 13, 13), (13, 14, 13)])
@pytest.mark.parametrize("waited", [True, False])
def test_a_late_batch_of_several_tensors_is_late_as_a_whole(streams: tuple[int, ...], waited: bool) -> None:
    """The second and third wait for the first on the engine, but no compute ran meanwhile."""
    sent = [(5 * MS + (20 + 5 * i) * US, 5 * MS + (22 + 5 * i) * US) for i in range(3)]
    begins = [5 * MS + 30 * US, 7 * MS, 9 * MS]
    ops = [compute(0, 5 * MS)]
    ops += [
        copy(begin, begin + 2 * MS - 2 * US, launch=launch, stream=stream)
        for begin, launch, stream in zip(begins, sent, streams, strict=True)
    ]
    ops.append(compute(11 * MS, 20 * MS, launch=(5 * MS + 60 * US, 5 * MS + 65 * US)))
    calls = [
        Host("cudaStreamSynchronize", MS, 5 * MS + 8 * US),
        Host("cudaEventRecord", 5 * MS + 40 * US, 5 * MS + 41 * US),
    ]
    waits = [Wait(5 * MS + 50 * US, 7)] if waited else []
    assert set(only(device_of(make_trace(ops, calls=calls, waits=waits)).exposed_copy_by_cause)) == {"late-issue"}


def test_a_copy_beside_sparse_compute_came_in_time() -> None:
    """Compute runs before, during and after the copy; it is exposed in the gaps between late launches."""
    ops = [compute(t * 20 * US, t * 20 * US + 10 * US) for t in range(500)]
    ops.append(copy(2 * MS, 7 * MS))
    device = device_of(make_trace(ops))
    assert device.exposed_copy_by_cause["late-issue"] <= 20 * US
    assert device.exposed_copy_by_cause["unknown"] >= 2.4 * MS


@pytest.mark.parametrize("call", ["cudaMemcpyAsync", "cudaMemcpy"])
def test_reading_back_into_pageable_memory_is_a_wait(call: str) -> None:
    """`.item()` until torch 2.5: the copy call itself blocks until the GPU is done."""
    ops = [
        compute(0, 10 * MS),
        copy(10 * MS + US, 10 * MS + 3 * US, stream=7, launch=(10 * US, 10 * MS + 10 * US), call=call)._replace(
            kind=Kind.D2H, source=Memory.DEVICE, target=Memory.PAGEABLE
        ),
        compute(11 * MS, 20 * MS),
    ]
    idle = device_of(make_trace(ops)).idle_by_cause
    assert idle["host-sync"] >= 0.98 * MS


def test_an_event_wait_lasts_until_its_source_ends_however_slow_the_handover() -> None:
    ops = [
        compute(0, MS),
        Op(Kind.COMPUTE, 0, 6 * MS, stream=9, device=1, launch=(-10 * US, -5 * US)),
        compute(6 * MS + 25 * US, 8 * MS, launch=(60 * US, 65 * US)),
    ]
    calls = [Host("cudaEventRecord", 50 * US, 51 * US)]
    first, _ = analyze_trace(make_trace(ops, calls=calls, waits=[Wait(55 * US, 7)])).result.devices
    assert only(first.idle_by_cause) == {"event-wait": 5 * MS + 25 * US}


def test_work_of_the_launching_thread_is_not_blamed_on_another_threads_wait() -> None:
    """A serving thread tokenizes through the whole gap; another one had synchronized before."""
    ops = [
        compute(0, 10 * MS, thread=1),
        Op(Kind.COMPUTE, 30 * MS, 31 * MS, launch=(30 * MS - 10 * US, 30 * MS - 5 * US), thread=2),
    ]
    calls = [Host("cudaStreamSynchronize", MS, 10 * MS + 5 * US, thread=1)]
    tokenize = Host("tokenize", 5 * MS, 30 * MS - 20 * US, thread=2)
    idle = device_of(make_trace(ops, calls=calls, cpu_ops=[tokenize])).idle_by_cause
    assert idle["cpu-ops"] >= 19.9 * MS


def test_a_long_cpu_op_behind_a_synchronize_is_work() -> None:
    """An offloaded optimizer: the host must compute before it can launch again."""
    blocker = Host("cudaStreamSynchronize", 2 * MS, 30 * MS + 8 * US)
    adam = Host("CPUAdam", 30 * MS + 10 * US, 50 * MS - 20 * US)
    gap = gap_after(blocker, launch=50 * MS - 5 * US, gap=(30 * MS, 50 * MS), cpu_ops=[adam])
    assert gap["cpu-ops"] >= 19.9 * MS


def test_a_launch_call_is_dispatch_however_long_it_takes() -> None:
    """A first launch that loads its module for 20 ms."""
    ops = [compute(0, MS), Op(Kind.COMPUTE, 21 * MS, 22 * MS, launch=(MS, 21 * MS - 5 * US))]
    assert device_of(make_trace(ops)).idle_by_cause["dispatch"] >= 19.9 * MS


def test_an_event_wait_through_a_copy_is_one() -> None:
    """The upload waits for the download of the same buffer, which waits for compute."""
    ops = [
        compute(0, 5 * MS),
        copy(5 * MS + 3 * US, 7 * MS, stream=14, launch=(20 * US, 25 * US))._replace(kind=Kind.D2H),
        copy(7 * MS + 3 * US, 9 * MS, stream=13, launch=(40 * US, 45 * US)),
        compute(9 * MS + 3 * US, 20 * MS, launch=(60 * US, 65 * US)),
    ]
    calls = [Host("cudaEventRecord", at * US, (at + 1) * US) for at in (12, 30, 50)]
    device = device_of(make_trace(ops, calls=calls, waits=[Wait(15 * US, 14), Wait(32 * US, 13), Wait(52 * US, 7)]))
    assert set(only(device.exposed_copy_by_cause)) == {"event-wait"}


def test_ops_that_never_have_a_correlation_make_no_lead_in() -> None:
    ops = [compute(0, 5 * MS), copy(5 * MS, 7 * MS, launch=None), compute(7 * MS, 9 * MS)]
    assert device_of(make_trace(ops)).lead_in_ns == 0


def test_a_copy_of_no_length_counts_at_the_edge_of_the_window() -> None:
    ops = [copy(0, 0, size=100), compute(0, MS), copy(MS, MS, size=100)]
    (group,) = device_of(make_trace(ops)).copies
    assert (group.count, group.bytes, group.time_ns) == (2, 200, 0)


def test_threads_are_not_looked_for_one_by_one_in_all_calls() -> None:
    compared = 0

    class ComparisonCountingArray(np.ndarray[Any, np.dtype[np.int64]]):  # noqa: PLW1641
        def __eq__(self, other: object) -> Any:
            nonlocal compared
            compared += self.size
            return np.asarray(self) == other

    ops = [
        Op(Kind.COMPUTE, at + 20 * US, at + 30 * US, launch=(at, at + 2 * US), thread=1 + number)
        for number, at in enumerate(range(0, 30 * MS, 100 * US))
    ]
    trace = make_trace(ops)
    calls = replace(trace.runtime_calls, thread=trace.runtime_calls.thread.view(ComparisonCountingArray))
    analyze_trace(replace(trace, runtime_calls=calls))
    assert compared <= 10 * len(ops)


def test_the_pages_of_diagnoses_and_experiments_are_up_to_date() -> None:
    from benchmarks.diagnoses import files

    stale = [target.name for target, text in files().items() if target.read_text() != text]
    assert stale == [], "run python benchmarks/diagnoses.py"

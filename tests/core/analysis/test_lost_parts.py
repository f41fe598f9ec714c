"""Tests that a lost part of a recording makes every rule and metric unknown that rests on it, so that nothing passes
without data.

Real recordings are mutated: the events of a part lose their durations, or are removed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import Check
from overlapscope.budgets.check import check
from overlapscope.budgets.settings import Budget, Scope, Settings
from overlapscope.budgets.verdicts import Status
from overlapscope.catalog.measures import METRICS
from overlapscope.commands import main
from overlapscope.inputs import read_report
from overlapscope.pytest_plugin import assert_overlap
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from overlapscope.trace.lost import (
    GPU_OPS,
    PARTS_FOR_CAUSES,
    PARTS_FOR_FIGURES,
    PARTS_FOR_FINDINGS,
    PARTS_FOR_HOST,
    PARTS_IN_WORDS,
    Part,
)
from overlapscope.trace.model import Kind, Trace
from tests.support.helpers import Host, Op, make_trace, thorough
from tests.support.stepped_traces import write_steps

FIRES_IN = {
    "known_causes/allocation": {"allocation"},
    "known_causes/backward_on_side_stream": {"stream-without-work"},
    "known_causes/event_wait": {"late-prefetch"},
    "known_causes/host_compute": {"cpu-ops", "python"},
    "known_causes/one_copy_stream": {"one-way-copies"},
    "known_causes/pin_in_loop": {"pin-in-loop", "same-stream"},
    "laboratory/copy_matrix/streamed1_pinned0.trace": {"dispatch", "pageable-memory"},
    "laboratory/ddp_training/no_overlap.traces/rank0.trace": {"exposed-comm"},
    "laboratory/many_small_copies/non_blocking.trace": {"tiny-copies"},
    "laboratory/pin_threads/pin_4_threads.trace": {"slow-link"},
    "mixed_workloads/activation_offload": {"blocking-copy"},
    "mixed_workloads/loader_with_workers": {"data-loading"},
    "streamed0_pinned1": {"host-sync", "same-stream"},
    "streamed1_pinned1": {"overlap-achieved"},
}
"""Recordings, and rules that find something in them."""
NO_RECORDING = {
    *("streams-without-overlap", "cpu-throttled", "file-io", "gc-pause", "gil-wait", "preempted"),
    *("device-copy", "page-migration", "peer-copy"),
}
"""Rules that find nothing in any recording here."""

Event = dict[str, Any]


def _kernel(event: Event) -> bool:
    return bool(event["cat"] == "kernel")


def _host_copy(event: Event) -> bool:
    return bool(event["cat"] == "gpu_memcpy") and ("HtoD" in event["name"] or "DtoH" in event["name"])


IS: dict[Part, Callable[[Event], bool]] = {
    "compute": lambda event: _kernel(event) and "nccl" not in event["name"].lower(),
    "comm": lambda event: _kernel(event) and "nccl" in event["name"].lower(),
    "copies": _host_copy,
    "other": lambda event: event["cat"] == "gpu_memset" or (event["cat"] == "gpu_memcpy" and not _host_copy(event)),
    "calls": lambda event: event["cat"] in ("cuda_runtime", "cuda_driver"),
    "ops": lambda event: event["cat"] == "cpu_op",
    "ranges": lambda event: event["cat"] == "user_annotation",
    "syncs": lambda event: event["cat"] == "cuda_sync",
}
WAYS: dict[str, Callable[[Event], Event | None]] = {
    "negative": lambda event: event | {"dur": -event["dur"]},
    "missing": lambda event: {key: value for key, value in event.items() if key != "dur"},
    "zero": lambda event: event | {"dur": 0},
    "text": lambda event: event | {"dur": "a while"},
    "truth": lambda event: event | {"dur": True},
    "years": lambda event: event | {"dur": 1e15},
    "removed": lambda event: None,
}
TELLS_NOTHING = {("ops", "removed"), ("ranges", "removed"), ("syncs", "removed")} | {
    ("syncs", way) for way in ("missing", "zero")
}
"""Parts whose removal leaves no sign; the length of a wait's record is not used."""


@cache
def recording(name: str) -> Event:
    document: Event = json.loads(gzip.decompress(Path(f"traces/{name}.json.gz").read_bytes()))
    return document


def mutated(name: str, part: Part, way: str, target: Path, *, every: int = 1) -> Report | None:
    """Return the recording with every n-th event of a part changed; None if it has no such event."""
    document = recording(name)
    events, number = [], 0
    for event in document["traceEvents"]:
        kept: Event | None = event
        if event.get("ph") == "X" and IS[part](event):
            number += 1
            kept = WAYS[way](event) if number % every == 0 else event
        if kept is not None:
            events.append(kept)
    if number < every:
        return None
    target.write_bytes(msgspec.json.encode(document | {"traceEvents": events}))
    return read_report([target], cache=False)


SCOPES: tuple[Scope, ...] = ("steps", "window")
BUDGETS = tuple(
    Budget(
        metric=metric.metric,
        scope=scope,
        limit="min" if metric.more_is_better else "max",
        bound=0.0 if metric.more_is_better else 1e15,
    )
    for metric in METRICS.values()
    for scope in SCOPES
)
"""Budgets on every metric, in steps and in the window, that cannot fail."""
RESTS_ON = {rule: RULES[rule].rests_on for rule in RULES} | {
    budget.title: budget.measure.rests_on for budget in BUDGETS
}


def judged(report: Report) -> dict[str, tuple[Status, float | None]]:
    """Status and value of every rule and every one of `BUDGETS`."""
    result = check(report, Settings(budgets=BUDGETS, forbid=tuple(RULES)))
    return {
        verdict.metric if verdict.unit == "findings" else verdict.budget: (verdict.status, verdict.value)
        for verdict in result.verdicts
    }


def losses(name: str) -> Iterator[tuple[Part, str, int]]:
    """What is lost, how, and of how many events one: every part in every recording, and each of the other ways in turn
    in every fourth, or in `make quick` in one."""
    turn, turns = [*FIRES_IN].index(name), 4 if thorough() else len(FIRES_IN)
    for part in IS:
        yield part, "negative", 1
        others = [(way, 1) for way in WAYS if way != "negative" and (part, way) not in TELLS_NOTHING]
        for number, (way, every) in enumerate([*others, ("negative", 3)]):
            if (number + turn) % turns == 0 or part == "comm":
                yield part, way, every


def test_every_rule_is_tried() -> None:
    assert set().union(*FIRES_IN.values()) == set(RULES) - NO_RECORDING


@pytest.mark.parametrize("name", FIRES_IN)
def test_what_is_lost_makes_unknown_what_rests_on_it_and_changes_nothing_else(name: str, tmp_path: Path) -> None:
    whole = judged(read_report([f"traces/{name}.json.gz"]))
    assert {whole[rule][0] for rule in FIRES_IN[name]} == {"fail"}
    for part, way, every in losses(name):
        report = mutated(name, part, way, tmp_path / "trace.json", every=every)
        if report is not None:
            for what, status in judged(report).items():
                if part in RESTS_ON[what]:
                    # Beside a lost op, less is exposed; other losses can only hide more.
                    stands = what in RULES and status[0] == "fail" and part not in GPU_OPS
                    assert status[0] == "unknown" or stands, (what, part, way, every)
                elif status[0] != "unknown":
                    assert status == whole[what], (what, part, way, every)


@pytest.fixture(scope="module")
def stepped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, dict[str, tuple[Status, float | None]]]:
    """Return a report that lost nothing, and how it is judged."""
    report = read_report([write_steps(tmp_path_factory.mktemp("stepped") / "trace.json")])
    return report, judged(report)


@pytest.mark.parametrize("part", PARTS_IN_WORDS)
@pytest.mark.parametrize("check_id", ["durations", "dropped-ops", "launches", "clock-skew", "steps", "sync-events"])
def test_whichever_check_says_so(
    part: Part, check_id: str, stepped: tuple[Report, dict[str, tuple[Status, float | None]]]
) -> None:
    report, wholes = stepped
    [trace] = report.traces
    checks = tuple(
        msgspec.structs.replace(check, status="warn", lost=(part,)) if check.id == check_id else check
        for check in trace.trust.checks
    )
    trust = msgspec.structs.replace(trace.trust, checks=checks)
    result = judged(msgspec.structs.replace(report, traces=(msgspec.structs.replace(trace, trust=trust),)))
    for name, whole in wholes.items():
        stands = name in RULES and whole[0] == "fail" and part not in GPU_OPS
        touched = part in RESTS_ON[name] and not stands
        assert result[name] == (("unknown", None) if touched else whole), name


@pytest.mark.parametrize("way", WAYS)
def test_lost_copies_are_no_good_news_anywhere(way: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert mutated("streamed0_pinned0", "copies", way, path) is not None
    whole = "traces/streamed0_pinned0.json.gz"
    assert main(["check", str(path)]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "copies between host and device" in printed
    # A copy without a length still states that its memory is pageable.
    assert ("it was found, but" in printed) == (way in ("missing", "zero"))
    for form in ("text", "markdown"):
        assert main(["analyze", str(path), "--format", form]) == 0
        printed = " ".join(capsys.readouterr().out.split())
        assert "rules cannot tell whether there is more to find" in printed or "no rule can tell" in printed
        assert (
            "No overlap problems" not in printed
            and "othing is copied" not in printed
            and "overlap-achieved" not in printed
        )
    assert main(["diff", whole, str(path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Changes cannot be measured, because some copies between host and device")
    assert "better" not in printed and "faster" not in printed
    assert main(["check", str(path), "--write-baseline", "--baseline", str(tmp_path / "baseline.json")]) == 2
    assert "cannot be a baseline" in capsys.readouterr().err
    assert main(["check", whole, "--baseline", str(path)]) == 2
    with pytest.raises(AssertionError, match="same-stream cannot be judged"):
        assert_overlap(str(path), forbid=["same-stream"])


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        ("cudaMemcpyAsync", {"copies", "other"}),
        ("cuMemcpyHtoDAsync_v2", {"copies", "other"}),
        ("cudaMemsetAsync", {"fills"}),
        ("cudaLaunchKernelExC", {"compute", "comm"}),
        ("cuLaunchKernelEx", {"compute", "comm"}),
        ("hipExtModuleLaunchKernel", {"compute", "comm"}),
        ("cudaGraphLaunch", {"compute", "comm", "copies", "other", "fills"}),
        ("cudaStreamSynchronize", set()),
    ],
)
def test_a_launch_without_its_op_tells_what_is_lost(call: str, parts: set[Part]) -> None:
    trace = make_trace([Op(Kind.COMPUTE, 20, 30, launch=(0, 10))], calls=[Host(call, 12, 15)])
    assert analyze_trace(trace).result.trust.lost == parts


def test_memsets_of_no_bytes_are_not_lost() -> None:
    ops = [
        Op(Kind.COMPUTE, 20, 30, launch=(0, 10)),
        Op(Kind.OTHER, 40, 45, launch=(20, 30), call="cudaMemsetAsync"),
    ]
    check = trust_check(make_trace(ops, calls=[Host("cudaMemsetAsync", 12, 15)]), "dropped-ops")
    assert (check.status, check.detail) == (
        "ok",
        ("Every recorded launch has its GPU op, except 1 memset of unknown size: a memset of no bytes has none."),
    )
    kernel_lost = [Host("cudaMemsetAsync", 12, 15), Host("cudaLaunchKernel", 16, 18)]
    assert trust_check(make_trace(ops, calls=kernel_lost), "dropped-ops").status == "warn"


@pytest.mark.parametrize(
    ("call", "kernel", "checked"),
    [
        ("hipMemcpyAsync", "__amd_rocclr_copyBuffer", True),
        ("hipMemcpyWithStream", "__amd_rocclr_copyBufferAligned.kd", True),
        ("hipMemcpyDtoDAsync", "__amd_rocclr_copyBuffer", False),
        ("hipMemsetAsync", "__amd_rocclr_fillBufferAligned", False),
    ],
)
def test_a_kernel_by_which_rocm_copies_states_no_direction_unless_its_call_does(
    call: str, kernel: str, checked: bool
) -> None:
    ops = [
        Op(Kind.COMPUTE, 20, 30, launch=(0, 10)),
        Op(Kind.OTHER, 40, 45, launch=(20, 30), call=call, name=kernel),
    ]
    checks = [check.id for check in analyze_trace(make_trace(ops)).result.trust.checks]
    assert ("copy-directions" in checks) == checked


@pytest.mark.parametrize(
    ("time", "message"),
    [
        ({"dur": -1}, "GPU ops without a possible time"),
        ({"ts": 0, "dur": 0}, "GPU ops without a possible time"),
        ({"cat": "overhead"}, "launches of GPU work, but no GPU op"),
    ],
)
def test_gpu_ops_that_the_profiler_lost_are_not_called_absent(
    time: dict[str, object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(write_steps(tmp_path / "trace.json"))
    trace = json.loads(path.read_text())
    for event in trace["traceEvents"]:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            event |= time
    path.write_text(json.dumps(trace))
    report = read_report([path]).traces[0]
    [check] = [check for check in report.trust.checks if check.id == "gpu-activity"]
    assert check.status == "fail" and message in check.detail
    assert "a defect of the recording" in check.detail and "no GPU activity" not in check.detail
    assert report.host is None
    for command in (["analyze"], ["check"], ["whatif", "--pin"]):
        main([*command, str(path)])
        printed = " ".join("".join(capsys.readouterr()).split())
        assert "a defect of the recording" in printed and "no GPU activity" not in printed


def trust_check(trace: Trace, check_id: str) -> Check:
    """Return a trust check of a trace."""
    return next(check for check in analyze_trace(trace).result.trust.checks if check.id == check_id)


@pytest.mark.parametrize(
    ("start", "length", "lost"),
    [
        (10_007, 0, True),  # the file has nanoseconds
        (10_007, 10_000, False),
        (10_000, 0, False),  # whole microseconds: it took less than 1 us
    ],
)
def test_a_copy_takes_time(start: int, length: int, lost: bool) -> None:
    ops = [Op(Kind.H2D, start, start + length, launch=(0, 1000), call="cudaMemcpyAsync", size=4)]
    ops.append(Op(Kind.H2D, start + 20_000, start + 21_000, launch=(2000, 3000), call="cudaMemcpyAsync", size=512))
    assert ("copies" in analyze_trace(make_trace(ops)).result.trust.lost) == lost


def test_events_that_could_not_be_read_may_have_been_anything(tmp_path: Path) -> None:
    path = Path(write_steps(tmp_path / "trace.json"))
    path.write_text(path.read_text().replace('{"ph":"X"', '{"ph":4.0.0.0 "X"', 1))
    report = read_report([path])
    assert report.traces[0].trust.lost == set(PARTS_IN_WORDS)
    assert {status for status, _ in judged(report).values()} == {"unknown"}


def test_the_documentation_says_what_rests_on_what() -> None:
    text = Path("docs/how-it-works/trust.md").read_text()
    _, _, section = text.partition("## Lost parts")
    table = section.partition("\n\n`overlapscope explain")[0]
    figures, causes, host, nothing = (
        row for row in table.splitlines() if row.startswith("| ") and "rests on" not in row
    )
    assert {part for part in PARTS_IN_WORDS if f"`{part}`" in figures} == PARTS_FOR_FIGURES
    assert {part for part in PARTS_IN_WORDS if f"`{part}`" in causes} == PARTS_FOR_FINDINGS - PARTS_FOR_FIGURES
    assert {part for part in PARTS_IN_WORDS if f"`{part}`" in host} == PARTS_FOR_HOST
    assert all((f"`{name}`" in host) == (metric.rests_on == PARTS_FOR_HOST) for name, metric in METRICS.items())
    assert {part for part in PARTS_IN_WORDS if f"`{part}`" in nothing} == set(
        PARTS_IN_WORDS
    ) - PARTS_FOR_CAUSES - PARTS_FOR_FIGURES
    assert {rule for rule in RULES if f"`{rule}`" in figures} == {
        rule for rule in RULES if RULES[rule].rests_on <= PARTS_FOR_FIGURES
    }
    of_causes = {
        id
        for id, metric in METRICS.items()
        if metric.rests_on & PARTS_FOR_FINDINGS - PARTS_FOR_FIGURES - PARTS_FOR_HOST
    }
    with_other = {id for id, metric in METRICS.items() if "fills" in metric.rests_on}
    assert {metric for metric in METRICS if f"`{metric}`" in figures} == of_causes | with_other


@pytest.mark.parametrize(
    "name", ["", None, "missing", "Memcpy", "Memcpy <unknown> (Unknown -> Unknown)", "Copy_NONE", "Memcpy copy"]
)
def test_a_check_is_inconclusive_where_a_copy_does_not_state_its_direction(name: str | None, tmp_path: Path) -> None:
    document = recording("known_causes/blocking_copy")
    events = [event | ({"name": name} if _is_host_copy(event) else {}) for event in document["traceEvents"]]
    if name == "missing":
        events = [
            {key: value for key, value in event.items() if key != "name" or not _is_host_copy(event)}
            for event in events
        ]
    (target := tmp_path / "t.json").write_bytes(msgspec.json.encode(document | {"traceEvents": events}))
    result = check(read_report([target], cache=False))
    assert result.outcome == "inconclusive"
    unknown = [verdict for verdict in result.verdicts if verdict.status == "unknown"]
    assert len(unknown) > 10 and all("do not state a direction" in verdict.message for verdict in unknown)


def _is_host_copy(event: Event) -> bool:
    return event.get("ph") == "X" and _host_copy(event)


def ending(dropped: range = range(0), *, wait: bool = False) -> Trace:
    """Return 30 steps of ten launches; some have no op, and the program waits for the last ones if `wait`."""
    ops, calls, steps = [], [], []
    for number in range(300):
        at = number * 1_000_000
        if number in dropped:
            calls.append(Host("cudaLaunchKernel", at, at + 5_000))
        else:
            ops.append(Op(Kind.COMPUTE, at + 10_000, at + 900_000, launch=(at, at + 5_000)))
        if number % 10 == 0:
            steps.append(Host(f"ProfilerStep#{number // 10}", at, at + 9_990_000))
    if wait:
        calls.append(Host("cudaStreamSynchronize", 299_100_000, 299_200_000))
        calls.append(Host("cudaEventRecord", 299_300_000, 299_301_000))
    return make_trace(ops, calls=calls, annotations=steps)


def test_launches_that_the_end_of_the_recording_cut_off_touch_only_the_end() -> None:
    result = analyze_trace(ending(range(297, 300))).result
    check = next(check for check in result.trust.checks if check.id == "dropped-ops")
    assert (check.status, result.trust.lost) == ("ok", frozenset())
    assert "3 in the last 2.00 ms: the recording ended before they ran" in check.detail
    [device] = result.devices
    assert device.per_step is not None and device.per_step.steps == 29
    # A step that has lost all of its ops has no place on the device, and the one before is the last.
    [device] = analyze_trace(ending(range(288, 300))).result.devices
    assert device.per_step is not None and device.per_step.steps == 28


@pytest.mark.parametrize(
    ("dropped", "wait"),
    [(range(150, 153), False), (range(120, 300), False), (range(297, 300), True), (range(296, 299), False)],
)
def test_real_drops_are_no_end(dropped: range, wait: bool) -> None:
    """Ops are dropped in the middle, from there on, although the program waited for them, or before a recorded one."""
    trace = ending(dropped, wait=wait)
    assert trust_check(trace, "dropped-ops").status == "warn"
    assert analyze_trace(trace).result.trust.lost == {"compute", "comm"}


def test_time_after_a_launch_whose_op_was_dropped_is_not_idle() -> None:
    [whole], [device] = (analyze_trace(ending(dropped)).result.devices for dropped in (range(0), range(150, 153)))
    assert device.idle_by_cause["missing-ops"] == 3 * 1_000_000 + 10_000
    assert device.buckets.idle_ns - device.idle_by_cause["missing-ops"] == whole.buckets.idle_ns - 340_000
    assert sum(device.idle_by_cause.values()) == device.buckets.idle_ns


def test_a_recording_without_any_op_says_why() -> None:
    trace = make_trace([], calls=[Host("cudaLaunchKernel", at, at + 5) for at in range(0, 1200, 10)])
    check = trust_check(trace, "dropped-ops")
    assert check.status == "fail" and "120 recorded launches" in check.detail
    for reason in ("synchronize", "warm-up", "ERR_NVGPUCTRPERM", "another profiler"):
        assert reason in check.detail


@pytest.mark.parametrize(("pause", "lost"), [(10, False), (20_000, True)])
def test_a_few_ops_without_a_duration_touch_what_they_can_have_covered(pause: int, lost: bool) -> None:
    """Three of 300 ops have no duration; the next op on their thread begins after `pause`."""
    ops = [Op(Kind.COMPUTE, at + 7, at + 30_007, launch=(at, at + 5)) for at in range(0, 30_000_000, 100_000)]
    cpu_ops = [Host("aten::mm", at, at + 9) for at in range(0, 30_000_000, 100_000)]
    cpu_ops += [
        each
        for at in (50_000, 150_000, 250_000)
        for each in (Host("aten::t", at, at), Host("aten::t", at + pause, at + pause + 5))
    ]
    check = trust_check(make_trace(ops, cpu_ops=cpu_ops), "durations")
    assert check.status == "warn" and "3 events have no duration" in check.detail
    assert check.lost == (("ops",) if lost else ())


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 400), st.integers(0, 60), st.booleans()), min_size=2, max_size=40
    )
)
def test_idle_time_is_divided_exactly_whatever_was_dropped(work: list[tuple[int, int, int, bool]]) -> None:
    """Each item is an op: its kind of call, its length, the pause before its launch, and whether it is dropped."""
    ops, calls, at, free = [], [], 0, 0
    for call, length, pause, dropped in work:
        at += pause * 10_000
        if call == 3:
            end = max(at + 5_000, free)
            calls.append(Host("cudaStreamSynchronize", at, end))
            at = end
            continue
        begin = max(at + 8_000, free)
        name = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync")[call]
        kind = (Kind.COMPUTE, Kind.H2D, Kind.OTHER)[call]
        if dropped:
            calls.append(Host(name, at, at + 5_000))
        else:
            ops.append(Op(kind, begin, begin + length * 1_000, launch=(at, at + 5_000), call=name))
        free, at = begin + length * 1_000, at + 6_000
    if not ops:
        return
    [device] = analyze_trace(make_trace(ops, calls=calls)).result.devices
    assert sum(device.idle_by_cause.values()) == device.buckets.idle_ns
    if not any(dropped for *_, dropped in work):
        assert device.idle_by_cause["missing-ops"] == 0

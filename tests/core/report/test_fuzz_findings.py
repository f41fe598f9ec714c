"""Tests of defects that `tests/fuzz` found and no other test covers."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from overlapscope import analyze, load
from overlapscope.analysis.host_order import Relation, relations
from overlapscope.base.marks import METADATA, PLAIN_STEPS
from overlapscope.base.saved import encode
from overlapscope.inputs import read_baseline
from overlapscope.render import terminal
from overlapscope.report.document import document
from overlapscope.report.model import from_json
from overlapscope.report.page import Page
from tests.support.helpers import TRACES, Host, make_trace
from tests.support.kineto_files import call, host, kernel, memcpy, write


def test_a_report_reads_back_whatever_the_ids_of_threads(tmp_path: Path) -> None:
    events = [
        kernel(1.0, 10.0, correlation=1),
        call(0.5, 0.2, 1, tid=2**63 - 1),
        call(2.0, 15.0, 2, name="cudaEventSynchronize", tid=2**63 - 1),
        kernel(20.0, 10.0, correlation=3),
        call(18.0, 0.2, 3, tid=2**63 - 1),
    ]
    report = analyze(load(write(tmp_path / "trace.json", events)))
    assert [stall.thread for stall in report.devices[0].host_stalls] == [2**63 - 1]
    assert from_json(encode(report)) == report


def test_a_report_whose_host_time_has_no_steps_is_none_of_ours(tmp_path: Path) -> None:
    report = analyze(load(write(tmp_path / "trace.json", [host("cpu_op", "aten::mm", 1.0, 10.0)])))
    changed = json.loads(encode(report))
    changed["traces"][0]["host"]["steps"] = []
    with pytest.raises(msgspec.ValidationError, match="length >= 1"):
        from_json(json.dumps(changed).encode())


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("per_step", "first"), 1 << 62),
        (("per_step", "first"), -1),
        (("per_step", "steps"), 1 << 62),
        (("per_step", "steps"), 0),
        (("steps", 0, "partial"), True),
        (("steps", -2, "partial"), True),
    ],
)
def test_a_report_whose_average_is_not_of_its_whole_steps_is_none_of_ours(place: tuple[Any, ...], value: int) -> None:
    changed = json.loads(encode(analyze(load(Path("traces/known_causes/event_wait.json.gz")))))
    part = changed["traces"][0]["devices"][0]
    part["per_step"].update(first=0, steps=len(part["steps"]))
    from_json(json.dumps(changed).encode())
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    with pytest.raises(msgspec.ValidationError, match="whole steps"):
        from_json(json.dumps(changed).encode())


@pytest.mark.parametrize("steps", [0, -1])
def test_a_report_without_figures_of_steps_has_an_average_of_some(steps: int) -> None:
    changed = json.loads(encode(analyze(load(Path("traces/known_causes/event_wait.json.gz")))))
    [device] = changed["traces"][0]["devices"]
    device.update(steps=[], copies=[], host_stalls=[], kernels=[], evidence=[], plain=None)
    from_json(json.dumps(changed).encode())
    device["per_step"]["steps"] = steps
    with pytest.raises(msgspec.ValidationError, match="whole steps"):
        from_json(json.dumps(changed).encode())


@pytest.mark.parametrize("place", ["rule", "id", "cause", "target_kind"])
def test_a_report_whose_words_would_control_a_terminal_is_none_of_ours(place: str) -> None:
    changed = json.loads(encode(analyze(load(Path("traces/known_causes/same_stream.json.gz")))))
    [trace] = changed["traces"]
    [device] = trace["devices"]
    within = {"rule": changed["findings"], "id": trace["trust"]["checks"], "cause": device["evidence"]}
    within.get(place, device["copies"])[0][place] = "\x1b[2J"
    with pytest.raises(msgspec.ValidationError, match="Expected a name"):
        from_json(json.dumps(changed).encode())


def test_a_report_of_no_time_is_shown() -> None:
    """A saved report may have been edited: causes in a span of no length have no share of it."""
    changed = json.loads(encode(analyze(load(Path("traces/known_causes/same_stream.json.gz")))))
    changed["traces"][0]["devices"][0]["span_ns"] = 0
    report = from_json(json.dumps(changed).encode())
    assert report.devices[0].span_ns == 0
    assert terminal.render(document(Page(report, verbose=True)), width=100)


def test_the_interval_of_a_step_ends_at_the_recorded_one_where_a_replay_takes_longer(tmp_path: Path) -> None:
    events = [
        host("user_annotation", "ProfilerStep#3", 1858.179, 895.683),
        call(0.0, 0.321, 98, name="cudaGraphLaunch"),
        memcpy(118.101, 40.672, stream=45, correlation=0),
        memcpy(160.117, 40.544, stream=61, correlation=98),
        kernel(185.365, 7.168, correlation=98),
        call(172.971, 7.902, 68),
        call(1958.202, 3.916, 56, name="cudaMemcpyAsync"),
        memcpy(1993.074, 40.512, stream=7, correlation=56),
        memcpy(2035.314, 40.288, stream=41, correlation=98),
    ]
    [device] = analyze(load(write(tmp_path / "trace.json", events))).devices
    assert device.alone is not None and device.per_step is not None
    assert device.alone.low_ns <= device.alone.high_ns == device.per_step.span_ns


def test_of_very_many_threads_the_busiest_alone_are_compared_for_taking_turns() -> None:
    busy = [Host("aten::mm", 100 * turn, 100 * turn + 40, thread) for turn in range(50) for thread in (998, 999)]
    idlers = [Host("aten::mm", 7 * thread, 7 * thread + 3, thread) for thread in range(500)]
    threads = [*range(500), 998, 999]
    result = relations(make_trace(cpu_ops=[*idlers, *busy]), threads)
    assert result[500, 501] == Relation.BESIDE
    assert len(result) < len(threads)


def test_plain_steps_in_a_file_of_very_many_threads_replay_nothing(tmp_path: Path) -> None:
    numbers = range(260)
    events = [
        event
        for number in numbers
        for event in (call(10.0 * number, 2.0, number, tid=number), kernel(10.0 * number + 3, 5.0, correlation=number))
    ]
    timed = {"host_ns": [4_000_000] * 12, "device_ns": []}
    plain = {METADATA: {PLAIN_STEPS: {"before": timed, "after": timed}}}
    few, many = (
        analyze(load(write(tmp_path / f"{len(some)}.json", some, **plain))).devices[0].plain
        for some in (events[:100], events)
    )
    assert few is not None and few.origin == "measured"
    assert many is None


def test_a_report_is_written_with_at_most_two_copies_of_its_json_in_memory() -> None:
    report = [["x" * 30] * 1000] * 300
    tracemalloc.start()
    try:
        data = encode(report)
        most_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most_bytes < len(msgspec.json.encode(report)) + 2 * len(data)


def test_a_report_whose_groups_have_no_kernels_is_a_baseline_without_kernels(tmp_path: Path) -> None:
    report = json.loads(encode(analyze(load(TRACES / "ddp" / "rank0.json.gz"))))
    for group in report["traces"][0]["devices"][0]["kernels"]:
        group["count"] = 0
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report))
    assert read_baseline(path).kernels == {}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda trace: trace["devices"][0]["idle_by_cause"].update({"gcmpause": 1}), "at `idle_by_cause`"),
        (
            lambda trace: trace["devices"][0]["steps"][1]["exposed_copy_by_cause"].update({"x": 1}),
            "exposed_copy_by_cause",
        ),
        (lambda trace: trace["devices"][0]["per_step"]["idle_by_cause"].update({"": 1}), "at `idle_by_cause`"),
        (lambda trace: trace["trust"].update(verdict="degraded"), "at `trust`"),
        (lambda trace: trace["trust"]["checks"][0].update(status="fail"), "at `trust`"),
        (lambda trace: trace["trust"].update(checks=[], verdict="degraded"), "at `trust`"),
    ],
)
def test_a_report_with_unknown_causes_or_another_verdict_than_its_checks_is_none_of_ours(
    change: Callable[[dict[str, Any]], None], said: str
) -> None:
    changed = json.loads(encode(analyze(load(Path("traces/known_causes/event_wait.json.gz")))))
    change(changed["traces"][0])
    with pytest.raises(msgspec.ValidationError, match=said):
        from_json(json.dumps(changed).encode())


def test_a_report_reads_back_though_the_end_cut_off_the_steps_before_the_last(tmp_path: Path) -> None:
    # Steps that overlap on the host, and a last launch without its op.
    events = [call(112.0, 0.01, 999)]
    for number in range(5):
        events.append(host("user_annotation", f"ProfilerStep#{number}", 5.0 * number, 100.0))
        for launch in range(1, 41):
            events.append(call(5.0 * number + launch / 10, 0.01, 40 * number + launch))
            events.append(kernel(1000.0 + 100 * number + launch, 0.5, correlation=40 * number + launch))
    report = analyze(load(write(tmp_path / "trace.json", events)))
    assert [step.partial for step in report.devices[0].steps] == [False, False, False, True, False]
    assert from_json(encode(report)) == report

"""Tests of the times of steps and ranges on the device."""

from __future__ import annotations

import pytest

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.periods import check_step
from overlapscope.errors import NotInTrace
from overlapscope.trace.model import Kind
from tests.support.helpers import Host, Op, make_trace


def op(start: int, end: int, launch: int, stream: int = 7, kind: Kind = Kind.COMPUTE) -> Op:
    return Op(kind, start, end, stream=stream, launch=(launch, launch + 1))


def test_the_host_may_run_ahead_of_the_device() -> None:
    """All is launched by 30; the second step begins on the device when its first op does."""
    ops = [op(100, 200, 1), op(200, 300, 2), op(300, 400, 11), op(400, 500, 12)]
    steps = [Host("ProfilerStep#5", 0, 10), Host("ProfilerStep#6", 10, 20)]
    (device,) = analyze_trace(make_trace(ops, annotations=steps)).result.devices
    assert [(s.name, s.window.start_ns, s.window.end_ns) for s in device.steps] == [
        ("ProfilerStep#5", 100, 300),
        ("ProfilerStep#6", 300, 500),
    ]


def test_a_side_stream_bounds_no_step() -> None:
    """The second step's copy runs early; the step begins with its compute."""
    ops = [op(100, 200, 1), op(120, 140, 11, stream=13, kind=Kind.H2D), op(200, 300, 12)]
    steps = [Host("ProfilerStep#5", 0, 10), Host("ProfilerStep#6", 10, 20)]
    (device,) = analyze_trace(make_trace(ops, annotations=steps)).result.devices
    assert [s.window.start_ns for s in device.steps] == [100, 200]


def test_ranges_nest_and_own_the_idle_time_behind_them() -> None:
    ops = [op(100, 200, 2), op(250, 300, 5), op(400, 500, 12)]
    notes = [Host("outer", 0, 10), Host("first", 1, 4), Host("second", 4, 9), Host("next", 10, 20)]
    (device,) = analyze_trace(make_trace(ops, annotations=notes)).result.devices
    assert {r.name: (r.window.start_ns, r.window.end_ns) for r in device.ranges} == {
        "outer": (100, 400),
        "first": (100, 250),
        "second": (250, 400),
        "next": (400, 500),
    }


@pytest.mark.parametrize(("left", "end"), [(130, 200), (260, 260)])
def test_a_range_does_not_own_the_time_in_which_the_next_one_waits_for_the_host(left: int, end: int) -> None:
    """The second range, or what comes before it, loads data and launches its first op at 390, long after the first."""
    ops = [op(100, 200, 110), op(400, 500, 390)]
    notes = [Host("outer", 90, 600), Host("optimizer", 100, left), Host("load", 300, 600)]
    (device,) = analyze_trace(make_trace(ops, annotations=notes)).result.devices
    assert {r.name: (r.window.start_ns, r.window.end_ns) for r in device.ranges} == {
        "outer": (100, 500),
        "optimizer": (100, end),
        "load": (400, 500),
    }


def test_a_range_of_a_side_stream_ends_with_its_last_op() -> None:
    comm = [op(150, 180, 3, stream=17, kind=Kind.COMM), op(420, 430, 13, stream=17, kind=Kind.COMM)]
    notes = [Host("nccl:all_reduce", 2, 4), Host("nccl:all_reduce", 12, 14)]
    trace = make_trace([op(100, 500, 1), *comm], annotations=notes)
    (device,) = analyze_trace(trace).result.devices
    assert [(r.window.start_ns, r.window.end_ns) for r in device.ranges] == [(150, 180), (420, 430)]


def test_narrowing_to_a_step_narrows_everything() -> None:
    ops = [op(100, 200, 1), op(250, 300, 2), op(300, 400, 11), op(450, 500, 12)]
    notes = [
        Host("ProfilerStep#5", 0, 10),
        Host("forward", 1, 3),
        Host("ProfilerStep#6", 10, 20),
        Host("forward", 11, 13),
    ]
    trace = make_trace(ops, annotations=notes)
    (device,) = analyze_trace(trace, step="ProfilerStep#6").result.devices
    assert (device.window.start_ns, device.window.end_ns, device.span_ns) == (300, 500, 200)
    assert [s.name for s in device.steps] == ["ProfilerStep#6"]
    assert [r.window.start_ns for r in device.ranges] == [300]
    assert device.buckets.idle_ns == sum(device.idle_by_cause.values()) == 50
    (device,) = analyze_trace(trace, range="forward").result.devices
    assert device.span_ns == 400
    assert len(device.ranges) == 2


def test_tables_as_data_frames() -> None:
    frame = make_trace([op(100, 200, 1), op(120, 140, 2, stream=13, kind=Kind.H2D)]).gpu_ops.to_pandas()
    assert frame["kind"].tolist() == ["compute", "h2d"]
    assert frame["source_kind"].tolist() == ["pinned", "pinned"]
    assert frame["start_ns"].dtype == "int64"
    assert frame["name"].tolist() == ["op", "op"]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [((3,), "3"), ((3, 4), "3 and 4"), ((9, 3, 5, 4, 3), "3 to 5 and 9"), ((1, 3, 5), "1, 3 and 5")],
)
def test_a_step_that_is_not_there_is_answered_with_the_numbers_of_those_that_are(
    numbers: tuple[int, ...], message: str
) -> None:
    names = [f"ProfilerStep#{number}" for number in numbers]
    annotations = make_trace([op(0, 9, 1)], annotations=[Host(name, 0, 5) for name in names]).annotations
    with pytest.raises(NotInTrace, match=f"there is no step 77; steps: {message}\\."):
        check_step("t.json", "ProfilerStep#77", annotations)
    for name in names:
        check_step("t.json", name, annotations)

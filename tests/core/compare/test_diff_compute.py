"""Why compute takes longer: a change in parts that add up, the kernels by name, contention and the clock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis.results import NetOverlap
from overlapscope.base.words import unit_for
from overlapscope.compare.diff import diff
from overlapscope.compare.difference import ComputeChange, SlowedChange
from overlapscope.compare.words import compute_notes
from overlapscope.report.model import Report
from overlapscope.trace.model import Kind
from tests.support.helpers import MS, TRACES, US, Host, Op, make_trace, various

Kernels = list[tuple[str, int, int]]
"""Name, length in microseconds, and stream of each kernel of a step."""


def steps_of(kernels: Kernels, count: int = 8, *, growth_ns: int = 0) -> Report:
    """Return the report on steps of kernels, in turn on each stream, each launched by an op of its name.

    Kernels of every second step are longer by `growth_ns`.
    """
    ops, notes, cpu_ops, at = [], [], [], 10 * MS
    for number in range(count):
        notes.append(Host(f"ProfilerStep#{number}", at - 5 * MS, at - 4 * MS))
        ends = dict.fromkeys((7, 8), at)
        for order, (name, length, stream) in enumerate(kernels):
            begin, launch = ends[stream], at - 5 * MS + 10 * US * (order + 1)
            ends[stream] = begin + length * US + number % 2 * growth_ns
            ops.append(Op(Kind.COMPUTE, begin, ends[stream], stream, (launch, launch + US), name=name))
            cpu_ops.append(Host(f"aten::{name}", launch - 10, launch + 2 * US))
        at = max(ends.values()) + US
    return ov.analyze(make_trace(ops, annotations=notes, cpu_ops=cpu_ops))


def change(before: Kernels, after: Kernels) -> ComputeChange:
    (device,) = diff(steps_of(before), steps_of(after)).devices
    return device.compute


def parts(changed: ComputeChange) -> dict[str, tuple[int, list[str]]]:
    return {part.part: (part.change_ns // US, list(part.kernels)) for part in changed.parts}


def test_a_change_is_divided_by_what_became_of_kernels() -> None:
    before = [("mm", 100, 7), ("mm", 100, 7), ("gelu", 50, 7), ("old", 30, 7)]
    after = [("mm", 110, 7), ("mm", 110, 7), ("mm", 110, 7), ("gelu", 50, 7), ("norm", 20, 7)]
    changed = change(before, after)
    assert changed.change_ns == 120 * US
    assert parts(changed) == {
        "calls": (100, ["mm"]),
        "length": (30, ["mm"]),
        "gone": (-30, ["old"]),
        "new": (20, ["norm"]),
    }


def test_kernels_that_no_longer_run_side_by_side_make_compute_longer() -> None:
    changed = change([("mm", 100, 7), ("conv", 100, 8)], [("mm", 100, 7), ("conv", 100, 7)])
    assert changed.change_ns == 100 * US
    assert parts(changed) == {"side-by-side": (100, [])}


def test_nothing_is_said_to_run_side_by_side_because_of_rounding() -> None:
    kernels = [("mm", 100, 7)]
    for count in range(3, 9):
        (device,) = diff(steps_of(kernels, 8), steps_of([*kernels, ("new", 5, 7)], count, growth_ns=1)).devices
        assert sum(part.change_ns for part in device.compute.parts) == device.compute.change_ns
        assert {"length", "new"} >= {part.part for part in device.compute.parts}


def test_all_kernels_longer_by_the_same_ratio_are_an_observation_on_the_clock() -> None:
    before = [(name, length, 7) for name, length in (("mm", 100), ("conv", 200), ("gelu", 50), ("norm", 400))]
    slower = [(name, round(1.1 * length), stream) for name, length, stream in before]
    pace = change(before, slower).pace
    assert pace is not None and (pace.ratio, pace.low, pace.high) == pytest.approx((1.1, 1.1, 1.1))
    notes = compute_notes(change(before, slower), unit_for(MS))
    assert "changed alike, by +10.0%" in notes and "which recordings don't state" in notes
    assert change(before, before).pace is None
    assert change(before, [*slower[:-1], before[-1]]).pace is None
    # A new kernel that takes most of the time is at no pace.
    assert change(before, [*slower, ("new", 1000, 7)]).pace is None


def slowed(report: Report, low_ns: int | None, high_ns: int | None, unjudged_ns: int = 0) -> Report:
    """Return the report with other bounds on how much communication slows kernels."""
    result = NetOverlap(
        beside="communication",
        hidden_ns=MS,
        overlapped_ns=MS,
        judged_ns=MS - unjudged_ns,
        unjudged_by_cause={"never-alone": unjudged_ns, "too-few": 0, "varying": 0},
        slowed_low_ns=low_ns,
        slowed_ns=low_ns,
        slowed_high_ns=high_ns,
        kernels=(),
    )
    [trace] = report.traces
    device = replace(trace.devices[0], net_overlap=(result,))
    return replace(report, traces=(replace(trace, devices=(device,)),))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((0, 10 * US), (50 * US, 60 * US), [SlowedChange(beside="communication", low_ns=40 * US, high_ns=60 * US)]),
        ((50 * US, 60 * US), (0, 10 * US), [SlowedChange(beside="communication", low_ns=-60 * US, high_ns=-40 * US)]),
        ((0, 55 * US), (50 * US, 60 * US), []),
        ((None, None), (50 * US, 60 * US), []),
        ((0, 0), (US, 2 * US), []),
    ],
)
def test_contention_is_said_only_where_the_intervals_leave_no_doubt(
    before: tuple[int | None, int | None], after: tuple[int | None, int | None], expected: list[SlowedChange]
) -> None:
    report = steps_of([("mm", 1000, 7)])
    (device,) = diff(slowed(report, *before), slowed(report, *after)).devices
    assert list(device.compute.slowed) == expected
    notes = compute_notes(device.compute, unit_for(MS))
    assert ("Kernels beside communication are slowed by 40.0 to 60.0 us" in notes) == bool(expected)


def test_kernels_that_could_not_be_judged_before_may_have_been_slowed_as_much() -> None:
    report = steps_of([("mm", 1000, 7)])
    (device,) = diff(slowed(report, 0, 0, unjudged_ns=500 * US), slowed(report, 50 * US, 60 * US)).devices
    assert device.compute.slowed == ()


def test_no_contention_is_said_of_work_whose_cost_is_unknown_on_one_side() -> None:
    report = steps_of([("mm", 1000, 7)])
    costs = slowed(report, 50 * US, 60 * US)
    # A prediction has hidden communication, but not its cost.
    [trace] = report.traces
    step = trace.devices[0].per_step
    assert step is not None
    predicted = replace(trace.devices[0], per_step=replace(step, engines=replace(step.engines, comm_ns=MS)))
    (device,) = diff(replace(report, traces=(replace(trace, devices=(predicted,)),)), costs).devices
    assert device.compute.slowed == ()
    # Without steps, the cost is that of the whole recording.
    whole = slowed(steps_of([("mm", 1000, 7)], 1), 50 * US, 60 * US)
    [trace] = whole.traces
    unmarked = replace(trace, devices=(replace(trace.devices[0], steps=(), per_step=None),))
    (device,) = diff(report, replace(whole, traces=(unmarked,))).devices
    assert device.basis == "window" and device.compute.slowed == ()


names = st.sampled_from(["mm", "conv", "gelu", "norm"])
some_kernels = st.lists(st.tuples(names, st.integers(1, 300), st.sampled_from([7, 8])), min_size=1, max_size=6)


@given(some_kernels, some_kernels)
def test_the_parts_add_up_to_the_bucket(before: Any, after: Any) -> None:
    for device in diff(steps_of(before, 3), steps_of(after, 5)).devices:
        compute = device.figures.bucket("compute")
        assert sum(part.change_ns for part in device.compute.parts) == device.compute.change_ns == compute.change


PAIRS = list(zip(various()[::4], various()[1::4], strict=False))


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=lambda path: str(path.relative_to(TRACES))[:-8])
def test_the_parts_add_up_on_recordings(before: Path, after: Path) -> None:
    for device in ov.diff(before, after).devices:
        compute = device.figures.bucket("compute")
        assert sum(part.change_ns for part in device.compute.parts) == compute.change
        for part in device.compute.parts:
            rounding = len(part.kernels) + len(device.compute.parts) + 1
            assert part.part == "side-by-side" or abs(sum(part.kernels.values()) - part.change_ns) <= rounding

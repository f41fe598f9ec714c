"""Tests of the plain program of a recording: its step time, the origin of that, and its parts."""

from __future__ import annotations

import json
import math
import statistics
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import PerStep
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.plain_step import MIN_TIMED_STEPS, from_user, measured
from overlapscope.analysis.results import Device, Plain
from overlapscope.base.marks import METADATA, PLAIN_STEPS
from overlapscope.base.words import share
from overlapscope.errors import UsageError
from overlapscope.prediction import find_program
from overlapscope.prediction.base import on_device, prepare
from overlapscope.prediction.overhead import as_plain
from overlapscope.prediction.predict import fitted
from overlapscope.prediction.predicted_trace import plain_trace
from overlapscope.report.model import Report, build
from overlapscope.report.page import Page
from overlapscope.report.verdict import plain_sentence
from overlapscope.trace.model import ClockedSteps, Kind, PlainSteps, TimedSteps, Trace
from tests.support.helpers import MS, TRACES, US, Op, make_trace, recordings, tried
from tests.support.made_up_programs import Do, repeated
from tests.support.made_up_programs import record as record_copies
from tests.support.plain_recordings import GPU_BOUND, HOST_BOUND, PLAIN, Slowed, Work, record
from tests.support.recordings import analysis_of, trace_of

BUNDLED = tried(path for path in recordings() if not {"laboratory", "ddp"} & {*path.parts})
ROUNDED_NS = 2
NO_SYNC, GRAPH = "no-sync cudaDeviceSynchronize", "graph"


def report(trace: Trace, plain_step_ns: int | None = None) -> Report:
    return build([analyze_trace(trace)], plain_step_ns=plain_step_ns)


def only(outcome: Report) -> Device:
    [device] = outcome.devices
    return device


def plain_of(trace: Trace, plain_step_ns: int | None = None) -> Plain:
    plain = only(report(trace, plain_step_ns)).plain
    assert plain is not None
    return plain


def average_step(device: Device) -> PerStep:
    assert device.per_step is not None
    return device.per_step


def names_of_judged(device: Device) -> list[str]:
    return [device.steps[number].name for number in judged_steps(device)]


def has_exact_sums(plain: Plain) -> bool:
    """Check that everything adds up to the step, and nothing is negative."""
    assert plain.buckets is not None
    parts = msgspec.structs.astuple(plain.buckets)
    causes = plain.exposed_copy_by_cause, plain.idle_by_cause
    return (
        sum(parts) == plain.step_ns
        and [sum(cause.values()) for cause in causes] == [plain.buckets.exposed_copy_ns, plain.buckets.idle_ns]
        and min(*parts, *causes[0].values(), *causes[1].values(), 0) == 0
        and plain.low_ns <= plain.step_ns <= plain.high_ns
    )


# -- sums


@pytest.mark.parametrize("path", BUNDLED, ids=lambda path: f"{path.parent.name}-{path.name.removesuffix('.json.gz')}")
def test_what_is_said_of_a_plain_step_adds_up(path: Path) -> None:
    analysis = analysis_of(path)
    assert find_program(analysis, None) is None
    recorded_ns = prepare(analysis.trace, None).recorded.mean_ns
    for told_share in (0.6, 1.3):
        told_ns = round(told_share * recorded_ns)
        program = find_program(analysis, told_ns)
        assert program is not None
        for device in analysis.devices:
            plain = program.step_on(device.result)
            assert plain is not None and plain.origin == "told"
            assert plain.program is not None and plain.program.per_step is not None
            assert plain.program.per_step.span_ns == plain.step_ns
            if device.result.device == program.recorded.device:
                assert told_ns == plain.step_ns
            assert has_exact_sums(plain)
            # A prediction is about the reported step.
            assert program.base is not None
            predicted = on_device(program.base, device.result.device)
            assert abs(predicted.step_ns - plain.step_ns) <= ROUNDED_NS
            assert predicted.recorded.mean_ns == plain.recorded_step_ns
            assert names_of_judged(plain.program) == names_of_judged(device.result)


@pytest.mark.parametrize("path", [TRACES / "gpt2_train.json.gz", TRACES / "streamed0_pinned0.json.gz"])
@pytest.mark.parametrize("share", [0.6, 0.85, 1.0, 1.3])
def test_with_nothing_changed_a_plain_step_is_predicted_as_it_is(path: Path, share: float) -> None:
    plain_step_ns = round(share * ov.whatif(trace_of(path)).recorded_step_ns)
    prediction = ov.whatif(trace_of(path), plain_step_ns=plain_step_ns)
    step, gain = prediction.predicted_step_ns, prediction.gain_ns
    assert step is not None and gain is not None and prediction.plain is not None
    assert prediction.baseline_step_ns == prediction.unchanged_step_ns == prediction.plain.step_ns == plain_step_ns
    assert (step.low, step.value, step.high) == (plain_step_ns,) * 3
    assert (gain.low, gain.value, gain.high) == (0, 0, 0)
    figures = prediction.buckets.values()
    assert (
        sum(figure.measured for figure in figures) == sum(figure.predicted.value for figure in figures) == plain_step_ns
    )


def test_a_gain_is_what_the_plain_step_gets_shorter() -> None:
    trace = trace_of(TRACES / "known_causes" / "launch_bound.json.gz")
    untold = ov.whatif(trace, [GRAPH])
    prediction = ov.whatif(trace, [GRAPH], plain_step_ns=2 * MS)
    assert prediction.predicted_step_ns is not None and prediction.gain_ns is not None
    assert prediction.baseline_step_ns == 2 * MS
    assert prediction.gain_ns.value == 2 * MS - prediction.predicted_step_ns.value
    assert prediction.gain_ns.low <= prediction.gain_ns.value <= prediction.gain_ns.high
    assert prediction.gain_pct == pytest.approx(100 * prediction.gain_ns.value / (2 * MS))
    assert untold.plain is None and untold.baseline_step_ns == untold.recorded_step_ns
    assert prediction.recorded_step_ns == untold.recorded_step_ns
    assert prediction.recorded_predicted_step_ns == untold.recorded_predicted_step_ns


@given(
    st.dictionaries(st.text(max_size=3), st.integers(0, 10**13)), st.integers(-(10**6), 10**13), st.integers(0, 10**13)
)
def test_lengths_are_made_to_add_up(parts: dict[str, int], spare: int, whole: int) -> None:
    parts["spare"] = max(0, spare)
    outcome = fitted(parts, "spare", whole)
    assert sum(outcome.values()) == whole and min(outcome.values()) >= 0
    others = sum(parts.values()) - parts["spare"]
    if others <= whole:
        assert {**outcome, "spare": 0} == {**parts, "spare": 0}, "what is spare does for all"
    else:
        assert outcome["spare"] == 0
        assert all(abs(outcome[name] - ns * whole / others) <= 1 for name, ns in parts.items() if name != "spare")


# -- recordings whose plain program is known


SLOWED = {
    "as GPUs' recordings are": Slowed.by(2 * US),
    "twice as long": Slowed.by(6 * US),
    "ops alone": Slowed(op_ns=4 * US),
    "calls alone": Slowed(call_ns=3 * US, around_call_ns=2 * US),
}


@pytest.mark.parametrize("slowed", SLOWED.values(), ids=SLOWED)
def test_a_told_step_gives_back_the_program_that_nobody_recorded(slowed: Slowed) -> None:
    truth = average_step(only(report(record(HOST_BOUND))))
    slow = record(HOST_BOUND, slowed)
    plain = plain_of(slow, truth.span_ns)
    assert plain.buckets is not None and plain.program is not None
    assert plain.recorded_step_ns == average_step(only(report(slow))).span_ns > 1.25 * truth.span_ns
    # The replayed step is scaled by up to 1.5%, and the cost of an event is known except for its kind.
    assert plain.buckets.idle_ns == pytest.approx(truth.buckets.idle_ns, abs=0.003 * truth.span_ns)
    work = ("python", "dispatch", "cpu-ops")
    for cause, ns in truth.idle_by_cause.items():
        if cause not in work or (slowed.op_ns and slowed.call_ns):
            assert plain.idle_by_cause[cause] == pytest.approx(ns, abs=0.015 * truth.span_ns)
    assert sum(plain.idle_by_cause[cause] for cause in work) == pytest.approx(
        sum(truth.idle_by_cause[cause] for cause in work), abs=0.015 * truth.span_ns
    )


@pytest.mark.parametrize("change", [NO_SYNC, GRAPH])
@pytest.mark.parametrize("slowed", SLOWED.values(), ids=SLOWED)
def test_what_a_change_makes_of_the_program_is_predicted_from_any_recording_of_it(slowed: Slowed, change: str) -> None:
    truth_ns = average_step(only(report(record(HOST_BOUND)))).span_ns
    truth = ov.whatif(record(HOST_BOUND), [change]).predicted_step_ns
    untold = ov.whatif(record(HOST_BOUND, slowed), [change]).predicted_step_ns
    told_one = ov.whatif(record(HOST_BOUND, slowed), [change], plain_step_ns=truth_ns).predicted_step_ns
    assert truth is not None and untold is not None and told_one is not None
    # It is unknown how much recording added to the calls that a graph or a removed synchronize saves.
    assert told_one.value == pytest.approx(truth.value, rel=0.03)
    assert told_one.low <= truth.value <= told_one.high
    if change == NO_SYNC:
        # A graph leaves next to no work of the host that recording could have lengthened.
        assert untold.value > 1.3 * truth.value


def test_recording_hardly_changes_a_program_that_waits_for_its_gpu() -> None:
    alone = only(report(record(GPU_BOUND, Slowed.by(4 * US)))).alone
    assert alone is not None and alone.high_ns - alone.low_ns < 0.01 * alone.high_ns


@pytest.mark.parametrize("slowed", [slowed for slowed in SLOWED.values() if slowed.call_ns])
@pytest.mark.parametrize("step", [HOST_BOUND, GPU_BOUND], ids=["host", "GPU"])
def test_the_interval_without_the_profiler_holds_the_program_that_nobody_recorded(
    step: tuple[Work, ...], slowed: Slowed
) -> None:
    truth_ns = average_step(only(report(record(step)))).span_ns
    device = only(report(record(step, slowed)))
    alone, recorded = device.alone, average_step(device)
    assert alone is not None
    assert recorded.span_ns - recorded.buckets.idle_ns <= alone.low_ns <= truth_ns <= alone.high_ns == recorded.span_ns


def test_what_a_plain_step_takes_longer_was_not_recorded() -> None:
    trace = record(GPU_BOUND)
    recorded = average_step(only(report(trace)))
    longer = plain_of(trace, recorded.span_ns + 500 * US)
    assert longer.buckets is not None
    assert longer.buckets.compute_ns == recorded.buckets.compute_ns
    assert longer.idle_by_cause == recorded.idle_by_cause | {"unrecorded": 500 * US}
    assert has_exact_sums(longer)

    trace = record(HOST_BOUND)
    alone = ov.whatif(trace, [NO_SYNC])
    longer_ns = alone.recorded_step_ns + 500 * US
    told_one = ov.whatif(trace, [NO_SYNC], plain_step_ns=longer_ns)
    assert alone.predicted_step_ns is not None and told_one.predicted_step_ns is not None
    # No change saves what was not recorded.
    saved_ns = alone.replayed_step_ns - alone.predicted_step_ns.value
    assert told_one.predicted_step_ns.value == longer_ns - saved_ns


def test_a_plain_step_shorter_than_the_gpus_work_shrinks_all_of_it_alike() -> None:
    trace = record_copies(repeated([Do("h2d", 100 * US), Do("sync"), Do("kernel", 300 * US)], 8))
    recorded = average_step(only(report(trace))).span_ns
    half = plain_of(trace, 200 * US)
    assert half.buckets is not None and recorded > 400 * US
    assert half.idle_by_cause["unknown"] == 0
    assert half.buckets.compute_ns == pytest.approx(3 * half.buckets.exposed_copy_ns, rel=0.02)
    assert has_exact_sums(half)


def test_timed_steps_shorter_than_the_devices_work_are_others_and_no_plain_step() -> None:
    trace = record_copies(repeated([Do("h2d", 100 * US), Do("sync"), Do("kernel", 300 * US)], 8))
    for step_ns, is_known in ((200 * US, False), (500 * US, True)):
        lengths = TimedSteps(device_ns=(step_ns,) * 10)
        plain = only(report(replace(trace, plain_steps=PlainSteps(lengths, lengths)))).plain
        assert (plain is not None) == is_known


# -- how long a plain step is


def timed(*lengths_ns: int, device: bool = False) -> TimedSteps:
    return TimedSteps(device_ns=lengths_ns) if device else TimedSteps(host_ns=lengths_ns)


@pytest.mark.parametrize(
    ("count", "quantile"), [(5, 2.776), (6, 2.571), (10, 2.262), (20, 2.093), (30, 2.045), (80, 1.990)]
)
def test_the_interval_of_a_mean_is_students(count: int, quantile: float) -> None:
    lengths = [1 * MS + number * US for number in range(count)]
    outcome = measured(PlainSteps(timed(*lengths), TimedSteps()), 10 * MS)
    assert outcome is not None and outcome.step_ns == round(statistics.fmean(lengths))
    aside = quantile * statistics.stdev(lengths) / math.sqrt(count)
    assert outcome.high_ns - outcome.step_ns == pytest.approx(aside, rel=0.004)
    assert abs(outcome.low_ns + outcome.high_ns - 2 * outcome.step_ns) <= ROUNDED_NS


@pytest.mark.parametrize(("count", "share"), [(5, 0.925), (8, 0.945), (30, 0.945)])
def test_the_interval_of_a_mean_holds_it_in_95_percent(count: int, share: float) -> None:
    """With five steps, it is somewhat less: an interval is no longer than from the shortest to the longest step."""
    drawn = np.rint(np.random.default_rng(0).normal(1 * MS, 50 * US, (8_000, count))).astype(int)
    outcomes = [measured(PlainSteps(timed(*lengths), TimedSteps()), 10 * MS) for lengths in drawn.tolist()]
    held = [outcome.low_ns <= 1 * MS <= outcome.high_ns for outcome in outcomes if outcome is not None]
    assert len(held) == len(drawn) and share < statistics.fmean(held) < 0.96


@given(
    st.lists(st.integers(1, 1 << 53), max_size=40),
    st.lists(st.integers(1, 1 << 53), max_size=40),
    st.integers(0, 1 << 53),
)
def test_a_measured_step_lies_in_its_interval(before: list[int], after: list[int], recorded_ns: int) -> None:
    outcome = measured(PlainSteps(timed(*before), timed(*after)), recorded_ns)
    if outcome is None:
        assert max(len(before), len(after)) < MIN_TIMED_STEPS
    else:
        assert outcome.origin == "measured"
        assert min(before + after) <= outcome.low_ns <= outcome.step_ns <= outcome.high_ns <= max(before + after)


def test_a_measured_step_lies_between_both_sides_unless_one_is_slower_than_the_recording() -> None:
    fast, slow = timed(*[100] * 9), timed(*[140] * 9)
    for recorded_ns, step_ns in ((150, 120), (140, 120), (139, 100), (99, 120)):
        for both in (PlainSteps(fast, slow), PlainSteps(slow, fast)):
            outcome = measured(both, recorded_ns)
            assert outcome is not None
            assert (outcome.low_ns, outcome.step_ns, outcome.high_ns) == (100, step_ns, 140)


def all_of(*groups: tuple[int, int], recorded_ns: int = 100) -> PlainSteps:
    """Return steps of which all were clocked: numbers and lengths."""
    clocked = ClockedSteps(tuple((steps, steps * ns) for steps, ns in groups), recorded_ns)
    return PlainSteps(timed(*[100] * 10), timed(*[100] * 10), clocked)


def test_the_mean_of_all_clocked_steps_counts_whatever_the_recorded_ones_took() -> None:
    for recorded_ns in (90, 200):
        outcome = measured(all_of((90, 100), (10, 140)), recorded_ns)
        assert outcome is not None and (outcome.step_ns, outcome.clocked_steps, outcome.longer_steps) == (104, 100, 0)
        assert outcome.usual == outcome and 100 < outcome.low_ns < 104 < outcome.high_ns < 108
    few = measured(all_of((19, 140)), 200)
    assert few is not None and (few.step_ns, few.clocked_steps) == (100, 0)


def test_what_steps_take_that_are_longer_than_any_recorded_one_is_known() -> None:
    outcome = measured(all_of((90, 100), (10, 1000)), 120)
    assert outcome is not None and (outcome.step_ns, outcome.longer_steps, outcome.longer_ns) == (190, 10, 90)
    assert outcome.usual.step_ns == 100
    # All are longer: the machine has become slower.
    slower = measured(all_of((100, 1000)), 120)
    assert slower is not None and (slower.step_ns, slower.longer_steps, slower.longer_ns) == (1000, 0, 0)


def test_the_pace_of_a_host_that_runs_ahead_of_its_device_is_no_step_time() -> None:
    """A program that ends before its queue is full launches steps of 2.7 ms in 0.24 ms each, as one on an H200 did."""
    clocked = ClockedSteps(((383, 383 * 240 * US),), 330 * US)
    ahead = TimedSteps((300 * US,) * 10, (2_700 * US,) * 10)
    outcome = measured(PlainSteps(ahead, ahead, clocked), 2_710 * US)
    assert outcome is not None and (outcome.step_ns, outcome.clocked_steps) == (2_700 * US, 0)
    # Others of the steps were faster on both clocks, or the queue was full for most of the time.
    for timed_steps, all_steps in (
        (TimedSteps((45 * MS,) * 10, (45 * MS,) * 10), ClockedSteps(((71, 71 * 21 * MS),), 46 * MS)),
        (ahead, ClockedSteps(((383, 383 * 2_700 * US),), 2_700 * US)),
    ):
        outcome = measured(PlainSteps(timed_steps, timed_steps, all_steps), 50 * MS)
        assert outcome is not None and outcome.clocked_steps == all_steps.steps


def test_time_in_long_steps_that_are_not_recorded_is_unknown_and_no_change_saves_it() -> None:
    trace = record(HOST_BOUND, Slowed.by(4 * US))
    lengths = TimedSteps(host_ns=(700 * US,) * 10)
    usual, longer = ((1000, 1000 * 700 * US),), ((1000, 1000 * 700 * US), (100, 100 * 70 * MS))
    alone, both = (
        replace(trace, plain_steps=PlainSteps(lengths, lengths, ClockedSteps(groups))) for groups in (usual, longer)
    )
    one, other = plain_of(alone), plain_of(both)
    assert has_exact_sums(other) and one.step_ns == 700 * US and other.step_ns == 7 * MS
    added_ns = other.step_ns - one.step_ns
    assert other.longer_ns == added_ns and (other.clocked_steps, other.longer_steps) == (1100, 100)
    assert abs(other.idle_by_cause["unrecorded"] - added_ns) < MS // 100
    assert one.buckets is not None and other.buckets is not None
    assert abs(one.buckets.compute_ns - other.buckets.compute_ns) < MS // 100
    saved_ns, again_ns = (
        result.baseline_step_ns - result.predicted_step_ns.value
        for result in (ov.whatif(each, [GRAPH]) for each in (alone, both))
        if result.predicted_step_ns is not None
    )
    assert saved_ns > 0 and abs(saved_ns - again_ns) < MS // 100
    for each, plain in ((alone, one), (both, other)):
        first = report(each).findings[0]
        assert f"({share(first.cost_ns, first.steps * plain.step_ns)})" in first.title
    [check] = [check for check in report(both).traces[0].trust.checks if check.id == "steady-state"]
    assert "100 of 1,100 steps took much longer than any recorded one" in check.detail


def test_steps_of_a_host_that_runs_ahead_are_not_longer_than_those_of_the_device() -> None:
    on_device = TimedSteps(host_ns=(10,) * 9, device_ns=(100,) * 9)
    bursts = ClockedSteps(((900, 9000), (100, 91_000)), 10)
    outcome = measured(PlainSteps(on_device, on_device, bursts), 100)
    assert outcome is not None and (outcome.step_ns, outcome.longer_steps, outcome.longer_ns) == (100, 0, 0)


def test_steps_that_a_host_has_marked_ahead_of_the_device_make_no_step_shorter() -> None:
    on_device = TimedSteps(host_ns=(40,) * 10, device_ns=(100,) * 10)
    bursts = ClockedSteps(((60, 2400), (40, 4000)), 40)
    ahead = measured(PlainSteps(on_device, on_device, bursts), 100)
    assert ahead is not None and (ahead.low_ns, ahead.step_ns, ahead.high_ns, ahead.clocked_steps) == (100, 100, 100, 0)
    # The host waits for the device every fourth step, which may have become slower.
    waiting = measured(PlainSteps(on_device, on_device, ClockedSteps(((75, 1500), (25, 8000)), 40)), 100)
    assert waiting is not None and (waiting.low_ns, waiting.step_ns, waiting.high_ns) == (100, 100, 121)
    # Such a program has become faster.
    faster = measured(PlainSteps(timed(*[100] * 10), timed(*[100] * 10), bursts), 100)
    assert faster is not None and (faster.step_ns, faster.clocked_steps) == (64, 100)


def test_a_side_with_too_few_steps_says_nothing() -> None:
    few, enough = timed(*[500] * (MIN_TIMED_STEPS - 1)), timed(*[100] * MIN_TIMED_STEPS)
    assert measured(PlainSteps(few, few), 200) is None
    assert measured(PlainSteps(few, enough), 200) == measured(PlainSteps(enough, TimedSteps()), 200)
    one_side = measured(PlainSteps(enough, few), 200)
    assert one_side is not None and (one_side.low_ns, one_side.step_ns, one_side.high_ns) == (100, 100, 100)


def test_the_devices_clock_counts_where_there_is_one() -> None:
    both = TimedSteps(host_ns=(50,) * 9, device_ns=(100,) * 9)
    outcome = measured(PlainSteps(both, TimedSteps()), 200)
    assert outcome is not None and outcome.step_ns == 100


NOT_LENGTHS: list[Any] = [
    "100",
    [100.5] * 9,
    ["100"] * 9,
    [100] * 8 + [-1],
    [100] * 8 + [0],
    [100] * 8 + [float("nan")],
    [100] * 8 + [1 << 60],
    [100] * 8 + [10**30],
    [100] * 8 + [True],
    [100] * 8 + [None],
    [[100] * 9],
    {"0": 100},
    [100] * 10_001,
]


@pytest.mark.parametrize("lengths", NOT_LENGTHS, ids=range(len(NOT_LENGTHS)))
def test_what_are_no_lengths_of_steps_is_left_out(lengths: Any, tmp_path: Path) -> None:
    sides: list[Any] = [{"host_ns": lengths, "device_ns": lengths}, lengths]
    for number, side in enumerate(sides):
        path = tmp_path / f"{number}.json"
        metadata = {PLAIN_STEPS: {"before": side, "after": side}}
        path.write_text(json.dumps({METADATA: metadata, "traceEvents": []}))
        assert trace_of(path).plain_steps == PlainSteps()


@pytest.mark.parametrize("step_ns", [0, -1, 1 << 60, 31.5, float("nan"), float("inf")])
def test_a_step_that_cannot_be_is_refused(step_ns: Any) -> None:
    with pytest.raises(UsageError, match="no length of a plain step"):
        from_user(step_ns)


# -- the timeline


@pytest.mark.parametrize(
    "path",
    [
        "gpt2_train",
        "mixed_workloads/amp_training",
        "mixed_workloads/two_threads",
        "mixed_workloads/model_on_two_devices",
        "known_causes/event_wait",
        "known_causes/launch_bound_graph",
    ],
)
def test_the_plain_timeline_has_the_recordings_ops(path: str) -> None:
    trace = trace_of(TRACES / f"{path}.json.gz")
    base = prepare(trace, None)
    # The length that the replay reaches by itself, so that no time is scaled.
    reached = as_plain(base, from_user(round(0.8 * base.recorded.mean_ns)))
    plain = plain_trace(replace(reached, plain=from_user(reached.steps.mean_ns)))

    def ops(of: Trace) -> list[tuple[Any, ...]]:
        table = of.gpu_ops
        order = np.argsort(table.place, kind="stable")
        columns = (
            table.place,
            table.device,
            table.stream,
            table.correlation,
            table.end_ns - table.start_ns,
            table.bytes,
        )
        names = [of.names[name] for name in table.name_id[order].tolist()]
        return list(zip(names, *(column[order].tolist() for column in columns), strict=True))

    assert ops(plain) == ops(trace)
    before, after = trace.gpu_ops, plain.gpu_ops
    for lane in {*zip(before.device.tolist(), before.stream.tolist(), strict=True)}:
        mine = [table.place[(table.device == lane[0]) & (table.stream == lane[1])] for table in (before, after)]
        assert mine[0].tolist() == mine[1].tolist(), "a stream's ops stay in order"
    assert (plain.names, plain.devices) == (trace.names, trace.devices)

    def launches(of: Trace) -> list[int]:
        rows = of.gpu_ops.launch[np.argsort(of.gpu_ops.place, kind="stable")]
        return [int(of.runtime_calls.correlation[row]) if row >= 0 else -1 for row in rows]

    assert launches(plain) == launches(trace)
    for name in ("runtime_calls", "cpu_ops", "annotations", "syncs"):
        mine, theirs = getattr(trace, name), getattr(plain, name)
        assert sorted(mine.place.tolist()) == sorted(theirs.place.tolist())
        assert (theirs.end_ns >= theirs.start_ns).all() and (np.diff(theirs.start_ns) >= 0).all()
    assert sorted(plain.syncs.correlation.tolist()) == sorted(trace.syncs.correlation.tolist())


# -- traces of other kinds


def test_without_steps_or_with_one_a_step_is_the_window() -> None:
    whole = record(HOST_BOUND, steps=1)
    for trace in (whole, replace(whole, annotations=make_trace().annotations)):
        device = only(report(trace, 1 * MS))
        assert device.plain is not None and device.plain.step_ns == 1 * MS
        assert device.plain.recorded_step_ns == device.span_ns
        assert has_exact_sums(device.plain)


@pytest.mark.parametrize("share", [0.7, 1.01, 1.5])
def test_without_steps_the_lead_in_is_left_out(share: float) -> None:
    trace = trace_of(TRACES / "known_causes" / "healthy_prefetch_running_ahead.json.gz")
    trace = replace(trace, annotations=trace.annotations.take(~is_step(trace.annotations)))
    [recorded] = analyze_trace(trace).devices
    assert recorded.result.judged is not None and recorded.result.lead_in_ns
    step_ns = round(share * recorded.result.judged.span_ns)
    plain = plain_of(trace, step_ns)
    assert plain.recorded_step_ns == recorded.result.judged.span_ns
    assert plain.program is not None and plain.program.judged is not None
    assert step_ns == plain.step_ns == plain.program.judged.span_ns
    assert has_exact_sums(plain)


@pytest.mark.parametrize("share", [0.3, 0.8, 1.02])
def test_the_plain_program_has_the_steps_of_a_thread_that_only_marks_them(share: float) -> None:
    analysis = analysis_of(TRACES / "mixed_workloads" / "two_threads.json.gz")
    recorded = analysis.devices[0].result
    program = find_program(analysis, round(share * average_step(recorded).span_ns))
    assert program is not None
    plain = program.step_on(recorded)
    assert plain is not None and plain.program is not None
    assert names_of_judged(plain.program) == names_of_judged(recorded) and len(names_of_judged(recorded)) == 3
    assert average_step(plain.program).span_ns == plain.step_ns


def test_warm_up_is_left_out_on_each_device() -> None:
    trace = record(HOST_BOUND)
    first, second = trace.annotations.start_ns[:2].tolist()
    slow = {"start_ns": 3 * (second - first), "end_ns": 3 * (second - first)}

    def later(table: Any) -> Any:
        columns = {
            name: np.where(getattr(table, name) >= second, getattr(table, name) + by, getattr(table, name))
            for name, by in slow.items()
        }
        return replace(table, **columns)

    tables = {name: later(getattr(trace, name)) for name in ("gpu_ops", "runtime_calls", "cpu_ops", "annotations")}
    trace = replace(trace, **tables)
    # Each second kernel is on the other device.
    device = np.arange(len(trace.gpu_ops)) % 2
    trace = replace(trace, gpu_ops=replace(trace.gpu_ops, device=device.astype(trace.gpu_ops.device.dtype)))
    for each in report(trace).devices:
        assert names_of_judged(each) == [f"ProfilerStep#{number}" for number in range(1, 7)]
        result = ov.whatif(trace, device=each.device)
        assert abs(result.recorded_step_ns - average_step(each).span_ns) <= ROUNDED_NS and result.steps == 6


def test_what_cannot_be_replayed_keeps_its_ops_and_says_so() -> None:
    trace = make_trace([Op(Kind.COMPUTE, i * MS, i * MS + 300 * US) for i in range(20)])
    shorter = plain_of(trace, 10 * MS)
    assert shorter.program is None and shorter.buckets is not None
    assert shorter.buckets.compute_ns == 20 * 300 * US
    assert has_exact_sums(shorter)
    assert plain_of(trace, 5 * MS).buckets is None, "its ops alone take 6 ms"
    (section,) = Page(report(trace, 10 * MS)).sections()
    assert "cannot be replayed" in plain_sentence(section)


def test_each_device_has_the_plain_step() -> None:
    trace = trace_of(TRACES / "mixed_workloads" / "model_on_two_devices.json.gz")
    devices = report(trace, 10 * MS).devices
    assert len(devices) == 2
    busiest = prepare(trace, None).device
    for device in devices:
        plain = device.plain
        assert plain is not None and plain.program is not None and plain.program.device == device.device
        assert plain.low_ns == plain.step_ns == plain.high_ns == average_step(plain.program).span_ns
        # The recorded steps of the other device are not quite as long, either.
        assert plain.step_ns == 10 * MS if device.device == busiest else abs(plain.step_ns - 10 * MS) < 0.001 * 10 * MS
        assert plain.recorded_step_ns == average_step(device).span_ns
        result = ov.whatif(trace, device=device.device, plain_step_ns=10 * MS)
        assert abs(result.baseline_step_ns - plain.step_ns) <= ROUNDED_NS


def test_a_prediction_has_no_plain_program() -> None:
    assert only(report(replace(record(HOST_BOUND), predicted_by=("pin",)), 1 * MS)).plain is None


def test_without_gpu_activity_there_is_none() -> None:
    assert report(make_trace(), 1 * MS).devices == ()


def test_the_longest_and_shortest_steps_that_can_be_told_add_up() -> None:
    for step_ns in (1, (1 << 53) - 1):
        for trace in (record(HOST_BOUND, PLAIN, steps=2), record_copies(repeated([Do("h2d", 9), Do("sync")], 2))):
            assert has_exact_sums(plain_of(trace, step_ns))
            assert ov.whatif(trace, plain_step_ns=step_ns).baseline_step_ns == step_ns


def test_timed_steps_are_used_unless_a_length_is_given() -> None:
    lengths = tuple(range(690 * US, 711 * US, 1 * US))
    trace = replace(record(HOST_BOUND, Slowed.by(4 * US)), plain_steps=PlainSteps(timed(*lengths), TimedSteps()))
    plain = plain_of(trace)
    assert (plain.origin, plain.step_ns) == ("measured", round(statistics.fmean(lengths)))
    assert 690 * US < plain.low_ns < plain.step_ns < plain.high_ns < 710 * US
    assert plain_of(trace, 650 * US).origin == "told"

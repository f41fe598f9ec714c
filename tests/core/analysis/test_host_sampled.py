"""Causes of idle time that samples and facts of the host add to a recording."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.figures import Period
from overlapscope.analysis.plain_step import measured
from overlapscope.analysis.results import Device
from overlapscope.base.marks import GC_PAUSE
from overlapscope.errors import UsageError
from overlapscope.rules.findings import find_all
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts, ThreadStates
from overlapscope.trace.model import Kind, PlainSteps, TimedSteps, Trace
from tests.support.helpers import MS, US, Host, Op, make_trace

STEPS, STEP = 4, 10 * MS
WORK = ("python", "cpu-ops", "dispatch")
NO_SAMPLES = ThreadStates()
SAMPLED = ("file-io", "gil-wait", "cpu-throttled", "preempted")


def program(*notes: Host) -> Trace:
    """Steps of 10 ms: 1 ms of compute, then 9 ms with the host in Python (6), on the CPU (2), and launching (1)."""
    ops, cpu_ops = [], []
    for begin in range(0, (STEPS + 1) * STEP, STEP):
        launch = (begin - 100 * US, begin)
        ops.append(Op(Kind.COMPUTE, begin, begin + MS, launch=launch))
        cpu_ops += [Host("aten::sort", begin + 2 * MS, begin + 4 * MS), Host("aten::mm", begin - MS, begin)]
    marks = [Host(f"ProfilerStep#{n}", n * STEP - 200 * US, (n + 1) * STEP - 200 * US) for n in range(STEPS + 1)]
    return make_trace(ops, cpu_ops=cpu_ops, annotations=notes or marks)


def with_activity(states: ThreadStates = NO_SAMPLES, steps: int = 10, **facts: Any) -> Device:
    of_steps = SystemFacts(steps=steps, span_ns=steps * STEP, **facts)
    activity = HostActivity(thread=1, steps=steps, span_ns=steps * STEP, states=states, facts=of_steps)
    [device] = analyze_trace(replace(program(), host_activity=activity)).result.devices
    return device


def idle(device: Device) -> dict[str, int]:
    assert device.per_step is not None
    return {cause: ns for cause, ns in device.per_step.idle_by_cause.items() if ns}


def test_without_samples_only_what_the_recording_shows_is_a_cause() -> None:
    [device] = analyze_trace(program()).result.devices
    assert idle(device) == {"python": 6 * MS, "cpu-ops": 2 * MS, "dispatch": MS}


def test_calls_on_files_are_taken_out_of_python() -> None:
    """A quarter of the samples of steps of 10 ms: 2.5 ms a step."""
    device = with_activity(ThreadStates(running=300, file_io=100))
    assert idle(device) == {"file-io": 2500 * US, "python": 3500 * US, "cpu-ops": 2 * MS, "dispatch": MS}


def test_no_more_is_taken_than_there_is() -> None:
    device = with_activity(ThreadStates(running=10, file_io=90))
    assert idle(device) == {"file-io": 6 * MS, "cpu-ops": 2 * MS, "dispatch": MS}


def test_waits_for_the_lock_are_spread_over_all_python() -> None:
    """Work takes all 10 ms of a step, for 9 of which the GPU waits: for 9 of 10 parts of the lock's time."""
    device = with_activity(ThreadStates(running=60, gil_wait=40))
    assert idle(device)["gil-wait"] == 3600 * US


def test_lost_cpus_and_quotas_are_taken_out_of_all_work() -> None:
    device = with_activity(run_queue_ns=50 * MS, throttled_ns=30 * MS)
    found = idle(device)
    # 10 ms a step are work, for 9 of which the GPU waits.
    assert (found["cpu-throttled"], found["preempted"]) == (2700 * US, 1800 * US)
    assert sum(found.values()) == 9 * MS


@pytest.mark.parametrize(("own_ms", "lost_us"), [(80, 3500), (10, 4500)])
def test_ops_of_too_many_threads_lose_the_cpu_only_if_other_processes_had_it(own_ms: int, lost_us: int) -> None:
    """Half of the time is lost, of 7 ms of Python and dispatch or of 9 ms that also are ops."""
    device = with_activity(run_queue_ns=50 * MS, usable_cpus=1, torch_threads=8, other_threads_cpu_ns=own_ms * MS)
    assert idle(device)["preempted"] == lost_us * US


def test_other_processes_take_no_cpu_while_a_quota_stops_the_process() -> None:
    """Of 5 ms without a CPU a step, the quota takes 4.5 ms, and in the rest the program's own threads may have run."""
    facts = SystemFacts(run_queue_ns=50 * MS, throttled_ns=45 * MS, other_threads_cpu_ns=10 * MS)
    assert not facts.beside_others
    assert replace(facts, throttled_ns=20 * MS).beside_others


def test_throttling_is_unknown_where_the_system_does_not_state_it() -> None:
    assert set(idle(with_activity(run_queue_ns=None, throttled_ns=None))) == set(WORK)


def test_evidence_says_that_the_place_is_estimated() -> None:
    device = with_activity(ThreadStates(running=300, file_io=100))
    confidence = {case.cause: case.confidence for case in device.evidence}
    assert confidence["file-io"] == "rebuilt" and confidence["cpu-ops"] == "exact"


@given(
    st.builds(ThreadStates, *[st.integers(0, 50)] * 4),
    st.integers(1, 20),
    st.none() | st.integers(0, 500 * MS),
    st.none() | st.integers(0, 100 * MS),
)
def test_sums_stay_exact_and_only_work_gets_other_causes(
    states: ThreadStates, steps: int, queued: int | None, throttled: int | None
) -> None:
    [before] = analyze_trace(program()).result.devices
    after = with_activity(states, steps, run_queue_ns=queued, throttled_ns=throttled)
    assert after.buckets == before.buckets
    figures: list[tuple[Device | Period, Device | Period]] = [(before, after)]
    for old, new in [*figures, *zip(before.steps, after.steps, strict=True)]:
        assert sum(new.idle_by_cause.values()) == new.buckets.idle_ns
        assert min(new.idle_by_cause.values()) >= 0
        for cause, ns in old.idle_by_cause.items():
            if cause not in (*WORK, *SAMPLED):
                assert new.idle_by_cause[cause] == ns
        assert all(new.idle_by_cause[cause] <= old.idle_by_cause[cause] for cause in WORK)


@pytest.mark.parametrize("cause", SAMPLED)
def test_each_has_a_finding_of_its_own(cause: str) -> None:
    states = {"file-io": ThreadStates(running=1, file_io=1), "gil-wait": ThreadStates(running=1, gil_wait=1)}
    facts = {
        "cpu-throttled": SystemFacts(
            steps=10, span_ns=10 * STEP, run_queue_ns=40 * MS, throttled_ns=40 * MS, quota_cpus=2.0
        ),
        "preempted": SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=40 * MS, usable_cpus=1, torch_threads=8),
    }
    activity = HostActivity(
        thread=1,
        steps=10,
        span_ns=10 * STEP,
        states=states.get(cause, ThreadStates()),
        files={"/data/log.txt": 1},
        facts=facts.get(cause, SystemFacts()),
    )
    findings = find_all([analyze_trace(replace(program(), host_activity=activity))])
    assert cause in {finding.rule for finding in findings}


# -- without that work ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("work", "states", "facts", "step_ms"),
    [
        ("python", NO_SAMPLES, SystemFacts(), 3),
        ("cpu-ops", NO_SAMPLES, SystemFacts(), 8),
        ("file-io", ThreadStates(running=300, file_io=100), SystemFacts(), 7.5),
        ("gil-wait", ThreadStates(running=65, gil_wait=35), SystemFacts(), 6.5),
        (
            "cpu-throttled",
            NO_SAMPLES,
            SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=30 * MS, throttled_ns=30 * MS),
            7,
        ),
        ("preempted", NO_SAMPLES, SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=30 * MS), 7),
    ],
)
def test_a_step_without_a_kind_of_work_is_shorter_by_it(
    work: str, states: ThreadStates, facts: SystemFacts, step_ms: float
) -> None:
    activity = HostActivity(thread=1, steps=10, span_ns=10 * STEP, states=states, facts=facts)
    predicted = ov.whatif(replace(program(), host_activity=activity), [f"less-host {work}"], plain_step_ns=STEP)
    assert predicted.predicted_step_ns is not None
    assert predicted.predicted_step_ns.value == pytest.approx(step_ms * MS, rel=0.02)
    # At worst, the work stays where it is, or a quarter of what is not shown but sampled.
    part = 1 if work in WORK else 0.25
    assert predicted.predicted_step_ns.high >= step_ms * MS + 0.95 * part * (STEP - step_ms * MS)


@pytest.mark.parametrize("work", ["gil-wait", "file-io", "cpu-throttled", "preempted"])
def test_work_that_only_samples_show_is_unknown_without_samples(work: str) -> None:
    predicted = ov.whatif(program(), [f"less-host {work}"])
    [change] = predicted.interventions
    assert (predicted.gain_pct, change.touched) == (0, 0)
    assert change.what == f"Not applicable: the host was not sampled, so its {work} is unknown."
    sampled = HostActivity(thread=1, steps=10, span_ns=10 * STEP, states=ThreadStates(running=100))
    assert ov.whatif(replace(program(), host_activity=sampled), [f"less-host {work}"]).gain_pct == 0


@pytest.mark.parametrize("text", ["less-host", "less-host pyton", "less-host host-sync"])
def test_only_work_that_can_be_done_elsewhere_can_be_left_out(text: str) -> None:
    with pytest.raises(UsageError, match="python"):
        ov.whatif(program(), [text])


# -- budgets --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "outcome"),
    [
        ("python_ms_per_step <= 7 ms", "pass"),
        ("python_ms_per_step <= 6.9 ms", "fail"),
        ("launches_per_step <= 1", "pass"),
        ("launches_per_step <= 0", "fail"),
        ("gc_ms_per_step <= 1 ms", "inconclusive"),
    ],
)
def test_work_of_the_host_in_a_step_can_be_limited(budget: str, outcome: str) -> None:
    assert ov.check(ov.analyze(program()), {"budgets": parsed(budget)}).outcome == outcome


def test_work_of_the_host_is_unknown_where_its_ops_were_not_recorded() -> None:
    trace = program()
    without = replace(trace, cpu_ops=trace.cpu_ops.take(slice(0)))
    for metric, limit in (("python_ms_per_step", "1 ms"), ("launches_per_step", "1")):
        assert ov.check(ov.analyze(without), {"budgets": parsed(f"{metric} <= {limit}")}).outcome == "inconclusive"


def test_pauses_of_the_collector_are_known_if_the_recorder_marks_them() -> None:
    pause = Host(f"{GC_PAUSE}2", STEP + 5 * MS, STEP + 7 * MS)
    notes = [Host(f"ProfilerStep#{n}", n * STEP - 200 * US, (n + 1) * STEP - 200 * US) for n in range(STEPS + 1)]
    marked = program(*notes, pause)
    assert [step.host.gc_pause_ns for step in analyze_trace(marked).result.devices[0].steps if step.host] == [
        *(0, 2 * MS, 0, 0, 0)
    ]


def parsed(budget: str) -> dict[str, Any]:
    metric, _, limit = budget.partition(" <= ")
    return {metric: {"max": limit}}


def test_more_threads_than_cpus_are_to_be_set_and_their_turns_are_left_to_the_ops() -> None:
    """What the thread waits for a CPU in ops is due to torch's own threads."""
    facts = SystemFacts(run_queue_ns=40 * MS, usable_cpus=4, torch_threads=64)
    trace = replace(program(), host_activity=HostActivity(thread=1, steps=10, span_ns=10 * STEP, facts=facts))
    [device] = analyze_trace(trace).result.devices
    assert idle(device)["cpu-ops"] == 2 * MS
    [advice] = [found.advice for found in find_all([analyze_trace(trace)]) if found.rule == "cpu-ops"]
    assert advice.startswith("Call torch.set_num_threads(4): torch has 64 threads for 4 CPUs.")


def test_without_samples_of_stacks_all_python_can_go_and_with_them_that_of_one_function() -> None:
    frames = (
        StackFrame("/app/train.py", 20, "tokenize"),
        StackFrame("/app/train.py", 21, "tokenize"),
        StackFrame("/app/train.py", 30, "step"),
    )
    stacks = tuple(SampledStack(1, (number,), samples, samples) for number, samples in enumerate((20, 15, 65)))
    backward = StackFrame("/lib/site-packages/torch/autograd/graph.py", 8, "_engine_run")
    stacks = (*stacks[:2], replace(stacks[2], frames=(2, 3)))
    activity = HostActivity(thread=1, steps=10, span_ns=10 * STEP, frames=(*frames, backward), stacks=stacks)
    predicted = ov.whatif(replace(program(), host_activity=activity), ["less-host python"], plain_step_ns=STEP)
    assert predicted.predicted_step_ns is not None
    # 3.5 ms of the 7 ms of Python are in `tokenize`.
    assert predicted.predicted_step_ns.value == pytest.approx(6.5 * MS, rel=0.02)
    assert predicted.predicted_step_ns.low <= 3.1 * MS and predicted.predicted_step_ns.high >= 9.9 * MS


def half_in_a_function(share: float = 0.5) -> HostActivity:
    """Samples of steps of 10 ms, a share of them in a function of the program's."""
    frames = (StackFrame("/app/train.py", 20, "tokenize"), StackFrame("/lib/torch/autograd/graph.py", 8, "_engine_run"))
    counts = (round(100 * share), round(100 * (1 - share)))
    stacks = tuple(SampledStack(1, (number,), samples, samples) for number, samples in enumerate(counts))
    return HostActivity(thread=1, steps=10, span_ns=10 * STEP, frames=frames, stacks=stacks)


def test_steps_that_are_not_judged_do_not_change_how_much_of_the_others_is_in_a_function() -> None:
    """The first step takes 30 ms, as long as three others, most of it in Python."""
    begins = [0, *range(3 * STEP, 8 * STEP, STEP)]
    ops = [Op(Kind.COMPUTE, begin, begin + MS, launch=(begin - 100 * US, begin)) for begin in begins]
    marks = [
        Host(f"ProfilerStep#{number}", begin - 200 * US, end - 200 * US)
        for number, (begin, end) in enumerate(itertools.pairwise(begins))
    ]
    cpu_ops = [Host("aten::mm", begin - MS, begin) for begin in begins]
    trace = replace(make_trace(ops, cpu_ops=cpu_ops, annotations=marks), host_activity=half_in_a_function())
    assert predicted_ms(trace, "less-host python") == pytest.approx(5, rel=0.02)


def test_the_longest_stretch_of_python_is_that_of_the_function() -> None:
    """The GPU works for 3 ms of a step. The host is in Python for 2 of them, and for 7 ms after them."""
    ops, cpu_ops, marks = [], [], []
    for number in range(STEPS + 1):
        begin = number * STEP
        marks.append(Host(f"ProfilerStep#{number}", begin - 200 * US, begin + STEP - 200 * US))
        for at, launched, length in ((begin, begin, 3 * MS), (begin + 3 * MS, begin + 2 * MS, 100 * US)):
            ops.append(Op(Kind.COMPUTE, at, at + length, launch=(launched - 10 * US, launched)))
            cpu_ops.append(Host("aten::mm", launched - 10 * US, launched))
    trace = make_trace(ops, cpu_ops=cpu_ops, annotations=marks)
    assert predicted_ms(replace(trace, host_activity=half_in_a_function()), "less-host python") == pytest.approx(
        5, rel=0.02
    )


def predicted_ms(trace: Trace, change: str) -> float:
    predicted = ov.whatif(trace, [change], plain_step_ns=STEP).predicted_step_ns
    assert predicted is not None
    return predicted.value / MS


def test_few_samples_make_a_gain_less_certain_than_many() -> None:
    gains = []
    for many in (1, 100):
        states = ThreadStates(running=7 * many, gil_wait=3 * many)
        activity = HostActivity(thread=1, steps=10, span_ns=10 * STEP, states=states)
        gain = ov.whatif(replace(program(), host_activity=activity), ["less-host gil-wait"], plain_step_ns=STEP).gain_ns
        assert gain is not None
        gains.append(gain)
    few, many_samples = gains
    assert few.value == many_samples.value
    assert few.low < many_samples.low < many_samples.high < few.high


def test_a_gain_varies_as_the_plain_step_does_in_proportion_to_the_time_that_the_gpu_waits() -> None:
    """The plain step is 10 ms, for 9 of which the GPU waits."""
    facts = SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=30 * MS)
    trace = replace(program(), host_activity=HostActivity(thread=1, steps=10, span_ns=10 * STEP, facts=facts))
    side = TimedSteps(host_ns=(8 * MS, 9 * MS, STEP, 11 * MS, 12 * MS))
    timed = replace(trace, plain_steps=PlainSteps(before=side, after=side))
    exact = ov.whatif(trace, ["less-host preempted"], plain_step_ns=STEP).gain_ns
    varying = ov.whatif(timed, ["less-host preempted"])
    assert exact is not None and varying.gain_ns is not None and varying.plain is not None
    longer, shorter = varying.plain.high_ns - STEP, STEP - varying.plain.low_ns
    assert varying.plain.step_ns == STEP and min(longer, shorter) > MS
    assert varying.gain_ns.value == exact.value
    assert varying.gain_ns.high == pytest.approx(exact.high + longer * exact.high / (9 * MS), rel=0.01)
    assert varying.gain_ns.low == pytest.approx(exact.low - shorter * exact.low / (9 * MS), rel=0.01)


def test_work_in_the_kernel_for_files_counts_as_far_as_lines_wait() -> None:
    """A thread that runs shows no call. In the first line it mostly waits, in the second one at times."""
    frames = (StackFrame("/app/train.py", 23, "write"), StackFrame("/app/train.py", 40, "step"))
    often = SampledStack(1, (0,), 80, 30), SampledStack(1, (1,), 20, 20)
    at_times = SampledStack(1, (0,), 16, 0), SampledStack(1, (1,), 84, 50)
    for kernel_ms, other_wait, stacks, expected_ms in (
        (25, 0, often, 8),
        (60, 0, often, 8),
        (25, 25, often, 4),
        (None, 0, often, 5),
        (25, 0, at_times, 7.5),
        (60, 0, at_times, 10),
    ):
        activity = HostActivity(
            thread=1,
            steps=10,
            span_ns=10 * STEP,
            frames=frames,
            stacks=stacks,
            states=ThreadStates(running=50, file_io=50 - other_wait, other_wait=other_wait),
            facts=SystemFacts(steps=10, span_ns=10 * STEP, kernel_ns=None if kernel_ms is None else kernel_ms * MS),
        )
        step = analyze_trace(replace(program(), host_activity=activity)).result.sampled
        assert step is not None
        assert step.by_cause["file-io"] == pytest.approx(expected_ms * MS, rel=0.001)


def test_a_host_that_waits_for_a_cpu_while_it_launches_hears_of_the_cpu_first() -> None:
    """A graph of the launches would save the waits, too, but they are not the launches' fault."""
    ops, cpu_ops, notes = [], [], []
    for at in range(0, 5 * STEP, STEP // 40):
        ops.append(Op(Kind.COMPUTE, at + 200 * US, at + 210 * US, launch=(at + 190 * US, at + 199 * US)))
        cpu_ops.append(Host("aten::mm", at + US, at + 200 * US))
    notes = [Host(f"ProfilerStep#{n}", n * STEP, (n + 1) * STEP) for n in range(5)]
    facts = SystemFacts(steps=10, span_ns=10 * STEP, run_queue_ns=60 * MS, usable_cpus=1)
    activity = HostActivity(thread=1, steps=10, span_ns=10 * STEP, facts=facts)
    trace = replace(make_trace(ops, cpu_ops=cpu_ops, annotations=notes), host_activity=activity)
    first, *rest = ov.analyze(trace, plain_step_ns=STEP).findings
    assert first.rule == "preempted" and "dispatch" in {finding.rule for finding in rest}
    assert "the launching thread loses 6.00 ms to it; the GPU waits for" in first.detail


def test_steps_with_facts_count_as_plain_steps_unless_others_are_among_them() -> None:
    """Steps vary by waits, so that the many with facts say more than five; their mean may show a checkpoint, too."""
    after = TimedSteps(host_ns=(4 * MS, 4 * MS, 12 * MS, 4 * MS, 6 * MS))
    for mean_ns, expected_ns in ((5 * MS, (5 * 6 + 100 * 5) * MS / 105), (20 * MS, 6 * MS)):
        facts = SystemFacts(steps=100, span_ns=100 * mean_ns)
        activity = HostActivity(thread=1, steps=10, span_ns=60 * MS, facts=facts)
        plain = measured(PlainSteps(after=after), 50 * MS, activity)
        assert plain is not None and plain.step_ns == round(expected_ns)
        assert plain.low_ns <= plain.step_ns <= plain.high_ns


def test_python_that_samples_find_in_no_function_is_not_called_unrecorded() -> None:
    predicted = ov.whatif(replace(program(), host_activity=half_in_a_function(0.0)), ["less-host python"])
    (change,) = predicted.interventions
    assert change.what == ("Not applicable: samples of the program without the profiler show no python in a function.")

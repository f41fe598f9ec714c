"""A step of a program without a GPU has one length, and one set of parts that add up to it, wherever it is stated."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis import analyze_trace
from overlapscope.analysis.results import HostUse, host_parts
from overlapscope.base.saved import encode
from overlapscope.base.words import bare_shares, duration
from overlapscope.catalog.causes import COMM_CAUSES, IDLE_CAUSES
from overlapscope.errors import UsageError
from overlapscope.ranks.on_host import reduce_host
from overlapscope.render import markdown
from overlapscope.report import host_view
from overlapscope.report.document import document
from overlapscope.report.model import build, from_json
from overlapscope.report.page import DeviceReport, Page, sampled_hosts
from overlapscope.report.verdict import judge
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, SystemFacts, ThreadStates
from overlapscope.trace.model import ClockedSteps, PlainSteps, TimedSteps, Trace
from tests.support.helpers import MS, TRACES, US, Host, make_trace
from tests.support.recordings import trace_of

SAMPLES = Path(__file__).parents[2] / "host_samples.trace.json.gz"
RECORDINGS = (SAMPLES, TRACES / "laboratory" / "pin_cost" / "pin_memory.trace.json.gz")
NEXT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FRAMES = (
    StackFrame("/home/me/train.py", 12, "train"),
    StackFrame("/lib/torch/utils/data/dataloader.py", 700, "_BaseDataLoaderIter.__next__"),
    StackFrame("/lib/torch/nn/modules/module.py", 1700, "Module._call_impl"),
)
SHARE = st.integers(0, 100)


@st.composite
def activities(draw: st.DrawFn) -> HostActivity:
    counts = draw(st.lists(st.integers(0, 50), min_size=3, max_size=3))
    places = ((0,), (0, 1), (0, 2))
    stacks = tuple(SampledStack(1, place, n, n // 2) for place, n in zip(places, counts, strict=True) if n)
    span_ns = 10 * draw(st.integers(1, 50)) * MS
    running, gil, files, other = draw(st.tuples(SHARE, SHARE, SHARE, SHARE))
    waited, throttled, pause = (draw(SHARE) * span_ns // 100 for _ in range(3))
    threads = draw(st.sampled_from([None, 1, 8]))
    facts = SystemFacts(
        steps=10,
        span_ns=span_ns,
        run_queue_ns=waited,
        throttled_ns=min(waited, throttled),
        gc_pause_ns=pause,
        usable_cpus=2,
        torch_threads=threads,
    )
    states = ThreadStates(running=running, gil_wait=gil, file_io=files, other_wait=other)
    return HostActivity(
        thread=1,
        steps=10,
        span_ns=span_ns,
        interval_ns=MS,
        sampler="py-spy 0.4.3",
        frames=FRAMES,
        stacks=stacks,
        states=states,
        facts=facts,
    )


@st.composite
def host_traces(draw: st.DrawFn) -> Trace:
    lengths = draw(st.lists(st.integers(1, 200), min_size=1, max_size=5))
    ends = [sum(lengths[: number + 1]) for number in range(len(lengths))]
    marks = [
        Host(f"ProfilerStep#{number}", (end - length) * US, end * US)
        for number, (length, end) in enumerate(zip(lengths, ends, strict=True))
    ]
    spans = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 100)), max_size=5)
    loads = [Host(NEXT, begin * US, (begin + length) * US) for begin, length in draw(spans)]
    comm = [Host("gloo:all_reduce", begin * US, (begin + length) * US, 2) for begin, length in draw(spans)]
    names = st.sampled_from(["aten::mm", "aten::add", "c10d::allreduce_"])
    ops = [Host(draw(names), begin * US, (begin + length) * US) for begin, length in draw(spans)]
    annotations = [*(marks if draw(st.booleans()) else ()), *loads, *comm]
    timed = TimedSteps(tuple(length * US for length in draw(st.lists(st.integers(1, 300), max_size=9))), ())
    groups = sorted(draw(st.sets(st.integers(1, 900), max_size=4)))
    clocked = ClockedSteps(tuple((n, n * length * US) for length in groups for n in (draw(st.integers(1, 30)),)))
    activity = draw(st.just(HostActivity()) | activities())
    trace = make_trace(cpu_ops=[*ops, Host("aten::mm", 0, US)], annotations=annotations)
    return replace(trace, plain_steps=PlainSteps(after=timed, clocked=clocked), host_activity=activity)


def use_of(trace: Trace) -> HostUse:
    use = analyze_trace(trace).result.host
    assert use is not None
    return use


def section_of(trace: Trace, *, recorded: bool = False) -> DeviceReport:
    analysis = analyze_trace(trace)
    page = Page(build([analysis], replayed=False), recorded=recorded, sampled=sampled_hosts([analysis]))
    [section] = page.sections()
    return section


def check_parts(trace: Trace) -> None:
    use = use_of(trace)
    for step in use.steps:
        assert sum(host_parts(step).values()) == step.span_ns
        assert (*step.idle_by_cause,) == IDLE_CAUSES and (*step.exposed_comm_by_cause,) == COMM_CAUSES
    assert sum(host_parts(use.per_step).values()) == use.per_step.span_ns
    if use.plain is not None:
        parts = host_parts(use.plain)
        assert sum(parts.values()) == use.plain.step_ns and min(parts.values()) >= 0
    sampled = analyze_trace(trace).result.sampled
    if sampled is not None:
        parts = host_parts(use.frame())
        assert sampled.step_ns == sum(parts.values())
        assert sum(line.time_ns for line in sampled.lines) <= sampled.step_ns + len(sampled.lines)
        assert all(parts[cause] == ns for cause, ns in sampled.by_cause.items())


def check_report(trace: Trace, *, recorded: bool = False) -> None:
    """Check that the report states one step time, apart from that of the other program, of which it says so."""
    section = section_of(trace, recorded=recorded)
    use = section.trace.host
    assert use is not None
    step_ns = sum(host_parts(use.frame(recorded=recorded)).values())
    assert section.span_ns == step_ns
    text = " ".join(markdown.render(document(section.page)).replace("\\", "").split())
    others = {"in the recording a step takes": use.per_step.span_ns}
    if recorded and use.plain is not None:
        others["Without the profiler a step takes"] = use.plain.step_ns
    for words, length_ns in others.items():
        for stated in re.findall(rf"{words} ([\d.,]+ \w+)", text):
            assert stated == duration(length_ns)
        text = re.sub(rf"{words} [\d.,]+ \w+", "", text)
    stated = re.findall(r"(?:step takes|a step of) ([\d.,]+ \w+)", text)
    assert {*stated} <= {duration(step_ns)}
    assert bool(stated) == use.by_steps or section.host is not None
    rows = host_view.host_parts(section).texts()
    assert rows[-1][1:] == [section.unit.number(step_ns), "100"]
    assert sorted(row[2] for row in rows[:-1]) == sorted(bare_shares([*section.host_parts.values()], step_ns))
    shown_ns = sum(section.of_ops(op.time_ns) for op in use.ops)
    assert abs(shown_ns - section.host_parts.get("ops", 0)) <= len(use.ops) or len(use.ops) == 20


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_bundled_recordings_of_the_host_state_one_step_and_parts_that_add_up(recording: Path) -> None:
    check_parts(trace_of(recording))
    for recorded in (False, True):
        check_report(trace_of(recording), recorded=recorded)


@given(host_traces())
def test_any_recording_of_the_host_has_parts_that_add_up(trace: Trace) -> None:
    check_parts(trace)


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_a_step_time_that_the_user_passes_is_that_of_the_report(recording: Path) -> None:
    report = build([analyze_trace(trace_of(recording))], plain_step_ns=12_345_678, replayed=False)
    [section] = Page(report).sections()
    assert section.span_ns == sum(section.host_parts.values()) == 12_345_678
    assert judge(section).plain.startswith(
        "Figures are of the program without the profiler: a step takes 12.3 ms (as given); in the recording"
    )
    assert section.trace.sampled is None or section.trace.sampled.step_ns == 12_345_678


def test_a_recording_without_steps_takes_no_step_time() -> None:
    analysis = analyze_trace(make_trace(cpu_ops=[Host("aten::mm", 0, MS)]))
    with pytest.raises(UsageError, match="no step is marked in it"):
        build([analysis], plain_step_ns=MS)


def test_workers_are_not_advised_where_loading_takes_no_time() -> None:
    marks = [Host(f"ProfilerStep#{n}", 10 * n * MS, 10 * (n + 1) * MS) for n in range(3)]
    for load_ns, advised in ((50 * US, False), (MS, True)):
        loads = [Host(NEXT, 10 * n * MS, 10 * n * MS + load_ns) for n in range(3)]
        trace = make_trace(cpu_ops=[Host("aten::mm", MS, 29 * MS)], annotations=[*marks, *loads])
        assert ("num_workers" in judge(section_of(trace)).remedy) == advised


def test_nothing_is_said_of_time_in_which_nothing_was_recorded() -> None:
    bounds = [0, 10, 20, 30, 60, 70, 80]
    marks = [Host(f"ProfilerStep#{n}", a * MS, b * MS) for n, (a, b) in enumerate(itertools.pairwise(bounds))]
    trace = make_trace(cpu_ops=[Host("aten::mm", mark.start, mark.start + 2 * MS) for mark in marks], annotations=marks)
    assert "mostly because of time elsewhere, such as in Python (20.0 ms more)" in judge(section_of(trace)).steps
    assert judge(section_of(trace)).remedy == "Next: overlapscope run shows which lines take the time elsewhere."
    # That is how this one was recorded.
    timed = replace(trace, plain_steps=PlainSteps(TimedSteps((10 * MS,) * 10), TimedSteps((10 * MS,) * 10)))
    assert judge(section_of(timed)).remedy == ""


@given(host_traces(), st.booleans())
def test_any_report_on_the_host_states_one_step(trace: Trace, recorded: bool) -> None:
    check_report(trace, recorded=recorded)


@given(host_traces())
def test_ranks_have_the_same_step_as_a_report_on_one_rank(trace: Trace) -> None:
    reduced, use = reduce_host(trace) if use_of(trace).by_steps else None, use_of(trace)
    if reduced is not None:
        assert reduced.judged is not None
        assert (reduced.step_ns, reduced.judged.buckets) == (use.per_step.span_ns, use.per_step.buckets)


def with_long_steps(activity: HostActivity) -> Trace:
    """Return a recording of three steps of 10 ms, of a program in which every tenth step takes 310 ms."""
    marks = [Host(f"ProfilerStep#{n}", 10 * n * MS, 10 * (n + 1) * MS) for n in range(3)]
    ops = [Host("aten::mm", 10 * n * MS, (10 * n + 8) * MS) for n in range(3)]
    clocked = ClockedSteps(((900, 900 * 10 * MS), (100, 100 * 310 * MS)), 10 * MS)
    timed = PlainSteps(TimedSteps((10 * MS,) * 10), TimedSteps((10 * MS,) * 10), clocked)
    return replace(make_trace(cpu_ops=ops, annotations=marks), plain_steps=timed, host_activity=activity)


def test_time_in_long_steps_that_are_not_recorded_is_unknown() -> None:
    section = section_of(with_long_steps(HostActivity()))
    assert section.host_parts == {"ops": 8 * MS, "python": 2 * MS, "unrecorded": 30 * MS}
    verdict = judge(section)
    assert verdict.level == "unknown" and "Record more steps" in verdict.remedy
    assert verdict.lead.startswith(
        "A step takes 40.0 ms: 75.0% in steps that are longer than any recorded one, 20.0% in"
    )
    assert "(measured, the mean of 1,000 steps, 34.4 to 45.6 ms)" in verdict.plain
    assert verdict.plain.endswith(
        "100 steps took much longer than any recorded one, the others 10.0 ms on average: the recorded steps stand for "
        "25.0% of the time."
    )


def test_samples_show_what_long_steps_do() -> None:
    stacks = SampledStack(1, (0, 1), 60, 0), SampledStack(1, (0, 2), 40, 40)
    activity = HostActivity(thread=1, steps=50, span_ns=2000 * MS, interval_ns=MS, frames=FRAMES, stacks=stacks)
    section = section_of(with_long_steps(activity))
    assert section.host_parts == {"ops": 8 * MS, "python": 2 * MS, "data-loading": 24 * MS, "unrecorded": 6 * MS}
    assert judge(section).level == "poor"


@given(host_traces())
def test_the_level_follows_from_the_parts(trace: Trace) -> None:
    section = section_of(trace)
    parts, step_ns = section.host_parts, section.span_ns
    lost = sum(ns for name, ns in parts.items() if name not in ("ops", "python", "unrecorded")) / max(1, step_ns)
    level = judge(section).level
    if lost >= 0.15:
        assert level == "poor"
    elif parts.get("unrecorded", 0) >= 0.05 * step_ns:
        assert level == "unknown"
    elif lost >= 0.05:
        assert level == "fair"
    elif section.trace.sampled is None:
        assert level == "unknown"
    else:
        assert level == ("fair" if parts.get("python", 0) + lost * step_ns >= 0.05 * step_ns else "good")


@given(host_traces())
def test_a_report_read_from_json_states_the_same_step(trace: Trace) -> None:
    report = section_of(trace).page.report
    [section] = Page(from_json(encode(report))).sections()
    assert section.host_parts == section_of(trace).host_parts


def test_waiting_for_collectives_is_communication() -> None:
    """Each step of 10 ms: 4 ms of ops, then 5 ms until an all-reduce ends."""
    marks = [Host(f"ProfilerStep#{n}", 10 * n * MS, 10 * (n + 1) * MS) for n in range(3)]
    ops = [
        host
        for n in range(3)
        for host in (
            Host("aten::mm", 10 * n * MS, (10 * n + 4) * MS),
            Host("c10d::allreduce_", (10 * n + 4) * MS, (10 * n + 4) * MS + 10),
        )
    ]
    comm = [Host("gloo:all_reduce", (10 * n + 4) * MS, (10 * n + 9) * MS, 2) for n in range(3)]
    section = section_of(make_trace(cpu_ops=ops, annotations=[*marks, *comm]))
    assert section.host_parts == {"ops": 4 * MS, "communication": 5 * MS, "python": MS}
    verdict = judge(section)
    assert (verdict.level, verdict.lead) == (
        "poor",
        "A step takes 10.0 ms: 50.0% in communication, 40.0% in ops and 10.0% elsewhere, such as in Python.",
    )
    assert "`overlapscope ranks`" in verdict.remedy


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name)
def test_a_missing_table_of_lines_has_a_reason(recording: Path) -> None:
    section = section_of(trace_of(recording))
    reason = "There is no table of lines, because no stacks were sampled."
    assert (reason in markdown.render(document(section.page))) == (recording != SAMPLES)
    assert host_view.why_no_lines(section).startswith(reason) == (recording != SAMPLES)

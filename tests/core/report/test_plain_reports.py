"""Tests that findings, diffs, checks and commands all describe the plain program if the plain step is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import overlapscope as ov
from overlapscope.analysis import analyze_trace
from overlapscope.analysis.figures import Period, PerStep
from overlapscope.analysis.results import Device
from overlapscope.base.saved import encode
from overlapscope.commands import main
from overlapscope.errors import UsageError
from overlapscope.report.model import Report, build, from_json, of_plain, of_program
from overlapscope.report.page import Page
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding, costliest_first
from overlapscope.rules.findings import counterparts, find_all
from overlapscope.rules.rule import Draft, Rule
from overlapscope.trace.host import Where
from overlapscope.trace.model import HostEvents, Trace
from tests.support.helpers import MS, TRACES, US
from tests.support.plain_recordings import HOST_BOUND, Slowed, Work, record
from tests.support.recordings import analysis_of, trace_of

LAUNCHES = TRACES / "known_causes" / "launch_bound.json.gz"
GPT2 = TRACES / "gpt2_train.json.gz"
STACKS = TRACES / "known_causes" / "host_sync_stacks.json.gz"
RANKS = TRACES / "ddp"
NEARLY_FULL = (*[Work(20 * US, ops=2, work_ns=10 * US)] * 30, Work(100 * US), Work(0))
"""The GPU keeps up with nothing to wait for, unless recording slows the host."""


def report(trace: Trace, plain_step_ns: int | None = None, **options: Any) -> Report:
    return build([analyze_trace(trace)], plain_step_ns=plain_step_ns, **options)


def launches(plain_step_ns: int | None = None) -> Report:
    return report(trace_of(LAUNCHES), plain_step_ns)


def by_rule(report: Report) -> dict[str, Finding]:
    return {finding.rule: finding for finding in Page(report).findings}


@pytest.mark.parametrize("plain_step_ns", [1, 2, 7])
@pytest.mark.parametrize(
    "recording",
    ["mixed_workloads/kv_offload_running_ahead", "laboratory/forward_backward/many_small_serial_graph.trace"],
)
def test_buckets_add_up_to_a_step_that_rounding_changes(recording: str, plain_step_ns: int) -> None:
    for device in report(trace_of(TRACES / f"{recording}.json.gz"), plain_step_ns).devices:
        assert device.plain is not None
        if device.plain.buckets is not None:
            assert sum(msgspec.structs.astuple(device.plain.buckets)) == device.plain.step_ns


# -- findings


def test_without_a_known_step_the_recording_is_judged() -> None:
    report = launches()
    [device] = report.devices
    assert device.plain is None and device.alone is not None and device.per_step is not None
    assert device.alone.low_ns < device.alone.high_ns == device.per_step.span_ns
    assert of_program(report) is report and of_plain(device) is device
    assert report.findings == find_all([analysis_of(LAUNCHES)])


def test_findings_are_of_the_told_program_and_their_example_of_the_recording() -> None:
    recorded = {finding.rule: finding for finding in find_all([analysis_of(GPT2)])}
    given = by_rule(report(trace_of(GPT2), 40 * MS))
    assert given
    for rule, finding in given.items():
        assert 0 < finding.cost_ns < recorded[rule].cost_ns
        assert finding.saving is not None and (before := recorded[rule].saving) is not None
        assert finding.saving.saved_ns < before.saved_ns
        assert finding.example == recorded[rule].example
        assert finding.title != recorded[rule].title


def test_a_finding_that_only_the_recording_has_is_none() -> None:
    truth = report(record(NEARLY_FULL))
    [plain] = truth.devices
    slow = record(NEARLY_FULL, Slowed.by(8 * US))
    assert "dispatch" in {finding.rule for finding in find_all([analyze_trace(slow)])}
    assert "dispatch" not in by_rule(truth)
    assert plain.per_step is not None
    assert "dispatch" not in by_rule(report(slow, plain.per_step.span_ns))


@pytest.mark.parametrize("plain_step_ns", [None, 30 * MS, 45 * MS])
def test_findings_are_ordered_by_what_they_cost_the_program(plain_step_ns: int | None) -> None:
    findings = report(trace_of(GPT2), plain_step_ns).findings
    assert list(findings) == sorted(findings, key=costliest_first)


def claim_of(op: str | None, bound_ns: int, rule: int = 0) -> tuple[Rule, Draft]:
    where = None if op is None else Where(op=op, call="cudaStreamSynchronize")
    return tuple(RULES.values())[rule], Draft(title="", detail="", advice="", bound_ns=bound_ns, where=where)


def test_a_finding_keeps_what_was_recorded_of_the_same_call() -> None:
    recorded = [
        claim_of("aten::item", 5),
        claim_of("aten::copy_", 7),
        claim_of(None, 9),
        claim_of("aten::item", 11),
        claim_of(None, 13, 1),
    ]

    def bounds(*spoken: tuple[Rule, Draft]) -> list[int | None]:
        return [None if counterpart is None else counterpart.bound_ns for counterpart in counterparts(spoken, recorded)]

    assert bounds(*recorded) == [5, 7, 9, 11, 13]
    assert bounds(claim_of("aten::copy_", 1)) == [7], "the first has gone"
    assert bounds(claim_of("aten::mm", 1), claim_of("aten::copy_", 1)) == [5, 7], (
        "what is told apart is not taken for another"
    )
    assert bounds(*[claim_of(None, 1, 1)] * 2) == [13, None]
    assert bounds(claim_of(None, 1, 2)) == [None]


# -- the report and its file


def test_a_report_tells_all_of_the_plain_program_after_a_round_trip() -> None:
    report = launches(2 * MS)
    assert from_json(encode(report)) == report
    judged = of_program(report)
    [device], [recorded] = judged.devices, report.devices
    assert recorded.plain is not None
    assert msgspec.structs.replace(device, plain=None) == recorded.plain.program
    assert device == of_plain(recorded)
    assert judged.findings == report.findings != launches().findings


def test_ranks_are_of_the_plain_program_all_or_none() -> None:
    analyses = [analysis_of(path) for path in sorted(RANKS.glob("*.json.gz"))]
    report = build(analyses, plain_step_ns=15 * MS, replayed=False)
    assert len(report.devices) == 2
    assert of_program(report).devices == tuple(map(of_plain, report.devices))
    mixed = msgspec.structs.replace(report, traces=(report.traces[0], build(analyses[1:], replayed=False).traces[0]))
    assert of_program(mixed) is mixed


def test_a_step_or_range_alone_has_no_plain_program() -> None:
    trace = trace_of(LAUNCHES)
    assert ov.analyze(trace, step="ProfilerStep#4").devices[0].plain is None
    with pytest.raises(UsageError, match="--plain-step is for whole recordings"):
        ov.analyze(trace, step="ProfilerStep#4", plain_step_ns=2 * MS)


# -- diffs


def test_two_programs_are_compared_where_both_are_known() -> None:
    difference = ov.diff(LAUNCHES, LAUNCHES, plain_step_ns=(2 * MS, 2 * MS))
    assert difference.of == "plain" and "plain" not in {doubt.id for doubt in difference.doubts}
    figures = difference.devices[0].figures
    assert figures.span.before == pytest.approx(2 * MS, rel=0.02)
    assert not any(item.change for item in (figures.span, *figures.buckets, *figures.idle_by_cause))


def test_recordings_are_compared_where_only_one_program_is_known() -> None:
    for before, after, which in ((2 * MS, None, "before"), (None, 2 * MS, "after")):
        difference = ov.diff(launches(before), launches(after))
        assert difference.of == "recorded"
        [doubt] = [doubt for doubt in difference.doubts if doubt.id == "plain"]
        assert f"Only the trace {which} has a step time without the profiler" in doubt.detail
        assert difference.devices[0].figures == ov.diff(launches(), launches()).devices[0].figures


def test_other_ways_of_recording_matter_to_recordings_alone() -> None:
    stacks = trace_of(STACKS)
    without = replace(stacks, flags={}, python_frames=HostEvents.empty(names=stacks.names))
    for given, of, holds in (((None, None), "recorded", "may"), ((9 * MS, 9 * MS), "plain", "corrected")):
        sides = [report(trace, ns, replayed=False) for trace, ns in zip((without, stacks), given, strict=True)]
        difference = ov.diff(*sides)
        assert difference.of == of
        [doubt] = [doubt for doubt in difference.doubts if doubt.id == "profiler"]
        assert "without stacks before, with stacks after" in doubt.detail
        assert holds in doubt.holds


# -- checks and baselines


def step_time(at_most: str) -> dict[str, Any]:
    return {"budgets": {"step_time": {"max": at_most}}}


def test_budgets_are_of_the_told_program_and_the_check_says_so() -> None:
    result = ov.check(LAUNCHES, step_time("2.1 ms"), plain_step_ns=2 * MS)
    assert result.outcome == "pass"
    assert result.program is not None
    assert "a step takes 2.00 ms (as given); in the recording it takes 2.85 ms" in result.program
    recorded = ov.check(LAUNCHES, step_time("2.1 ms"))
    assert (recorded.outcome, recorded.program) == ("fail", None)


def test_a_step_that_takes_longer_than_the_recording_shows_is_judged_as_long_as_it_is() -> None:
    given = report(trace_of(LAUNCHES), 4 * MS, replayed=False)
    verdicts = {
        budget: ov.check(given, {"budgets": {budget: {"max": "3 ms"}}}).outcome
        for budget in ("step_time", "compute_time")
    }
    assert verdicts == {"step_time": "fail", "compute_time": "pass"}
    [device] = of_program(given).devices
    assert device.judged is not None and device.per_step is not None
    parts: list[Device | Period | PerStep] = [device, device.judged, device.per_step, *device.steps]
    for part in parts:
        assert sum(msgspec.structs.astuple(part.buckets)) == part.span_ns
        assert sum(part.idle_by_cause.values()) == part.buckets.idle_ns
    assert device.per_step.span_ns == 4 * MS
    assert device.span_ns == sum(step.span_ns for step in device.steps)


def baseline(path: Path, *options: str) -> str:
    assert main(["check", str(LAUNCHES), "--write-baseline", "--baseline", str(path), *options]) == 0
    return str(path)


def test_like_is_judged_by_like(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recorded = baseline(tmp_path / "recorded.json")
    plain = baseline(tmp_path / "plain.json", "--plain-step", "2ms")

    same = ov.check(LAUNCHES, baseline=plain, plain_step_ns=2 * MS)
    assert same.outcome != "fail" and same.program is not None and not same.warnings

    old = ov.check(LAUNCHES, baseline=recorded, plain_step_ns=2 * MS)
    assert old.outcome != "fail" and old.program is None
    assert any(
        "The baseline was made from a recording, so the recorded figures are judged" in warning
        for warning in old.warnings
    )

    unknown = ov.check(LAUNCHES, baseline=plain)
    assert unknown.outcome == "inconclusive" and unknown.program is None
    assert {verdict.status for verdict in unknown.verdicts} == {"skipped"}
    assert any("whose step time this trace does not have" in warning for warning in unknown.warnings)


def test_a_program_that_became_slower_fails_however_it_was_recorded() -> None:
    light, heavy = (record(30 * HOST_BOUND, Slowed.by(added * US)) for added in (2, 6))
    before = report(light, 18 * MS, replayed=False)
    budgets = {"budgets": {"step_time": {"max_increase": "5%", "noise_floor": "0.5 ms"}}}
    assert ov.check(report(heavy, 18 * MS, replayed=False), budgets, baseline=before).outcome == "pass"
    slower = ov.check(report(heavy, 22 * MS, replayed=False), budgets, baseline=before)
    assert "step_time" in {verdict.metric for verdict in slower.verdicts if verdict.status == "fail"}


def test_a_written_report_is_judged_without_being_told_again(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    assert main(["analyze", str(LAUNCHES), "--plain-step", "2 ms", "--format", "json", "-o", str(path)]) == 0
    from_file = ov.check(path, step_time("2.1 ms"))
    result = ov.check(LAUNCHES, step_time("2.1 ms"), plain_step_ns=2 * MS)
    assert (from_file.outcome, from_file.program) == (result.outcome, result.program)
    assert from_file.verdicts == result.verdicts
    assert ov.diff(path, path).of == "plain"
    for job in (path, launches(2 * MS)):
        with pytest.raises(UsageError, match="pass the option to"):
            ov.check(job, plain_step_ns=1 * MS)


# -- commands


COMMANDS = {
    "analyze": ["analyze", str(LAUNCHES)],
    "whatif": ["whatif", str(LAUNCHES), "--graph"],
    "check": ["check", str(LAUNCHES)],
    "baseline": ["check", str(LAUNCHES), "--write-baseline", "--baseline", "never-written.json"],
}
NO_STEPS = ["", "abc", "31.8", "-3ms", "0ms", "0.1ns", "inf", "nan", "5%", "3 GB", "1e9ms"]


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_not_a_time_is_refused_in_a_sentence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for text in NO_STEPS:
        assert main([*COMMANDS[name], f"--plain-step={text}"]) == 2
        errors = capsys.readouterr().err.splitlines()[-1]
        assert "error: argument --plain-step: " in errors and repr(text) in errors
    assert main([*COMMANDS[name], "--plain-step", "99999999999s"]) == 2
    assert "is larger than a time can be" in capsys.readouterr().err


def test_a_diff_is_told_two_lengths(capsys: pytest.CaptureFixture[str]) -> None:
    both = [str(LAUNCHES), str(LAUNCHES)]
    for words in (["2ms"], ["2ms", "x"], []):
        assert main(["diff", *both, "--plain-step", *words]) == 2
    capsys.readouterr()
    assert main(["diff", *both, "--plain-step", "2ms", "1.8 ms", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["of"] == "plain"


def test_a_step_alone_cannot_be_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(LAUNCHES), "--step", "4", "--plain-step", "2ms"]) == 2
    assert "--plain-step is for whole recordings" in capsys.readouterr().err


def test_pages_say_how_long_a_plain_step_is_and_of_what_it_consists(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(LAUNCHES), "--plain-step", "2ms", "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "Launch-bound: in each step of 2.00 ms, the GPU is idle for 1.73 ms" in page
    assert (
        "Figures are of the program without the profiler: a step takes 2.00 ms (as given); "
        "in the recording a step takes 2.85 ms." in page
    )
    assert main(["analyze", str(LAUNCHES), "--plain-step", "2ms", "--format", "markdown", "-v"]) == 0
    assert "The whole window, as recorded" in capsys.readouterr().out
    assert main(["analyze", str(LAUNCHES), "--format", "markdown"]) == 0
    page = capsys.readouterr().out
    assert "Launch-bound: in each step of 2.85 ms, the GPU is idle for 2.58 ms" in page
    assert "Without the profiler a step takes between 0.72 and 2.85 ms; \\`overlapscope run\\`" in page

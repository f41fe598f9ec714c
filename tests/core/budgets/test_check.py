"""Tests of `overlapscope check`: passes, failures with reasons, unknown verdicts, and all exit codes."""

from __future__ import annotations

import datetime
import json
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.budgets import config
from overlapscope.budgets.check import check
from overlapscope.budgets.settings import Budget, Ranks, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult
from overlapscope.catalog.measures import METRICS
from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.inputs import read_report
from overlapscope.report.model import Report
from overlapscope.rules import RULES
from tests.support.schemas import validate
from tests.support.stepped_traces import write_steps

OFFLOAD = "traces/laboratory/offload_pipeline/one_stream.trace.json.gz"
DDP_RANK = "traces/ddp/rank0.json.gz"
STACKS = "traces/known_causes/host_sync_stacks.json.gz"
TODAY = datetime.date(2030, 1, 15)


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("FORCE_COLOR", "NO_COLOR", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Eight steps of 900 us: 600 us of compute, 200 us of exposed copies, 100 us idle."""
    return write_steps(tmp_path / "trace.json")


def judge(sources: str | list[str], text: str = "", *budgets: str, **options: Any) -> CheckResult:
    """Check traces by a configuration and by expressions."""
    settings = config.from_mapping(tomllib.loads(text), "test.toml")
    settings = replace(settings, budgets=(*settings.budgets, *map(config.expression, budgets)))
    report = read_report([sources] if isinstance(sources, str) else sources)
    settings = replace(settings, fail_level=options.pop("fail_level", "error"))
    return check(report, settings, **{"today": TODAY, **options})


def only(result: CheckResult) -> BudgetVerdict:
    [verdict] = result.verdicts
    return verdict


# -- exit codes


def test_a_kept_budget_exits_with_0(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, "--budget", "step_time <= 1 ms"]) == 0
    captured = capsys.readouterr()
    lines = [" ".join(line.split()) for line in captured.out.splitlines()]
    assert lines == [
        "Passed: 1 budget (step_time <= 1 ms).",
        "Figures are of the recording, which the profiler makes slower.",
        "",
        "budget value",
        "pass step_time <= 1 ms 0.9 ms",
    ]
    assert captured.err == ""


def test_a_failed_budget_exits_with_1_and_says_why(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, "--budget", "exposed_copy_time <= 150 us"]) == 1
    out = capsys.readouterr().out
    for part in (
        "FAIL exposed_copy_time <= 150 us",
        "exposed_copy_time is 200 us, but at most 150 us is allowed; mean of 7 steps.",
        "- exposed copy, same-stream: 200 us a step on average",
        "at aten::copy_, cudaMemcpyAsync",
        "More: overlapscope explain same-stream",
    ):
        assert part in out
    assert out.startswith("The budget failed: exposed_copy_time <= 150 us.\n")
    assert out.endswith("\nAdd -v for evidence.\n")
    assert main(["check", trace, "--budget", "exposed_copy_time <= 150 us", "-v"]) == 1
    assert len(capsys.readouterr().out) > len(out)


@pytest.mark.parametrize("recording", ["further/training/naive.json.gz", "pipeline_1stream.json.gz", "ddp"])
def test_a_usual_check_is_one_screen(
    recording: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    budgets = [part for text in ("idle_pct <= 0%", "step_time <= 1 us") for part in ("--budget", text)]
    for args in ([], budgets):
        main(["check", f"traces/{recording}", *args])
        assert len(capsys.readouterr().out.splitlines()) <= 45


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "name the traces"),
        (["nowhere.json"], "nowhere.json"),
        (["{trace}", "--budget", "step_time < 1 ms"], "write <= or >="),
        (["{trace}", "--forbid", "pageable"], "did you mean 'pageable-memory'?"),
        (["{trace}", "--config", "nowhere.toml"], "nowhere.toml: cannot be read"),
        (["{trace}", "--format", "jnit"], "there is no format 'jnit' (did you mean 'junit'?)"),
        (["{trace}", "--format", "junit:"], "names no file; write junit:PATH"),
        (["{trace}", "--format", "json", "--format", "text"], "json, text cannot all be printed"),
        (["{trace}", "--format", "json", "--explain", "x"], "json and --explain cannot all be printed"),
        (["{trace}", "--format", "json:/nowhere/x"], "the directory /nowhere does not exist"),
        (["{trace}", "--format", "json:/"], "is a directory"),
        (["{trace}", "--format", "json:x", "--format", "text:./x"], "is the output of two formats"),
        (["{trace}", "--format", "json:{trace}"], "and would be overwritten"),
        (["{trace}", "--fail-level", "info"], "invalid choice: 'info'"),
        (["{trace}", "--explain", "idle_pct"], "there is no budget 'idle_pct'"),
        (["{trace}", "--baseline", "nowhere"], "nowhere"),
    ],
)
def test_wrong_usage_exits_with_2(
    args: list[str], message: str, trace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(trace).read_bytes()
    assert main(["check", *(arg.replace("{trace}", trace) for arg in args)]) == 2
    captured = capsys.readouterr()
    assert message in " ".join(captured.err.split())
    assert captured.out == ""
    assert Path(trace).read_bytes() == before


def test_what_cannot_be_judged_exits_with_3(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, "--budget", "exposed_comm_pct <= 5%"]) == 3
    assert "exposed_comm_pct is unknown: there is no communication." in capsys.readouterr().out


def test_a_failure_outweighs_what_is_unknown(trace: str) -> None:
    assert main(["check", trace, "--budget", "exposed_comm_pct <= 5%", "--budget", "step_time <= 1 us"]) == 1


# -- missing is never passing


@pytest.mark.parametrize(
    ("options", "budget", "why"),
    [
        ({"copy_us": 0}, "exposed_copy_time <= 3 ms", "there are no copies between host and device"),
        ({"copy_us": 0}, "hidden_copy_pct >= 10%", "there are no copies between host and device"),
        ({}, "d2h copy_time <= 3 ms", "there are no d2h copies between host and device"),
        ({"copy_us": 0}, "efficiency_pct >= 0%", "only one engine worked, so there was nothing to overlap"),
        ({}, "exposed_comm_time <= 3 ms", "there is no communication"),
        (
            {"marked": False, "steps": 2},
            "step_time <= 3 ms",
            "there are no whole steps in it: mark them with prof.step()",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_unknown(options: dict[str, Any], budget: str, why: str, tmp_path: Path) -> None:
    verdict = only(judge(write_steps(tmp_path / "t.json", **options), "", budget))
    assert verdict.status == "unknown"
    assert verdict.value is None
    assert why in verdict.message
    assert verdict.counts


def test_allowed_to_be_missing_it_passes(trace: str) -> None:
    result = judge(trace, "[budgets]\nexposed_comm_time = { max = '3 ms', allow_missing = true }")
    assert only(result).status == "unknown"
    assert (result.outcome, result.summary) == ("pass", "0 of 1 budget passed, 1 without data, as allowed.")


def test_an_absent_rank_is_unknown(tmp_path: Path) -> None:
    traces = [write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=3) for rank in (0, 2)]
    result = judge(traces, "", "step_time <= 1 ms")
    verdict = only(result)
    assert result.exit_code == 3
    assert verdict.message == ("rank 1: step_time is unknown: its trace was not given, and the job had 3 ranks.")
    assert [(part.rank, part.status) for part in verdict.parts] == [(0, "pass"), (2, "pass"), (1, "unknown")]
    assert judge(traces, "[budgets.step_time]\nmax = '1 ms'\nrank = '[02]'").exit_code == 0
    assert judge(traces, "[budgets.step_time]\nmax = '1 ms'\nrank = 1").exit_code == 3
    assert judge(traces, "forbid = ['pageable-memory']").exit_code == 3
    assert judge(traces, "forbid = ['pageable-memory']\nallow_missing = true").exit_code == 0


def test_a_cut_trace_is_unknown(trace: str) -> None:
    path = Path(trace)
    path.write_bytes(path.read_bytes()[:-400])
    result = judge(trace, "forbid = ['pageable-memory']", "step_time <= 1 ms")
    assert [verdict.status for verdict in result.verdicts] == ["unknown", "unknown"]
    assert all("the file is cut" in verdict.message for verdict in result.verdicts)
    whole = write_steps(path.with_name("whole.json"))
    among = only(judge([trace, whole], "forbid = ['tiny-copies']"))
    assert among.message.startswith("tiny-copies cannot be judged: trace.json: the file is cut")


def test_a_failed_trust_check_makes_unknown_what_rests_on_it(trace: str) -> None:
    path = Path(trace)
    content = json.loads(path.read_text())
    for event in content["traceEvents"]:
        if event["cat"] in ("kernel", "gpu_memcpy"):
            event["ts"] -= 2000
    path.write_text(json.dumps(content))
    result = judge(trace, "forbid = ['host-sync']", "host_stall_time <= 1 ms", "idle_pct <= 50%")
    statuses = {verdict.metric: verdict.status for verdict in result.verdicts}
    assert statuses == {"host_stall_time": "unknown", "idle_pct": "pass", "host-sync": "unknown"}


def test_a_trace_without_a_gpu_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": []}))
    assert judge(str(path)).exit_code == 3


# -- what is judged


@pytest.mark.parametrize(
    ("budget", "status", "value"),
    [
        ("step_time <= 901 us", "pass", 900_000),
        ("step_time >= 900 us", "pass", 900_000),
        ("step_time >= 901 us", "fail", 900_000),
        ("worst step_time <= 900 us", "fail", 900_300),
        ("p75 step_time <= 901 us", "pass", 900_200),
        ("idle_pct <= 11%", "fail", pytest.approx(11.11, abs=0.01)),
        ("copy_bandwidth >= 49 GB/s", "pass", 50),
        ("h2d copy_bandwidth >= 51 GB/s", "fail", 50),
        ("compute_time <= 599 us", "fail", 600_000),
        ("hidden_copy_pct >= 1%", "fail", 0),
        ("exposed_copy_pct <= 99.99%", "fail", 100),
        ("window step_time <= 8 ms", "pass", 7_201_400),
    ],
)
def test_figures_are_compared_with_their_limits(budget: str, status: str, value: float, trace: str) -> None:
    verdict = only(judge(trace, "", budget))
    assert verdict.status == status
    assert verdict.value == value


def test_value_and_limit_are_told_so_that_they_differ(trace: str) -> None:
    verdict = only(judge(trace, "", "idle_pct <= 11.11%"))
    assert verdict.message == "idle_pct is 11.111%, but at most 11.11% is allowed; mean of 7 steps."


def test_a_mean_percentage_is_the_ratio_of_the_sums(tmp_path: Path) -> None:
    source = write_steps(tmp_path / "t.json", slow={3: 400.0, 5: 200.0})
    assert only(judge(source, "", "mean idle_pct <= 50%")).value == pytest.approx(100 * 700 / 6900)
    assert only(judge(source, "", "median idle_pct <= 50%")).value == pytest.approx(100 * 100 / 900, abs=0.01)


def test_the_worst_rank_decides_and_every_rank_is_reported(tmp_path: Path) -> None:
    slow = {0: 0.0, 1: 50.0, 2: 20.0}
    traces = [
        write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=3, compute_us=600 + more)
        for rank, more in slow.items()
    ]
    verdict = only(judge(traces, "", "step_time <= 930 us"))
    assert (verdict.status, verdict.subject.rank, verdict.value) == ("fail", 1, 950_000)
    assert "rank 1: step_time is 950 us" in verdict.message
    assert "worst of 3 ranks" in verdict.message
    assert [(part.rank, part.status) for part in verdict.parts] == [(0, "pass"), (1, "fail"), (2, "pass")]
    each = judge(traces, "ranks = 'each'\n[budgets]\nstep_time.max = '930 us'").verdicts
    assert [(entry.subject.rank, entry.status) for entry in each] == [(1, "fail"), (0, "pass"), (2, "pass")]


def test_the_kernels_of_a_step_are_those_of_the_steps_judged() -> None:
    """A recording has warm-up steps, too, whose kernels are in no step that is judged."""
    source = "traces/laboratory/ddp_training/no_overlap.traces"
    verdict = only(judge(source, "", "step_time <= 3 ms"))
    kernels = [reason.time_ns for reason in verdict.reasons if reason.title.startswith("kernel ")]
    assert kernels
    assert verdict.value is not None
    assert sum(kernels) <= verdict.value


def test_budgets_of_a_metric_hold_where_their_patterns_say(tmp_path: Path) -> None:
    traces = [
        write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=2, idle_us=100 + 50 * rank) for rank in (0, 1)
    ]
    text = """
        [[budgets.step_time]]
        max = "960 us"
        [[budgets.step_time]]
        rank = "[!1]"
        max = "920 us"
    """
    result = judge(traces, text)
    assert [(verdict.budget, verdict.status) for verdict in result.verdicts] == [
        ("step_time <= 960 us", "pass"),
        ("step_time <= 920 us of rank [!1]", "pass"),
    ]
    assert judge(traces, text.replace("960", "945")).exit_code == 1


def test_steps_that_a_pattern_leaves_out_are_not_judged(tmp_path: Path) -> None:
    source = write_steps(tmp_path / "t.json", slow={3: 300.0})
    assert judge(source, "", "worst step_time <= 1 ms").exit_code == 1
    text = """
        [budgets.step_time]
        max = "1 ms"
        aggregate = "worst"
        step = "[!6]"
    """
    [verdict] = judge(source, text).verdicts
    assert (verdict.status, verdict.samples, verdict.subject.step) == ("pass", 6, "[!6]")


def test_ranges_are_judged_by_their_occurrences(tmp_path: Path) -> None:
    source = write_steps(tmp_path / "t.json", ranges=True)
    verdict = only(judge(source, "[budgets.idle_time]\nmax = '1 ms'\nrange = 'for*'"))
    assert (verdict.status, verdict.subject.scope, verdict.samples) == ("pass", "forward", 8)
    missing = only(judge(source, "[budgets.idle_time]\nmax = '1 ms'\nrange = 'back*'"))
    assert (missing.status, missing.message) == ("unknown", "idle_time is unknown: there is no whole range back*.")


def test_skipped_steps_are_not_judged(tmp_path: Path) -> None:
    source = write_steps(tmp_path / "t.json", slow={0: 200.0, 1: 200.0})
    assert judge(source, "", "worst step_time <= 1 ms").exit_code == 1
    assert judge(source, "skip_steps = 2", "worst step_time <= 1 ms").exit_code == 1
    assert judge(source, "skip_steps = 2\n[budgets.step_time]\nmax = '1 ms'\naggregate = 'worst'").exit_code == 0
    verdict = only(judge(source, "[budgets.step_time]\nmax = '1 ms'\nskip_steps = 8"))
    assert (verdict.status, "no step is left" in verdict.message) == ("unknown", True)


def test_a_warning_does_not_fail_but_where_it_is_asked_to(trace: str, tmp_path: Path) -> None:
    text = "[budgets.step_time]\nmax = '1 us'\nlevel = 'warn'"
    assert judge(trace, text).exit_code == 0
    assert judge(trace, text, fail_level="warn").exit_code == 1
    file = tmp_path / "c.toml"
    file.write_text(text)
    assert main(["check", trace, "--config", str(file)]) == 0
    assert main(["check", trace, "--config", str(file), "--fail-level", "warn"]) == 1


@cache
def offload() -> Report:
    return read_report([OFFLOAD, DDP_RANK])


@given(
    metric=st.sampled_from(sorted(METRICS)),
    aggregate=st.sampled_from(["median", "mean", "worst", "p90"]),
    ranks=st.sampled_from(["worst", "each"]),
    limit=st.floats(0, 1e9),
    room=st.floats(0, 1e9),
)
def test_a_looser_limit_never_fails_what_a_tighter_one_passes(
    metric: str, aggregate: str, ranks: Ranks, limit: float, room: float
) -> None:
    least = METRICS[metric].more_is_better

    def judged(bound: float) -> CheckResult:
        budget = Budget(metric=metric, bound=bound, aggregate=aggregate, ranks=ranks, allow_missing=True)
        limited = replace(budget, limit="min") if least else budget
        return check(offload(), Settings(budgets=(limited,)), today=TODAY)

    tight = judged(limit)
    loose = judged(limit - room if least else limit + room)
    assert loose.exit_code <= tight.exit_code
    for verdict in tight.verdicts:
        if verdict.value is not None and verdict.limit is not None:
            kept = verdict.value >= verdict.limit if least else verdict.value <= verdict.limit
            assert (verdict.status == "pass") == kept
            assert bool(verdict.reasons) <= (verdict.status == "fail")


# -- Forbidden rules


def test_a_forbidden_rule_fails_with_its_finding() -> None:
    result = judge(OFFLOAD, "forbid = ['same-stream', 'pageable-memory']")
    failed, passed = result.verdicts
    assert (failed.metric, failed.status, failed.value, failed.limit) == ("same-stream", "fail", 1, 0)
    [reason] = failed.reasons
    [finding] = [finding for finding in read_report([OFFLOAD]).findings if finding.rule == "same-stream"]
    assert reason.time_ns == finding.mean_cost_ns
    assert (reason.rule, reason.op, reason.call) == ("same-stream", "aten::copy_", "cudaMemcpyAsync")
    assert (passed.metric, passed.status) == ("pageable-memory", "pass")


def test_a_forbidden_rule_names_the_rank_and_gives_the_largest_first(tmp_path: Path) -> None:
    traces = [
        write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=3, copy_us=copy_us)
        for rank, copy_us in enumerate((200, 400, 0))
    ]
    verdict = only(judge(traces, "forbid = ['same-stream']"))
    assert (verdict.status, verdict.value, verdict.subject.rank) == ("fail", 2, 1)
    assert verdict.message == ("There are 2 findings of same-stream; the largest costs 400 us a step, on rank 1.")
    assert [reason.title[:8] for reason in verdict.reasons] == ["rank 1: ", "rank 0: "]
    first = only(judge(write_steps(tmp_path / "one.json", rank=0), "forbid = ['same-stream']"))
    assert first.message == "There is 1 finding of same-stream, which costs 200 us a step."


def test_absent_ranks_are_warned_of_beside_a_failure(tmp_path: Path) -> None:
    source = write_steps(tmp_path / "t.json", rank=0, world_size=11)
    result = judge(source, "", "step_time <= 1 us")
    assert result.outcome == "fail"
    assert result.warnings[0] == "rank 1: its trace was not given, and the job had 11 ranks."
    assert result.warnings[8:] == ("2 more ranks were not given.",)
    many = write_steps(tmp_path / "many.json", rank=0, world_size=1000)
    assert judge(many).warnings[8:] == ("At least 72 more ranks were not given.",)


@pytest.mark.parametrize(("rank", "message"), [(None, "name no rank"), (0, "are all of rank 0")])
def test_traces_that_hardly_belong_together_are_warned_of(rank: int | None, message: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {} if rank is None else {"rank": rank, "world_size": 1}
    first, second = traces = [write_steps(tmp_path / name, **options) for name in ("a.json", "b.json")]
    rest = "and are judged as one job; check traces of different jobs separately."
    assert judge(traces).warnings == (f"{first} and {second} {message}, {rest}",)
    assert judge(first).warnings == ()


def test_one_reason_for_several_rules_is_reported_once(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(trace)
    path.write_bytes(path.read_bytes()[:-400])
    assert main(["check", trace, "--forbid", "pageable-memory", "--forbid", "tiny-copies"]) == 3
    out = " ".join(capsys.readouterr().out.split())
    assert out.count("the file is cut") == 1
    assert "unknown 2 rules" in out
    assert "pageable-memory and tiny-copies: the file is cut" in out


def test_budgets_of_one_name_and_value_are_reported_each(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    budget = "step_time <= 1 us"
    assert main(["check", trace, "--budget", budget, "--budget", budget]) == 1
    out = capsys.readouterr().out
    assert out.count(f"FAIL {budget}") == 2
    assert "2 rules" not in out


def test_a_program_without_a_gpu_is_held_to_its_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cpu.json"
    loading = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = [
        {"ph": "X", "cat": "user_annotation", "name": name, "ts": 100 * step + at, "dur": length, "pid": 1, "tid": 1}
        for step in range(6)
        for name, at, length in ((f"ProfilerStep#{step}", 0, 100), (loading, 10, 40))
    ]
    path.write_text(json.dumps({"traceEvents": events}))
    assert main(["check", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "host_loading_pct is 40%, but at most 15% is allowed; mean of 6 steps." in out
    warning = sum(rule.severity != "info" for rule in RULES.values())
    assert f"unknown {warning} rules" in out and out.count("no GPU op can be judged") == 1


def test_a_reason_names_the_line_where_the_trace_has_stacks() -> None:
    reasons = [reason for verdict in judge(STACKS, "", "idle_time <= 1 us").verdicts for reason in verdict.reasons]
    assert any(reason.where and "known_causes.py" in reason.where for reason in reasons)


def test_a_wait_that_no_copy_makes_is_not_blamed_on_pageable_memory() -> None:
    """The loss is read by `.item()`, whose wait is too short for a finding; pageable copies have one."""
    verdict = only(judge("traces/further/training/naive.json.gz", "", "idle_pct <= 1%"))
    rules = {reason.cause: reason.rule for reason in verdict.reasons}
    assert rules["host-staging"] == "pageable-memory" and rules["host-sync"] is None
    [advice] = [reason.advice for reason in verdict.reasons if reason.cause == "host-sync"]
    assert ".item()" in advice


def test_information_is_not_a_failure_but_of_a_rule_that_gives_nothing_else() -> None:
    two = "traces/laboratory/stream_matmul/big_two_streams.trace.json.gz"
    side = "traces/laboratory/forward_backward/large_backward_under_side_stream.trace.json.gz"
    assert judge(two, "forbid = ['streams-without-overlap']").exit_code == 0
    assert judge(side, "forbid = ['stream-without-work']").exit_code == 1


# -- exceptions

ACCEPTED = """
[budgets]
step_time.max = "100 us"
[[exceptions]]
budget = "step_time"
reason = "The new model."
until = 2030-01-15
"""


def test_an_exception_holds_until_its_last_day(trace: str) -> None:
    verdict = only(judge(trace, ACCEPTED))
    assert (verdict.status, verdict.exception) == ("accepted", "Accepted until 2030-01-15: The new model.")
    assert verdict.message.endswith("Accepted until 2030-01-15: The new model.")
    assert judge(trace, ACCEPTED).exit_code == 0
    late = judge(trace, ACCEPTED, today=datetime.date(2030, 1, 16))
    assert late.exit_code == 1
    assert only(late).exception == "Its exception ended on 2030-01-15: The new model."


def test_an_exception_of_one_rank_leaves_the_others(tmp_path: Path) -> None:
    traces = [write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=2) for rank in (0, 1)]
    text = f"{ACCEPTED}rank = 0\n"
    verdict = only(judge(traces, text))
    assert (verdict.status, verdict.subject.rank) == ("fail", 1)
    assert [part.status for part in verdict.parts] == ["accepted", "fail"]
    assert only(judge(traces, text.replace("rank = 0", "rank = '*'"))).status == "accepted"


def test_an_exception_of_a_rule(trace: str) -> None:
    text = "forbid = ['same-stream']\n[[exceptions]]\nrule = 'same-*'\nreason = 'x'\nuntil = 2030-01-15\n"
    assert only(judge(OFFLOAD, text)).status == "accepted"


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        (('"step_time"', '"idle_time"'), "matches nothing that was judged; remove it."),
        (('"100 us"', '"1 s"'), "is not needed, because nothing fails; remove it."),
    ],
)
def test_an_exception_without_use_is_reported(changes: tuple[str, str], note: str, trace: str) -> None:
    # The budget's own key has no quotes, so that only the exception or the limit changes.
    [warning] = judge(trace, ACCEPTED.replace(*changes)).warnings
    assert warning.startswith("test.toml: exceptions[0]: the exception for ")
    assert warning.endswith(note)


def test_an_exception_does_not_excuse_what_is_unknown(trace: str) -> None:
    text = ACCEPTED.replace("step_time", "exposed_comm_time")
    assert judge(trace, text).exit_code == 3


# -- the command


def test_the_nearest_configuration_is_used(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "overlapscope.toml").write_text("[budgets]\nstep_time.max = '1 us'\n")
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(inner)
    assert main(["check", trace]) == 1
    assert main(["check", trace, "--budget", "idle_pct <= 50%"]) == 1
    (inner / "pyproject.toml").write_text("[tool.overlapscope]\nforbid = ['pageable-memory']\n")
    assert main(["check", trace]) == 0


def test_without_budgets_the_verdict_and_all_warnings_are_judged(tmp_path: Path) -> None:
    bad = judge(write_steps(tmp_path / "bad.json"))
    assert {verdict.metric for verdict in bad.verdicts if verdict.status == "fail"} == {
        "verdict",
        "same-stream",
        "python",
    }
    good = judge(write_steps(tmp_path / "good.json", hidden=True, idle_us=10))
    assert good.exit_code == 0
    assert {verdict.metric for verdict in good.verdicts} == {"verdict"} | {
        rule.id for rule in RULES.values() if rule.severity != "info"
    }


def test_formats_go_to_files_and_one_to_stdout(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    out.write_text("old")
    args = ["check", trace, "--budget", "step_time <= 1 us", "--format", f"json:{out}", "--format", "text"]
    assert main([*args, "--format", f"text:{tmp_path / 'out.txt'}"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("The budget failed")
    assert f"Wrote {out}" in captured.err
    assert json.loads(out.read_text())["outcome"] == "fail"
    assert "\nFAIL step_time <= 1 us\n" in (tmp_path / "out.txt").read_text()


def test_json_matches_its_published_schema(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "check"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert published == json.loads(json.dumps(schema_of("check")))
    for args in (["--budget", "step_time <= 1 us"], [], ["--budget", "exposed_comm_pct <= 5%"]):
        main(["check", trace, *args, "--format", "json"])
        validate(json.loads(capsys.readouterr().out), published)


def test_the_step_summary_is_appended(trace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert main(["check", trace, "--budget", "step_time <= 1 us", "--format", "github"]) == 1
    text = summary.read_text()
    assert text.startswith("before\n") and "step\\_time" in text
    assert main(["check", trace, "--budget", "step_time <= 1 us"]) == 1
    assert summary.read_text() == text


def test_warnings_go_to_stderr(trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.toml"
    file.write_text("[[exceptions]]\nbudget = 'x'\nreason = 'x'\nuntil = 2030-01-01\n")
    main(["check", trace, "--config", str(file)])
    captured = capsys.readouterr()
    place = f"overlapscope: warning: {file}: exceptions[0]"
    assert captured.err == f"{place}: the exception for x matches nothing that was judged; remove it.\n"


@pytest.mark.parametrize("asked", ["step_time", "step_time <= 1 us", "step_*"])
def test_explain_tells_all_about_a_budget(asked: str, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, "--budget", "step_time <= 1 us", "--explain", asked]) == 1
    out = capsys.readouterr().out
    for part in (
        "step_time: length of the step on the device",
        "--budget 'step_time <= 1 us'",
        "the mean of the steps, of the worst rank and device",
        "ProfilerStep#9",
        "899.9 us",
        "exposed copy, same-stream: 200 us a step on average",
    ):
        assert part in out


def test_explain_of_what_is_not_a_budget_is_reported(trace: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", trace, "--budget", "step_time <= 1 us", "--explain", "steptime"]) == 2
    assert "there is no budget 'steptime' (did you mean 'step_time'?); budgets: step_time <= 1 us." in (
        capsys.readouterr().err
    )


def test_a_report_is_checked_as_its_traces_are(trace: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["analyze", trace, "--format", "json", "--output", str(report)]) == 0
    budgets = ("step_time <= 1 us", "h2d copy_bandwidth >= 90 GB/s")
    assert judge(str(report), "", *budgets) == judge(trace, "", *budgets)


@pytest.mark.parametrize("how", [[], ["--explain", "*"], ["--format", "github"]])
def test_hostile_names_do_no_harm(how: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "a\x1b[31mRED\x1b]0;t\x07[bold]b[/bold]\n# h\r\u202e"
    source = Path(write_steps(tmp_path / "x\x1b[31m.json", ranges=True))
    text = source.read_text()
    for name in ("forward", "gemm", "aten::mm", "aten::copy_", "GPU A"):
        text = text.replace(json.dumps(name), json.dumps(hostile))
    source.write_text(text)
    config_file = tmp_path / "c.toml"
    config_file.write_text(
        "[budgets]\nstep_time.max = '1 us'\n[[budgets.idle_time]]\nmax = '1 us'\nrange = '*'\n"
        "[[budgets.idle_time]]\nmax = '1 us'\nname = 'a\\u001b[31m'\n".replace("'a\\u001b[31m'", '"a\\u001b[31m"')
    )
    other = write_steps(tmp_path / "other.json")
    base = tmp_path / "base.json"
    assert main(["check", str(source), "--write-baseline", "--baseline", str(base), "--config", str(config_file)]) == 0
    main(["check", str(source), "--config", str(config_file), "--baseline", other, *how])
    captured = capsys.readouterr()
    for printed in (captured.out, captured.err):
        assert all(character == "\n" or character.isprintable() for character in printed)

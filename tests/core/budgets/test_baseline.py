"""Tests of baselines and of budgets that compare with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.average import judged_steps
from overlapscope.budgets import baseline as baselines
from overlapscope.budgets import config
from overlapscope.budgets.baseline import (
    Baseline,
    BaselineDevice,
    BaselineSeries,
    from_json,
    of,
    to_json,
)
from overlapscope.budgets.check import check
from overlapscope.budgets.formats import openmetrics
from overlapscope.budgets.judge import judge
from overlapscope.budgets.places import find_places, of_steps, series
from overlapscope.budgets.settings import DEFAULT_RELATIVE, Budget, Settings
from overlapscope.budgets.verdicts import BudgetVerdict, CheckResult
from overlapscope.catalog.measures import CAUSES_OF, DIRECTIONS, METRICS
from overlapscope.commands import main
from overlapscope.commands.schema import schema_of
from overlapscope.compare.doubts import ProgramIdentity, other_program, program_of
from overlapscope.errors import UnreadableTrace, UsageError
from overlapscope.inputs import read_report
from overlapscope.report.model import Report
from overlapscope.trace.model import TraceOrigin
from tests.support.recordings import report_of
from tests.support.schemas import validate
from tests.support.stepped_traces import write_steps

OFFLOAD = "traces/laboratory/offload_pipeline/two_streams.trace.json.gz"
DDP = "traces/laboratory/ddp_training/ddp.traces"


@pytest.fixture
def stored(tmp_path: Path) -> Baseline:
    """Baseline of eight steps of 900 us: 600 us of compute, 200 us of exposed copies, 100 us idle."""
    return of(read_report([write_steps(tmp_path / "before.json")]))


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Report of twelve steps, two of which are slower."""
    return read_report([write_steps(tmp_path_factory.mktemp("uneven") / "t.json", 12, slow={3: 90.0, 7: 300.0})])


def against(stored: Baseline, source: str, *budgets: str, **changes: Any) -> CheckResult:
    settings = Settings(budgets=tuple(map(config.expression, budgets)))
    return check(read_report([source]), replace(settings, **changes), baseline=stored)


def only(result: CheckResult) -> BudgetVerdict:
    [verdict] = result.verdicts
    return verdict


# -- the file


@pytest.mark.parametrize("source", [OFFLOAD, DDP, "traces/gpt2_train.json.gz"])
def test_a_baseline_can_be_read_back(source: str) -> None:
    baseline = of(read_report([source]), ranges=["*"])
    assert from_json(to_json(baseline), "x") == baseline


def test_the_file_is_sorted_with_a_line_for_each_series(stored: Baseline) -> None:
    data = to_json(stored)
    assert data == to_json(from_json(data, "x"))
    content = json.loads(data)
    assert next(iter(content)) == "kind"
    content.pop("kind")
    assert json.dumps(content) == json.dumps(content, sort_keys=True)
    lines = data.decode().splitlines()
    of_series = [json.loads(line.rstrip(",")) for line in lines if '"values"' in line]
    assert of_series == content["series"]
    assert [series["length"] for series in of_series] == sorted(series["length"] for series in of_series)
    assert max(map(len, lines)) < 500
    assert data.endswith(b"}\n")


def test_it_matches_its_published_schema(stored: Baseline, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "baseline"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert published == json.loads(json.dumps(schema_of("baseline")))
    validate(json.loads(to_json(stored)), published)


def test_it_holds_the_figures_of_every_step(tmp_path: Path) -> None:
    report = read_report([DDP])
    baseline = of(report)
    for trace in report.traces:
        for device in trace.devices:
            mine = baseline.device_for(trace.rank, device.device, only=False)
            assert mine is not None
            for skip in (0, 1, 2):
                samples = of_steps(device, skip=skip)
                read = baseline.samples(mine, "steps", skip=skip)
                assert read is not None
                for metric in (metric for metric in METRICS.values() if not metric.of_host):
                    for direction in (None, *DIRECTIONS) if metric.needs == "copies" else (None,):
                        assert series(read, metric, direction) == series(samples, metric, direction)
                    for part in CAUSES_OF.get(metric.metric, {}).values():
                        assert series(read, part, None) == series(samples, part, None)


def test_some_steps_are_compared_with_the_same_steps(uneven: Report) -> None:
    budget = Budget(metric="step_time", limit="max_increase", bound=5, step="ProfilerStep#[3-6]")
    [place] = find_places(uneven, budget, {})
    judged = judge(budget, place, of(uneven), only=True)
    assert judged.before is not None and judged.before.names == judged.samples.names
    assert judged.known == len(judged.samples) == 4 and judged.value == judged.baseline


@given(st.lists(st.integers(1, 10**9), max_size=12), st.integers(0, 3), st.integers(0, 14))
def test_it_chooses_the_steps_that_the_report_would(spans: list[int], cut: int, skip: int) -> None:
    """Warm-up and skipped steps are left out alike, whether they come from a trace or from a file."""
    [device] = report_of(Path(OFFLOAD)).devices
    import msgspec

    steps = [msgspec.structs.replace(device.steps[0], span_ns=span, partial=False) for span in spans]
    cut_off = [msgspec.structs.replace(device.steps[0], partial=True)] * cut
    whole = msgspec.structs.replace(device, steps=(*cut_off, *steps), per_step=None)
    mine = BaselineDevice(device=0, first=cut, steps=tuple(str(span) for span in spans))
    line = BaselineSeries(device=0, length="span", scope="steps", typical="", values=tuple(spans))
    environment = report_of(Path(OFFLOAD)).traces[0].environment
    baseline = Baseline(environment=environment, devices=(mine,), lengths=("span",), series=(line,))
    kept = baseline.samples(mine, "steps", skip=skip)
    assert kept is not None
    assert kept.facts["span"].tolist() == [whole.steps[number].span_ns for number in judged_steps(whole, skip=skip)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("900 us", "800 us"), "was changed after it was written (its digest does not match); write it again with"),
        (("[900000, ", "[900001, "), "was changed after it was written"),
        (('"GPU A"', '"GPU B"'), "was changed after it was written"),
        (('"digest": "', '"digest": "0'), "was changed after it was written"),
        (('"digest"', '"digset"'), "is not a baseline (Object "),
        (
            ('"schema_version": 1', '"schema_version": 9'),
            "got schema version 9",
        ),
        (('"tool"', '"tol"'), "is not a baseline (Object contains unknown field `tol`)"),
        (("{", "["), "is not a baseline"),
    ],
)
def test_a_file_that_was_changed_is_refused(change: tuple[str, str], message: str, stored: Baseline) -> None:
    data = to_json(stored).decode()
    assert change[0] in data
    with pytest.raises(UnreadableTrace) as raised:
        from_json(data.replace(*change).encode(), "file.json")
    assert str(raised.value).startswith("file.json: ")
    assert message in str(raised.value)


def test_a_baseline_of_a_prediction_is_refused(stored: Baseline) -> None:
    environment = replace(stored.environment, flags=stored.environment.flags | {"predicted": True})
    with pytest.raises(UnreadableTrace, match="is of a prediction instead of a recording; write it again"):
        from_json(to_json(replace(stored, environment=environment)), "file.json")


def test_lines_that_do_not_belong_together_are_refused(stored: Baseline) -> None:
    import msgspec

    line = next(series for series in stored.series if series.length == "span")
    for changed, message in (
        (msgspec.structs.replace(line, length="spann"), "there is no such length; write it again"),
        (msgspec.structs.replace(line, device=1), "there is no such device; write it again"),
        (msgspec.structs.replace(line, values=line.values[1:]), "has 7 values for 8 steps; write it again"),
        (msgspec.structs.replace(line, values=(-1, *line.values[1:])), "Expected `int` >= 0"),
        (msgspec.structs.replace(line, values=(None, *line.values[1:])), "has an impossible value; write it again"),
        (msgspec.structs.replace(line, length="idle"), "device 0 has steps without a span"),
    ):
        series = tuple(changed if each is line else each for each in stored.series)
        with pytest.raises(UnreadableTrace, match=message):
            from_json(to_json(msgspec.structs.replace(stored, series=series)), "file.json")


def test_a_length_that_was_not_measured_is_unknown_and_one_without_a_line_is_zero(
    stored: Baseline, tmp_path: Path
) -> None:
    trace, series = write_steps(tmp_path / "t.json"), tuple(s for s in stored.series if s.length != "exposed_copy")
    lengths = tuple(length for length in stored.lengths if length != "exposed_copy")
    without = replace(stored, lengths=lengths, series=series)
    verdict = only(against(without, trace, "exposed_copy_time increase <= 500%"))
    assert verdict.status == "unknown"
    assert "not enough data: the baseline has 0 steps to compare" in verdict.message
    verdict = only(against(replace(stored, series=series), trace, "exposed_copy_time increase <= 500%"))
    assert (verdict.status, verdict.baseline) == ("fail", 0.0)


def test_how_a_file_is_laid_out_changes_nothing(stored: Baseline) -> None:
    data = to_json(stored)
    assert (
        from_json(data.replace(b"\n", b"\r\n"), "x") == from_json(json.dumps(json.loads(data)).encode(), "x") == stored
    )


def test_what_cannot_serve_as_a_baseline_is_refused(tmp_path: Path) -> None:
    cut = Path(write_steps(tmp_path / "cut.json"))
    cut.write_bytes(cut.read_bytes()[:-400])
    with pytest.raises(UsageError, match="cannot be a baseline, because the file is cut"):
        of(read_report([cut]))
    empty = tmp_path / "empty.json"
    empty.write_text('{"schemaVersion": 1, "traceEvents": []}')
    with pytest.raises(UsageError, match="is unusable, so it cannot be a baseline"):
        of(read_report([empty]))
    twice = [write_steps(tmp_path / name) for name in ("a.json", "b.json")]
    with pytest.raises(UsageError, match="is the second trace without a rank; a baseline belongs to one job"):
        of(read_report(twice))


# -- the command


def test_write_and_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, file = write_steps(tmp_path / "t.json", ranges=True), tmp_path / "baseline.json"
    settings_file = tmp_path / "c.toml"
    settings_file.write_text("[budgets.idle_time]\nmax_increase = '10%'\nrange = 'forward'\n")
    args = ["--config", str(settings_file)]
    assert main(["check", trace, "--write-baseline", "--baseline", str(file), *args]) == 0
    assert capsys.readouterr().err == f"Wrote {file}\n"
    assert main(["check", trace, "--write-baseline", "--baseline", str(file)]) == 2
    assert "already exists; use --force" in capsys.readouterr().err
    text = file.read_text()
    for part in ('"GPU A"', '"12.8"', '"span"', '"900 us"', '"forward"', '"exposed-copy:same-stream"'):
        assert part in text
    assert main(["check", trace, "--baseline", str(file), *args]) == 0
    assert "idle_time increase <= 10% in forward" in capsys.readouterr().out
    assert main(["check", trace, "--baseline", trace, *args]) == 0
    report = tmp_path / "report.json"
    assert main(["analyze", trace, "--format", "json", "-o", str(report)]) == 0
    assert main(["check", trace, "--baseline", str(report), *args]) == 0


def test_a_baseline_has_a_place_beside_the_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_steps(tmp_path / "t.json")
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(inner)
    project = tmp_path / "pyproject.toml"
    project.write_text("[tool.overlapscope]\n")
    assert main(["check", trace, "--write-baseline"]) == 0
    file = tmp_path / "overlap-baseline.json"
    assert capsys.readouterr().err.splitlines() == [
        f"Wrote {file}",
        f'overlapscope: `baseline = "overlap-baseline.json"` in {project} makes `overlapscope check` compare with it.',
    ]
    project.write_text('[tool.overlapscope]\nbaseline = "overlap-baseline.json"\n')
    assert main(["check", trace]) == 0
    assert "pass  step_time increase <= 5%" in capsys.readouterr().out
    assert main(["check", trace, "--write-baseline"]) == 2
    assert main(["check", trace, "--write-baseline", "--force"]) == 0
    file.unlink()
    capsys.readouterr()
    assert main(["check", trace]) == 2
    assert f"{file}: there is no such baseline, which {project} names" in capsys.readouterr().err
    assert main(["check", trace, "--baseline", trace]) == 0


@pytest.mark.parametrize("option", [["--format", "json"], ["--explain", "step_time"], ["--history"]])
def test_where_nothing_is_checked_options_of_a_check_are_refused(
    option: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_steps(tmp_path / "t.json")
    assert main(["check", trace, "--write-baseline", "--baseline", str(tmp_path / "b.json"), *option]) == 2
    assert f"checks nothing; leave out {option[0]}." in capsys.readouterr().err
    assert not (tmp_path / "b.json").exists()


def test_without_a_baseline_all_but_changes_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_steps(tmp_path / "t.json")
    change, kept, broken = (
        ["--budget", text] for text in ("step_time increase <= 5%", "idle_pct <= 90%", "idle_pct <= 1%")
    )
    assert main(["check", trace, *change, *kept]) == 3
    captured = capsys.readouterr()
    assert captured.out.startswith("1 of 2 budgets could not be compared with a baseline, because there is none:")
    assert "skipped  step_time increase <= 5%" in captured.out and "pass     idle_pct <= 90%" in captured.out
    assert captured.err.count("There is no baseline, so budgets on a change are not compared.") == 1
    assert main(["check", trace, *change, *change]) == 3
    assert capsys.readouterr().out.startswith("Nothing could be compared with a baseline, because there is none.")
    assert main(["check", trace, *change, *broken]) == 1
    assert "FAIL idle_pct <= 1%" in capsys.readouterr().out


def test_an_explanation_lists_the_steps_of_what_is_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write_steps(tmp_path / "t.json")
    assert main(["check", trace, "--budget", "step_time increase <= 5%", "--explain", "step_time"]) == 3
    assert "\nProfilerStep#9  899.9 us\n1 step left out" in capsys.readouterr().out


def test_a_baseline_of_few_steps_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = write_steps(tmp_path / "t.json", 4)
    assert main(["check", trace, "--write-baseline", "--baseline", str(tmp_path / "b.json")]) == 0
    assert "warning: device 0 has 3 steps to compare; relative budgets need 4." in capsys.readouterr().err


# -- relative budgets


@pytest.mark.parametrize("aggregate", ["median", "mean", "worst", "p90"])
@pytest.mark.parametrize("metric", METRICS.values(), ids=lambda metric: metric.metric)
def test_a_trace_never_fails_against_itself(metric: Any, aggregate: str, uneven: Report) -> None:
    word = "decrease" if metric.more_is_better else "increase"
    settings = Settings(budgets=(config.expression(f"{aggregate} {metric.metric} {word} <= 0%"),))
    verdict = only(check(uneven, settings, baseline=of(uneven)))
    assert verdict.status in ("pass", "unknown")
    if verdict.status == "pass":
        assert (verdict.change_low, verdict.change_high) == pytest.approx((0, 0), abs=1e-3)
        assert verdict.value == pytest.approx(verdict.baseline, abs=1e-3)


def test_a_change_beyond_limit_noise_and_chance_fails_and_says_where(stored: Baseline, tmp_path: Path) -> None:
    verdict = only(against(stored, write_steps(tmp_path / "t.json", copy_us=260), "exposed_copy_time increase <= 10%"))
    assert (verdict.status, verdict.value, verdict.baseline) == ("fail", 260_000, 200_000)
    assert verdict.limit == 229_600
    assert verdict.message.startswith(
        "exposed_copy_time is 260 us, 30% more than the baseline's 200 us (at most 229.6 us is allowed, because up to "
        "29.6 us is noise)"
    )
    [reason] = verdict.reasons
    assert reason.title == "exposed copy, same-stream: 260 us a step on average, 60.0 us more than in the baseline"
    assert (reason.time_ns, reason.rule) == (60_000, "same-stream")


def test_more_compute_is_named_as_the_reason(stored: Baseline, tmp_path: Path) -> None:
    verdict = only(against(stored, write_steps(tmp_path / "t.json", compute_us=900), "step_time increase <= 5%"))
    assert verdict.status == "fail"
    assert verdict.reasons[0].title == "compute: 900 us a step on average, 300 us more than in the baseline"


def test_an_improvement_passes(stored: Baseline, tmp_path: Path) -> None:
    better = write_steps(tmp_path / "t.json", compute_us=300, copy_us=50, idle_us=20)
    assert check(read_report([better]), baseline=stored).exit_code == 0


def test_a_change_within_the_limit_passes(stored: Baseline, tmp_path: Path) -> None:
    slower = write_steps(tmp_path / "t.json", compute_us=630)
    assert only(against(stored, slower, "step_time increase <= 5%")).status == "pass"


def test_a_change_below_the_noise_floor_passes(stored: Baseline, tmp_path: Path) -> None:
    slower = write_steps(tmp_path / "t.json", compute_us=630)
    text = "[budgets.step_time]\nmax_increase = '1%'\nnoise_floor = '{}'"
    for floor, status in (("31 us", "pass"), ("29 us", "fail"), ("4%", "pass"), ("3%", "fail")):
        settings = config.from_mapping({"budgets": {"step_time": {"max_increase": "1%", "noise_floor": floor}}}, text)
        verdict = only(check(read_report([slower]), settings, baseline=stored))
        assert verdict.status == status
        assert verdict.value is not None and verdict.limit is not None
        assert (verdict.value <= verdict.limit) == (status == "pass")
        assert verdict.note == ("3.33% more, within noise" if status == "pass" else None)


def test_what_passes_within_noise_says_so_in_its_line(
    stored: Baseline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, after = tmp_path / "b.json", write_steps(tmp_path / "t.json", copy_us=220)
    file.write_bytes(to_json(stored))
    assert main(["check", after, "--baseline", str(file), "--budget", "exposed_copy_time increase <= 5%"]) == 0
    line = "pass exposed_copy_time increase <= 5% 220 us (10% more, within noise)"
    assert line in " ".join(capsys.readouterr().out.split())


def test_a_change_that_may_be_chance_passes(tmp_path: Path) -> None:
    wild = {number: 700.0 * (number % 2) for number in range(6)}
    before = of(read_report([write_steps(tmp_path / "a.json", 6, slow=wild)]))
    after = write_steps(tmp_path / "b.json", 6, slow={**wild, 0: 700.0})
    table = {"max_increase": "5%", "aggregate": "mean", "noise_floor": "1 us"}
    settings = config.from_mapping({"budgets": {"step_time": table}}, "x")
    verdict = only(check(read_report([after]), settings, baseline=before))
    assert verdict.status == "pass"
    assert "the steps vary so much that this may be chance" in verdict.message
    assert verdict.note is not None and verdict.note.endswith(" more, may be chance")
    # Comparing the two numbers must not suggest a failure.
    exposition = openmetrics(check(read_report([after]), settings, baseline=before))
    assert "overlapscope_budget_value_seconds{" in exposition
    assert "overlapscope_budget_limit_seconds{" not in exposition
    assert verdict.change_low is not None and verdict.change_low < 0


@pytest.mark.parametrize(("before", "after", "count"), [(4, 8, "the baseline has 3 steps"), (8, 4, "3 steps")])
def test_too_few_steps_are_not_enough_data(before: int, after: int, count: str, tmp_path: Path) -> None:
    baseline = of(read_report([write_steps(tmp_path / "a.json", before)]))
    verdict = only(against(baseline, write_steps(tmp_path / "b.json", after), "step_time increase <= 5%"))
    assert (verdict.status, verdict.message) == (
        "unknown",
        f"step_time is unknown: not enough data: {count} to compare; 4 are needed.",
    )


def test_less_bandwidth_fails(stored: Baseline, tmp_path: Path) -> None:
    slow = write_steps(tmp_path / "t.json", nbytes=5_000_000)
    verdict = only(against(stored, slow, "copy_bandwidth decrease <= 10%"))
    assert (verdict.status, verdict.value, verdict.baseline, verdict.more_is_better) == ("fail", 25, 50, True)
    assert verdict.reasons[0].title.startswith("h2d pinned to device, stream 7: 8 copies, 40 MB, 25.0 GB/s")


def test_percentages_change_in_points(stored: Baseline, tmp_path: Path) -> None:
    hidden = of(read_report([write_steps(tmp_path / "a.json", hidden=True)]))
    verdict = only(against(hidden, write_steps(tmp_path / "b.json"), "efficiency_pct decrease <= 5%"))
    assert (verdict.status, verdict.baseline, verdict.value) == ("fail", 100, 0)


# -- Defaults and missing data


def test_without_budgets_the_default_metrics_are_compared(stored: Baseline, tmp_path: Path) -> None:
    result = check(read_report([write_steps(tmp_path / "t.json")]), baseline=stored)
    expected = {budget.title for budget in DEFAULT_RELATIVE}
    # Communication is on neither side, so it is not judged.
    assert {verdict.budget for verdict in result.verdicts} == expected - {"exposed_comm_time increase <= 10%"}


def test_copies_that_are_new_are_a_change(tmp_path: Path) -> None:
    without = of(read_report([write_steps(tmp_path / "a.json", copy_us=0)]))
    result = check(read_report([write_steps(tmp_path / "b.json")]), baseline=without)
    statuses = {verdict.metric: verdict.status for verdict in result.verdicts}
    assert statuses["exposed_copy_time"] == "fail"


def test_copies_that_are_gone_are_unknown(stored: Baseline, tmp_path: Path) -> None:
    result = check(read_report([write_steps(tmp_path / "b.json", copy_us=0)]), baseline=stored)
    statuses = {verdict.metric: verdict.status for verdict in result.verdicts}
    assert statuses["exposed_copy_time"] == "unknown"


def test_a_rank_that_the_baseline_has_is_missed(tmp_path: Path) -> None:
    traces = [write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=2) for rank in (0, 1)]
    baseline = of(read_report(traces))
    assert check(read_report(traces), baseline=baseline).exit_code == 0
    result = check(read_report(traces[:1]), baseline=baseline)
    assert result.exit_code == 3
    assert any("rank 1" in verdict.message for verdict in result.verdicts)


def test_a_rank_that_the_baseline_lacks_is_unknown(tmp_path: Path) -> None:
    traces = [write_steps(tmp_path / f"{rank}.json", rank=rank, world_size=2) for rank in (0, 1)]
    result = check(read_report(traces), baseline=of(read_report(traces[:1])))
    assert result.exit_code == 3
    assert any("the baseline has no such device" in verdict.message for verdict in result.verdicts)


# -- another program


def test_a_baseline_of_another_program_is_inconclusive_unless_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    naive, prefetched, other = (f"overlapscope/samples/{name}.json.gz" for name in _PROGRAMS)
    file = str(tmp_path / "baseline.json")
    assert main(["check", naive, "--write-baseline", "--baseline", file]) == 0
    budget = ["--budget", "step_time increase <= 100000%", "--budget", "idle_pct <= 100%"]
    assert main(["check", prefetched, "--baseline", file, *budget]) == 0
    capsys.readouterr()
    assert main(["check", other, "--baseline", file, *budget]) == 3
    assert "The baseline is of another program:" in capsys.readouterr().out.replace("\n", " ")
    assert main(["check", other, "--baseline", file, "--other-program", *budget]) == 0


_PROGRAMS = ("training_naive", "training_prefetched", "small_transformer")


@pytest.mark.parametrize(
    ("job", "kernels", "other"),
    [
        (None, {"gemm": 50.0, "new": 50.0}, False),
        (None, {"gemm": 40.0, "new": 60.0}, True),
        ("train", {"gemm": 20.0, "fused": 80.0}, False),
        ("train", {"fused": 100.0}, True),
        ("generate", {"gemm": 70.0, "attention": 30.0}, True),
        ("renamed", {"gemm": 90.0, "new": 10.0}, False),
        (None, {}, False),
    ],
)
def test_a_program_keeps_most_of_its_kernels_or_its_name(
    tmp_path: Path, job: str | None, kernels: dict[str, float], other: bool
) -> None:
    report = read_report([write_steps(tmp_path / "t.json")])
    named = replace(report.traces[0], origin=TraceOrigin(job="train"))
    before = ProgramIdentity(job=job, kernels=kernels)
    assert bool([*other_program(before, program_of([named]), "the baseline")]) is other


# -- another environment


def test_another_environment_skips_what_is_relative(stored: Baseline, tmp_path: Path) -> None:
    other = write_steps(tmp_path / "t.json", gpu="GPU B", compute_us=6000)
    result = against(stored, other, "step_time increase <= 5%", "idle_pct <= 90%")
    assert [(verdict.metric, verdict.status) for verdict in result.verdicts] == [
        ("step_time", "skipped"),
        ("idle_pct", "pass"),
    ]
    assert (result.exit_code, result.summary) == (
        3,
        "1 of 2 budgets could not be compared with the baseline: step_time increase <= 5%.",
    )
    allowed = {"budgets": {"step_time": {"max_increase": "5%"}, "idle_pct": {"max": "90%"}}, "allow_missing": True}
    assert check(read_report([other]), config.from_mapping(allowed, "settings"), baseline=stored).exit_code == 0
    [warning] = result.warnings
    assert warning.startswith("The baseline was made elsewhere (gpu GPU A, here GPU B)")


def test_where_nothing_is_left_to_judge_it_is_inconclusive(stored: Baseline, tmp_path: Path) -> None:
    other = write_steps(tmp_path / "t.json", cuda=13000)
    result = check(read_report([other]), baseline=stored)
    assert (result.exit_code, result.summary) == (3, "Nothing could be compared with the baseline.")


# -- properties


@given(
    before=st.lists(st.integers(500_000, 600_000), min_size=6, max_size=12),
    after=st.lists(st.integers(500_000, 600_000), min_size=6, max_size=12),
    limit=st.floats(0, 50),
)
def test_a_relative_budget_fails_only_for_a_change_that_counts(
    before: list[int], after: list[int], limit: float
) -> None:
    import msgspec

    report = report_of(Path(OFFLOAD))
    [device] = report.devices
    [trace] = report.traces

    def with_spans(spans: list[int]) -> Any:
        steps = tuple(msgspec.structs.replace(device.steps[0], name=f"s{n}", span_ns=ns) for n, ns in enumerate(spans))
        single = msgspec.structs.replace(
            device,
            steps=steps,
            per_step=None,
            copies=(),
            kernels=(),
            host_stalls=(),
        )
        return msgspec.structs.replace(report, traces=(msgspec.structs.replace(trace, devices=(single,)),))

    baseline = of(with_spans(before))
    budget = Budget(metric="step_time", limit="max_increase", bound=limit)
    [place] = find_places(with_spans(after), budget, {})
    judged = judge(budget, place, baseline, only=True)
    assert judged.value is not None and judged.limit is not None and judged.low is not None
    if judged.status == "fail":
        assert judged.value > judged.limit
        assert judged.low > 0
    elif judged.value > judged.limit:
        assert "chance" in judged.sentence and "chance" in judged.note
    assert baselines.doubts(baseline) == ()

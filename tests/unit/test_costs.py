"""Tests of findings' costs: by replay, compared with measurements of the fix, or else the bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import judged_windows
from overlapscope.prediction import overhead, predict
from overlapscope.prediction.gains import Savings
from overlapscope.prediction.interventions import parse
from overlapscope.report import findings as costing
from overlapscope.report import verdict
from overlapscope.report.findings import find_all
from overlapscope.report.model import build
from overlapscope.report.page import Page, section_of
from overlapscope.report.tables import cost, costs_note
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding
from overlapscope.rules.rule import Rule
from overlapscope.trace.model import Memory
from tests.support.recordings import analysis_of
from tests.support.rule_traces import blocking_uploads, uploads

DATA = Path(__file__).parents[2] / "traces"
SLOW_ON_THE_HOST = "laboratory/chunked_streams/breadth_first_8.trace"


def analysed(recording: str) -> TraceAnalysis:
    return analysis_of(DATA / f"{recording}.json.gz")


def findings(recording: str) -> dict[str, Finding]:
    return {finding.rule: finding for finding in find_all([analysed(recording)])}


def judged_ns(recording: str) -> int:
    """Return the time of the recording's judged steps."""
    (device,) = analysed(recording).devices
    windows = judged_windows(device)
    return int((windows.ends - windows.starts).sum())


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        ("same-stream", "offload_pipeline/one_stream", "offload_pipeline/three_streams"),
        ("one-way-copies", "offload_pipeline/one_stream", "offload_pipeline/three_streams"),
        ("same-stream", "kv_offload/on_demand", "kv_offload/prefetch"),
        ("pageable-memory", "kv_offload/pageable", "kv_offload/on_demand"),
        ("pageable-memory", "activation_offload/pageable", "activation_offload/pinned"),
        ("dispatch", "cuda_graph/eager", "cuda_graph/graph_replay"),
        ("blocking-copy", "pin_strategies/pinned_blocking", "pin_strategies/pinned_non_blocking"),
    ],
)
def test_a_finding_costs_what_the_fixed_program_took_less(rule: str, before: str, after: str) -> None:
    before, after = (f"laboratory/{name}.trace" for name in (before, after))
    finding = findings(before)[rule]
    assert finding.cost_from == "replay"
    saved = judged_ns(before) - judged_ns(after)
    assert finding.cost_ns == pytest.approx(saved, rel=0.12)
    # The recording's steps vary by more than the rest.
    assert abs(finding.cost_ns - saved) < 0.02 * judged_ns(before)


@pytest.mark.parametrize(
    ("rule", "recording"),
    [
        ("dispatch", "gpt2_train"),
        ("data-loading", "known_causes/data_loading"),
        ("pageable-memory", "laboratory/kv_offload/pageable.trace"),
    ],
)
def test_a_finding_saves_the_part_of_the_step_that_whatif_predicts(rule: str, recording: str) -> None:
    report = build([analysed(recording)])
    [finding] = (finding for finding in report.findings if finding.rule == rule)
    plain = report.devices[0].plain
    assert plain is not None and finding.cost_from == "replay"
    result = predict(analysed(recording).trace, finding.fix).result
    assert result.gain_ns is not None and result.baseline_step_ns == plain.step_ns
    for part, ns in (("low", finding.low_ns), ("value", finding.cost_ns), ("high", finding.high_ns)):
        assert ns / finding.steps == pytest.approx(max(0, getattr(result.gain_ns, part)), abs=2)


def test_a_replay_that_contradicts_what_explains_most_of_the_loss_does_not_make_a_finding_cheap() -> None:
    finding = findings("mixed_workloads/two_threads")["host-sync"]
    assert (finding.cost_ns, finding.cost_from) == (finding.bound_ns, "bound")
    assert "predicts that the fix saves nothing, though the finding explains most of the time" in finding.doubt
    assert "the most that is possible" in finding.doubt


@pytest.mark.parametrize("plain_step_ns", [None, 40_000_000])
def test_a_saving_larger_than_what_a_finding_explains_has_a_reason(plain_step_ns: int | None) -> None:
    findings = build([analysed("gpt2_train")], plain_step_ns=plain_step_ns).findings
    assert "dispatch" in {finding.rule for finding in findings}
    for finding in findings:
        assert finding.plain_bound_ns is not None
        exceeds = finding.cost_ns > costing.MORE * finding.spoken_bound_ns
        assert exceeds == finding.doubt.startswith("The fix saves more than the ")
        assert not exceeds or "may shorten what other findings explain" in finding.doubt


def test_bounds_and_what_fires_do_not_depend_on_the_replay() -> None:
    for recording in ("laboratory/offload_pipeline/one_stream.trace", SLOW_ON_THE_HOST):
        replayed = find_all([analysed(recording)])
        measured = find_all([analysed(recording)], replayed=False)
        assert {(f.rule, f.bound_ns) for f in replayed} == {(f.rule, f.bound_ns) for f in measured}
        assert all(finding.cost_ns == finding.bound_ns for finding in measured)
        assert all(finding.cost_from == "bound" for finding in measured)


def test_the_synchronize_at_the_findings_place_is_the_one_that_goes() -> None:
    finding = findings("known_causes/item_every_step")["host-sync"]
    assert (finding.cost_from, finding.fix) == ("replay", ("no-sync aten::_local_scalar_dense",))
    # The last step waits for nothing, and is not judged.
    assert finding.cost_ns == pytest.approx(finding.bound_ns, rel=0.05)


def test_a_step_alone_is_not_replayed() -> None:
    trace = analysed("known_causes/same_stream").trace
    (device,) = analyze_trace(trace).devices
    step = device.result.steps[1].name
    narrowed = find_all([analyze_trace(trace, step=step)], scope=step)
    assert narrowed
    assert all((finding.cost_from, finding.cost_ns) == ("bound", finding.bound_ns) for finding in narrowed)


@pytest.mark.afresh
def test_a_recording_of_very_many_ops_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "MOST_OPS", 10)
    finding = findings("known_causes/item_every_step")["host-sync"]
    assert (finding.cost_from, finding.cost_ns) == ("bound", finding.bound_ns)


def test_what_no_intervention_stands_for_costs_its_bound() -> None:
    queued = findings("known_causes/engine_busy")["late-prefetch"]
    (slow,) = (f for f in find_all([analyze_trace(uploads([0.3, 0.3, 0.3, 0.3, 2.0]))]) if f.rule == "slow-link")
    for finding in (queued, slow):
        assert (finding.cost_from, finding.cost_ns) == ("bound", finding.bound_ns)


def test_a_recording_without_launches_keeps_its_bounds() -> None:
    # The trace does not show what its ops waited for, so no replay explains it.
    trace = analysed("known_causes/same_stream").trace
    unlaunched = replace(trace.gpu_ops, launch=np.full(len(trace.gpu_ops), -1, np.int64))
    warned = [f for f in find_all([analyze_trace(replace(trace, gpu_ops=unlaunched))]) if f.bound_ns]
    assert warned
    assert all(finding.cost_from == "bound" for finding in warned)


@pytest.mark.parametrize("error", [IndexError, ValueError, ZeroDivisionError, MemoryError])
def test_a_replay_that_fails_does_not_cost_the_analysis(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Savings, fixes: object) -> int:
        raise error("unlike any trace seen so far")

    monkeypatch.setattr(Savings, "largest", fail)
    warned = [finding for finding in find_all([analyze_trace(blocking_uploads(Memory.PINNED))]) if finding.bound_ns]
    assert warned
    assert all((finding.cost_from, finding.cost_ns) == ("bound", finding.bound_ns) for finding in warned)


def test_views_say_how_a_cost_is_known() -> None:
    pages = {name: Page(build([analysed(name)])) for name in ("ddp/rank0", SLOW_ON_THE_HOST)}
    costs = {
        (name, finding.rule): cost(section_of(page, finding), finding)
        for name, page in pages.items()
        for finding in page.report.findings
    }
    assert costs["ddp/rank0", "dispatch"] == "saves about 3.30 ms a step (10.6%), 1.18 to 4.14 ms"
    assert costs["ddp/rank0", "exposed-comm"].startswith("saves at most 829 us a step (")
    assert costs[SLOW_ON_THE_HOST, "late-prefetch"] == "saves nothing by itself"
    assert costs[SLOW_ON_THE_HOST, "streams-without-overlap"] == ""
    (section,) = pages["ddp/rank0"].sections()
    assert "Fixing dispatch would save about 3.30 ms (10.6%)" in verdict.judge(section).text


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_fix_is_something_that_can_be_predicted(rule: Rule) -> None:
    for fix in rule.fixes:
        assert len(parse([change.replace("{call}", "cudaStreamSynchronize") for change in fix])) == len(fix)
        assert all(change.split()[0] in rule.cost for change in fix)
    assert not (rule.fixes and rule.severity == "info")


def test_a_wait_inside_an_op_is_taken_out_with_that_ops_others_alone() -> None:
    recording = "mixed_workloads/checkpoint_blocking"
    finding, savings = findings(recording)["host-sync"], Savings(analysed(recording).trace, 0)
    assert finding.where is not None and finding.where.op == "aten::copy_"
    fix = ("no-sync aten::copy_",)
    assert finding.fix == fix
    largest = savings.largest([fix])
    assert largest is not None
    part = finding.cost_ns / judged_ns(recording)
    assert largest.value == pytest.approx(part, rel=1e-3)
    assert largest.fix == fix
    other = savings.largest([(f"no-sync {finding.where.call}",)])
    assert other is None or other.value != pytest.approx(part, rel=1e-3)


def test_the_first_worker_of_a_loader_works_at_least_beside_the_steps() -> None:
    alone = findings("laboratory/dataloader/pinned0_nonblocking0_workers0.trace")["data-loading"]
    assert 0 < alone.low_ns < alone.cost_ns


def test_the_report_states_that_costs_by_replay_do_not_add_up() -> None:
    values = list(findings("laboratory/offload_pipeline/one_stream.trace").values())
    costly = [finding for finding in values if finding.bound_ns]
    assert len(costly) > 1 and "don't add them up" in costs_note(values)
    assert not costs_note(costly[:1])

"""Tests of what findings cost, and of what their fixes save by replay, compared with measurements of the fix."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope import prediction
from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import judged_windows
from overlapscope.prediction import outcomes as predicted_outcomes
from overlapscope.prediction.base import Base, prepare
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Choice, parse
from overlapscope.prediction.outcomes import Outcome, largest_gain, outcome
from overlapscope.prediction.predict import predict
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.report import tables, verdict
from overlapscope.report.model import build
from overlapscope.report.page import Page
from overlapscope.report.tables import findings_note
from overlapscope.report.verdict import cost
from overlapscope.rules import RULES
from overlapscope.rules import findings as costing
from overlapscope.rules.finding import Finding, Saving
from overlapscope.rules.findings import find_all
from overlapscope.rules.rule import Rule
from overlapscope.trace.model import Memory
from tests.support.recordings import analysis_of
from tests.support.rule_traces import blocking_uploads, uploads

DATA = Path(__file__).parents[3] / "traces"
SLOW_ON_THE_HOST = "laboratory/chunked_streams/breadth_first_8.trace"


def analysed(recording: str) -> TraceAnalysis:
    return analysis_of(DATA / f"{recording}.json.gz")


def findings(recording: str) -> dict[str, Finding]:
    return {finding.rule: finding for finding in find_all([analysed(recording)])}


def saving_of(finding: Finding) -> Saving:
    assert finding.saving is not None
    return finding.saving


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
def test_a_finding_saves_what_the_fixed_program_took_less(rule: str, before: str, after: str) -> None:
    before, after = (f"laboratory/{name}.trace" for name in (before, after))
    saved = judged_ns(before) - judged_ns(after)
    predicted = saving_of(findings(before)[rule]).saved_ns
    assert predicted == pytest.approx(saved, rel=0.12)
    # The recording's steps vary by more than the rest.
    assert abs(predicted - saved) < 0.02 * judged_ns(before)


@pytest.mark.parametrize(
    ("rule", "recording"),
    [
        ("dispatch", "gpt2_train"),
        ("data-loading", "known_causes/data_loading"),
        ("pageable-memory", "laboratory/kv_offload/pageable.trace"),
    ],
)
@pytest.mark.parametrize("share", [None, 0.8, 1.3])
def test_a_finding_saves_what_whatif_predicts(rule: str, recording: str, share: float | None) -> None:
    """Of the recording, of a faster and of a slower program."""
    [device] = analysed(recording).result.devices
    assert device.per_step is not None
    plain_step_ns = None if share is None else round(share * device.per_step.span_ns)
    report = build([analysed(recording)], plain_step_ns=plain_step_ns)
    [finding] = (finding for finding in report.findings if finding.rule == rule)
    saving = saving_of(finding)
    result = predict(analysed(recording).trace, saving.fix, plain_step_ns=plain_step_ns).result
    assert result.gain_ns is not None and plain_step_ns in (None, result.baseline_step_ns)
    for part, ns in (("low", saving.saved_low_ns), ("value", saving.saved_ns), ("high", saving.saved_high_ns)):
        assert ns / finding.steps == pytest.approx(getattr(result.gain_ns, part), abs=2)


def test_a_replay_that_contradicts_what_explains_most_of_the_loss_is_doubted() -> None:
    finding = findings("mixed_workloads/two_threads")["host-sync"]
    saving = saving_of(finding)
    assert saving.saved_ns < costing.CONTRADICTS * finding.cost_ns and finding.cost_ns > 0
    assert finding.doubt.startswith("The finding explains most of the time that the GPU loses, but the replay saves ")


@pytest.mark.parametrize("recording", ["gpt2_train", "known_causes/item_every_step"])
def test_a_saving_larger_than_what_a_finding_explains_has_a_reason(recording: str) -> None:
    report = build([analysed(recording)])
    savings = [(finding, finding.saving) for finding in report.findings if finding.saving]
    assert savings
    for finding, saving in savings:
        exceeds = saving.saved_ns > tables.EXPLAINED_SAVING_RATIO * finding.cost_ns
        assert exceeds == ("other waits" in findings_note(report.traces, [finding]))


def test_costs_do_not_depend_on_the_replay() -> None:
    for recording in ("laboratory/offload_pipeline/one_stream.trace", SLOW_ON_THE_HOST):
        replayed = find_all([analysed(recording)])
        measured = find_all([analysed(recording)], replayed=False)
        assert {(f.rule, f.cost_ns) for f in replayed} == {(f.rule, f.cost_ns) for f in measured}
        assert all(finding.saving is None for finding in measured)


def test_the_synchronize_at_the_findings_place_is_the_one_that_goes() -> None:
    finding = findings("known_causes/item_every_step")["host-sync"]
    saving = saving_of(finding)
    assert saving.fix == ("no-sync aten::_local_scalar_dense",)
    # The last step waits for nothing, and is not judged.
    assert saving.saved_ns == pytest.approx(finding.cost_ns, rel=0.05)


def test_a_step_alone_is_not_replayed() -> None:
    trace = analysed("known_causes/same_stream").trace
    (device,) = analyze_trace(trace).devices
    step = device.result.steps[1].name
    narrowed = find_all([analyze_trace(trace, step=step)], scope=step)
    assert narrowed
    assert all(finding.saving is None for finding in narrowed)


@pytest.mark.afresh
def test_a_recording_of_very_many_ops_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction, "MAX_OPS", 10)
    finding = findings("known_causes/item_every_step")["host-sync"]
    assert finding.cost_ns and finding.saving is None


def test_what_no_intervention_stands_for_has_no_known_saving() -> None:
    queued = findings("known_causes/engine_busy")["late-prefetch"]
    (slow,) = (f for f in find_all([analyze_trace(uploads([0.3, 0.3, 0.3, 0.3, 2.0]))]) if f.rule == "slow-link")
    for finding in (queued, slow):
        assert finding.cost_ns and finding.saving is None


def test_a_recording_without_launches_is_not_replayed() -> None:
    # The trace does not show what its ops waited for, so no replay explains it.
    trace = analysed("known_causes/same_stream").trace
    unlaunched = replace(trace.gpu_ops, launch=np.full(len(trace.gpu_ops), -1, np.int64))
    warned = [f for f in find_all([analyze_trace(replace(trace, gpu_ops=unlaunched))]) if f.cost_ns]
    assert warned
    assert all(finding.saving is None for finding in warned)


@pytest.mark.parametrize("error", [IndexError, ValueError, ZeroDivisionError, MemoryError])
def test_a_replay_that_fails_does_not_cost_the_analysis(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(base: Base, fixes: object) -> int:
        raise error("unlike any trace seen so far")

    monkeypatch.setattr(predicted_outcomes, "largest_gain", fail)
    warned = [finding for finding in find_all([analyze_trace(blocking_uploads(Memory.PINNED))]) if finding.cost_ns]
    assert warned
    assert all(finding.saving is None for finding in warned)


def test_views_say_what_a_fix_saves_at_least_and_at_most() -> None:
    pages = {name: Page(build([analysed(name)])) for name in ("ddp/rank0", SLOW_ON_THE_HOST)}
    costs = {
        (name, finding.rule): cost(section, finding)
        for name, page in pages.items()
        for section in page.sections()
        for finding in section.findings
    }
    saves = "saves about 9.15 ms a recorded step (24.6%), 6.0 to 10.8 ms"
    assert costs["ddp/rank0", "dispatch"].startswith(saves)
    assert costs["ddp/rank0", "exposed-comm"].startswith("costs 1.03 ms a recorded step (")
    useless = costs[SLOW_ON_THE_HOST, "one-way-copies"]
    assert useless.startswith("saves nothing by itself, at most ") and "or nothing" not in useless
    assert costs[SLOW_ON_THE_HOST, "streams-without-overlap"] == ""
    (section,) = pages["ddp/rank0"].sections()
    assert f" It {saves}" in verdict.judge(section).remedy


def test_a_fix_that_may_cost_time_says_so() -> None:
    (section,) = Page(build([analysed("known_causes/same_stream")])).sections()
    (finding,) = (each for each in section.findings if each.rule == "same-stream")
    assert saving_of(finding).saved_low_ns < 0
    assert cost(section, finding).endswith(", or costs up to 722 us")


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_fix_is_something_that_can_be_predicted(rule: Rule) -> None:
    for fix in rule.fixes:
        assert len(parse([change.replace("{call}", "cudaStreamSynchronize") for change in fix])) == len(fix)
        assert all(change.split()[0] in rule.cost for change in fix)
    assert not (rule.fixes and rule.severity == "info")


def test_a_wait_inside_an_op_is_taken_out_with_that_ops_others_alone() -> None:
    recording = "mixed_workloads/checkpoint_blocking"
    finding, base = findings(recording)["host-sync"], prepare(analysed(recording).trace, None)
    assert finding.where is not None and finding.where.op == "aten::copy_"
    fix = ("no-sync aten::copy_",)
    assert saving_of(finding).fix == fix
    largest = largest_gain(base, [fix])
    assert largest is not None
    saved_ns = saving_of(finding).saved_ns / finding.steps
    assert largest.gain_ns.value == pytest.approx(saved_ns, abs=2)
    assert largest.fix == fix
    other = largest_gain(base, [(f"no-sync {finding.where.call}",)])
    assert other is None or other.gain_ns.value != pytest.approx(saved_ns, rel=1e-3)


def test_a_fix_that_deadlocks_at_some_stance_gives_way_to_the_next_best(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, fixes = analysed("further/batches/pageable_blocking").trace, (("pin",), ("pin", "non-blocking"))
    best = largest_gain(prepare(trace, None), fixes)
    assert best is not None and best.fix == fixes[1]

    def deadlocked(
        base: Base, choices: Sequence[Choice], stances: Sequence[Stance] = (), run: Stance = Stance.EXPECTED
    ) -> Outcome:
        if len(choices) == len(best.fix) and run != Stance.EXPECTED:
            raise Deadlock
        return outcome(base, choices, stances, run)

    monkeypatch.setattr(predicted_outcomes, "outcome", deadlocked)
    base = prepare(trace, None)
    next_best = largest_gain(base, fixes)
    assert next_best is not None and next_best.fix == fixes[0]
    assert largest_gain(base, fixes[1:]) is None


def test_a_set_with_a_change_that_applies_nowhere_is_not_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for no copy there. The fix is replayed thrice, the unchanged program in the other two runs."""
    base, replayed = prepare(analysed("known_causes/same_stream").trace, None), list[Graph]()

    def counted(graph: Graph) -> Replay:
        replayed.append(graph)
        return replay(graph)

    monkeypatch.setattr(predicted_outcomes, "replay", counted)
    largest = largest_gain(base, [("side-stream",), ("non-blocking", "side-stream")])
    assert largest is not None and largest.fix == ("side-stream",)
    assert len(replayed) == 5


def test_the_first_worker_of_a_loader_works_at_least_beside_the_steps() -> None:
    alone = findings("laboratory/dataloader/pinned0_nonblocking0_workers0.trace")["data-loading"]
    assert 0 < saving_of(alone).saved_low_ns < saving_of(alone).saved_ns


def test_the_report_states_that_savings_do_not_add_up() -> None:
    recording = "laboratory/offload_pipeline/one_stream.trace"
    traces, found = [analysed(recording).result], list(findings(recording).values())
    costly = [finding for finding in found if finding.cost_ns]
    assert len(costly) > 1 and "don't add them up" in findings_note(traces, found)
    assert "add" not in findings_note(traces, costly[:1])

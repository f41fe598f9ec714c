"""Tests of earlier names of rules: settings, command lines and stored files may keep them."""

from __future__ import annotations

import datetime
import json
from functools import cache
from pathlib import Path

import msgspec
import pytest

import overlapscope as ov
from overlapscope import glossary
from overlapscope.analysis.average import average, in_frame
from overlapscope.analysis.figures import Period, PerStep
from overlapscope.analysis.results import Device
from overlapscope.budgets import config
from overlapscope.catalog.earlier_names import current_rules
from overlapscope.commands import main
from overlapscope.history.course import metric_of
from overlapscope.history.figures import figures
from overlapscope.laboratory.experiment import Truth
from overlapscope.report.model import Report, from_json, to_json
from overlapscope.rules import RULES
from tests.support.recordings import report_of

RENAMED = {
    "allocator-stall": "allocation",
    "copy-on-compute-stream": "same-stream",
    "exposed-communication": "exposed-comm",
    "pageable-copy": "pageable-memory",
}
PAGEABLE = Path("overlapscope/samples/training_naive.json.gz")


@cache
def report() -> Report:
    return report_of(PAGEABLE)


@pytest.mark.parametrize("earlier", RENAMED)
def test_a_rule_can_be_forbidden_by_its_earlier_name(earlier: str) -> None:
    current = RENAMED[earlier]
    assert config.from_mapping({"forbid": [earlier, current]}, "overlapscope.toml").forbid == (current,)
    assert current in RULES


@pytest.mark.parametrize("earlier", RENAMED)
def test_the_earlier_name_of_a_rule_is_explained_as_the_current_one(earlier: str) -> None:
    assert glossary.explain(earlier).blocks == glossary.explain(RENAMED[earlier]).blocks


@pytest.mark.parametrize("rule", ["pageable-copy", "pageable-c*", "pageable-memory", "pageable-*"])
def test_an_exception_accepts_the_rule_by_either_name(rule: str) -> None:
    exception = {"rule": rule, "reason": "the loader is rewritten", "until": datetime.date(2999, 1, 31)}
    settings = {"forbid": ["pageable-copy"], "exceptions": [exception]}
    [verdict] = ov.check(report(), settings).verdicts
    assert (verdict.metric, verdict.status) == ("pageable-memory", "accepted")


def test_a_stored_report_with_earlier_names_fails_a_check_of_the_current_ones() -> None:
    stored = to_json(report()).replace(b'"rule": "pageable-memory"', b'"rule": "pageable-copy"')
    assert b'"rule": "pageable-copy"' in stored
    assert from_json(stored) == report()
    assert ov.check(from_json(stored), {"forbid": ["pageable-memory"]}).outcome == "fail"


def test_a_stored_report_with_earlier_names_has_lost_no_finding_since() -> None:
    stored = from_json(to_json(report()).replace(b'"rule": "pageable-memory"', b'"rule": "pageable-copy"'))
    [device] = ov.diff(stored, report()).devices
    assert {change.standing for change in device.findings} == {"same"}


def test_the_command_line_takes_earlier_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(PAGEABLE), "--forbid", "pageable-copy", "--explain", "forbid pageable-copy"]) == 1
    printed = capsys.readouterr().out
    assert "forbid pageable-memory" in printed
    assert "pageable-copy" not in printed


def test_the_truth_of_an_experiment_may_have_earlier_names() -> None:
    truth = Truth(findings=("pageable-copy",), no_findings=("copy-on-compute-stream",))
    assert truth == Truth(findings=("pageable-memory",), no_findings=("same-stream",))


# -- causes that were divided ---------------------------------------------------------------------

HOST_BOUND = Path("traces/mixed_workloads/small_transformer.json.gz")


def earlier_report() -> Report:
    """A report as earlier versions wrote it, whose idle time has the causes that were divided since."""
    stored = json.loads(to_json(report_of(HOST_BOUND)))

    def renamed(value: object) -> object:
        if isinstance(value, list):
            return [renamed(item) for item in value]
        if not isinstance(value, dict):
            return value
        value = {key: renamed(item) for key, item in value.items()}
        if isinstance(causes := value.get("idle_by_cause"), dict) and causes:
            causes["launch-bound"] = causes.pop("dispatch", 0)
            causes["host-compute"] = sum(causes.pop(name, 0) for name in ("python", "cpu-ops"))
            for name in ("gc-pause", "gil-wait", "file-io", "preempted", "cpu-throttled"):
                causes.pop(name, None)
        for key in ("rule", "cause"):
            if value.get(key) == "dispatch":
                value[key] = "launch-bound"
            if value.get(key) == "python":
                value[key] = "host-compute"
        value.pop("host", None)
        return value

    return from_json(json.dumps(renamed(stored)).encode())


def test_an_earlier_report_keeps_its_causes_and_their_sums() -> None:
    [device] = earlier_report().devices
    assert device.per_step is not None
    parts: list[Device | PerStep | Period] = [device, device.per_step, *device.steps]
    for part in parts:
        assert sum(part.idle_by_cause.values()) == part.buckets.idle_ns
        assert part.idle_by_cause["launch-bound"] > 0 and part.idle_by_cause["host-compute"] > 0
    framed = in_frame(msgspec.structs.replace(device, per_step=average(device.steps, range(3))))
    assert sum(framed.idle_by_cause.values()) == framed.buckets.idle_ns


def test_an_earlier_report_can_be_compared_and_fails_the_rules_that_its_findings_became() -> None:
    earlier = earlier_report()
    [device] = ov.diff(earlier, report_of(HOST_BOUND)).devices
    changes = {change.name: change for change in device.figures.idle_by_cause}
    assert changes["launch-bound"].before and not changes["launch-bound"].after
    assert changes["dispatch"].after and not changes["dispatch"].before
    assert ov.check(earlier, {"forbid": ["launch-bound"]}).outcome == "fail"


@pytest.mark.parametrize("earlier", ["launch-bound", "host-compute"])
def test_a_divided_rule_is_forbidden_with_all_its_parts(earlier: str) -> None:
    forbidden = config.from_mapping({"forbid": [earlier]}, "overlapscope.toml").forbid
    assert forbidden == current_rules(earlier)
    assert len(forbidden) > 1 and {*forbidden} <= {*RULES}


@pytest.mark.parametrize("metric", ["idle_time/launch-bound", "idle_time/host-compute", "idle_time/python"])
def test_histories_have_earlier_and_current_causes(metric: str) -> None:
    assert metric_of(metric).id == "idle_time"


def test_new_figures_have_no_earlier_causes() -> None:
    [device] = report_of(HOST_BOUND).devices
    assert not {"launch-bound", "host-compute"} & {*device.idle_by_cause}
    metrics = {figure.metric for figure in figures(report_of(HOST_BOUND))}
    assert not {"idle_time/launch-bound", "idle_time/host-compute"} & metrics

"""Tests of earlier names of rules: settings, command lines and stored files may keep them."""

from __future__ import annotations

import datetime
from functools import cache
from pathlib import Path

import pytest

import overlapscope as ov
from overlapscope import glossary
from overlapscope.budgets import config
from overlapscope.commands import main
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

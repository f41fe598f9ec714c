"""A package outside the tree adds a command, a rule, a measure and a source; `tests/browser` has its page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support.helpers import TRACES
from tests.support.recordings import analysis_of
from tests.support.toy_plugin import install

TRACE = TRACES / "streamed0_pinned0.json.gz"
AFTER = TRACES / "streamed1_pinned1.json.gz"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which the package is installed."""
    return install(tmp_path_factory.mktemp("site"))


def run(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "overlapscope", *arguments],
        env=os.environ | environment | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_its_command_runs_and_is_listed(environment: dict[str, str]) -> None:
    done = run(environment, "toy", "you")
    assert (done.returncode, done.stdout) == (3, "hello, you\n")
    assert "say hello" in run(environment, "--help-all").stdout


def test_its_rule_finds_something_in_a_file_of_its_source(environment: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / "a.toy"
    path.write_text(f"toy 1\n{TRACE}\n")
    report = run(environment, "analyze", path, "--verbose").stdout
    assert "This recording takes" in report and "Make it short." in report
    assert "Its length." in run(environment, "explain", "long-recording").stdout
    limits = tmp_path / "overlapscope.toml"
    limits.write_text('forbid = ["long-recording"]\n[budgets]\nidle_pct = { max = 100 }\n')
    checked = run(environment, "check", path, "--config", limits)
    assert checked.returncode == 1 and "long-recording" in checked.stdout


def test_its_measure_is_in_every_view_without_another_change(environment: dict[str, str], tmp_path: Path) -> None:
    def said(*arguments: str | Path) -> str:
        return run(environment | {"OVERLAPSCOPE_HISTORY": str(tmp_path / "history")}, *arguments).stdout

    device = analysis_of(TRACE).devices[0]
    idle = device.timeline.idle
    [result] = json.loads(said("analyze", TRACE, "--format", "json"))["traces"][0]["devices"]
    gaps = [
        int((np.minimum(idle.ends, end) - np.maximum(idle.starts, start)).max())
        for start, end in [(step["window"]["start_ns"], step["window"]["end_ns"]) for step in result["steps"]]
    ]
    assert [step["overlap"]["longest_idle_gap_ns"] for step in result["steps"]] == gaps
    assert result["overlap"]["longest_idle_gap_ns"] == int((idle.ends - idle.starts).max()) >= max(gaps)
    average = result["per_step"]
    judged = gaps[average["first"] : average["first"] + average["steps"]]
    mean_ns = average["overlap"]["longest_idle_gap_ns"]
    assert mean_ns == round(sum(judged) / len(judged))
    assert "longest idle gap" in said("analyze", TRACE, "--verbose")
    assert "longest_idle_gap_ns" in said("schema", "report")
    [compared] = json.loads(said("diff", TRACE, AFTER, "--format", "json"))["devices"]
    [changed] = [each for each in compared["figures"]["overlap"] if each["name"] == "longest idle gap"]
    assert changed["before"] == mean_ns
    assert "longest idle gap" in said("diff", TRACE, AFTER, "--verbose")
    limit = ("check", TRACE, "--budget")
    assert run(environment, *limit, f"longest_idle_gap_time <= {mean_ns} ns").returncode == 0
    assert run(environment, *limit, f"longest_idle_gap_time <= {mean_ns - 1} ns").returncode == 1
    said("history", "add", TRACE, "--job", "toy")
    assert str(mean_ns) in said("history", "--job", "toy", "--metric", "longest_idle_gap_time", "--format", "json")
    assert str(mean_ns) in said("query", TRACE, "SELECT longest_idle_gap_ns FROM per_step", "--format", "json")
    for word in ("longest_idle_gap_time", "longest idle gap"):
        assert "longest time in which nothing ran" in said("explain", word).lower()

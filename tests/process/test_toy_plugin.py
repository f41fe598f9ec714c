"""A package outside the tree adds a command, a rule and a source by its manifest; `tests/browser` has its page."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.helpers import TRACES
from tests.support.toy_plugin import install

TRACE = TRACES / "streamed0_pinned0.json.gz"


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

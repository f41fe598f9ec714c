"""Tests that every command in the recipes of docs/guides/ci.md and docs/reference/ci.md exists and runs."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from overlapscope.commands import main
from overlapscope.commands.check import FORMATS

ROOT = Path(__file__).parents[3]
GUIDE, REFERENCE = ((ROOT / "docs" / room / "ci.md").read_text() for room in ("guides", "reference"))
TEXT = GUIDE + REFERENCE
TRACE = ROOT / "traces/pipeline_3stream.json.gz"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.DOTALL)


def strings(value: Any) -> list[str]:
    """Every string in a YAML document."""
    if isinstance(value, dict):
        return [string for inner in value.values() for string in strings(inner)]
    if isinstance(value, list):
        return [string for inner in value for string in strings(inner)]
    return [value] if isinstance(value, str) else []


def commands() -> list[str]:
    """All lines of YAML and Groovy that run overlapscope; `test_docs.py` runs the others."""
    scripted = [string for block in blocks("yaml") for string in strings(yaml.safe_load(block))]
    shelled = [item for block in blocks("groovy") for item in re.findall(r"sh '(.*)'", block)]
    return [item for item in (*scripted, *shelled) if item.startswith("overlapscope ")]


def files_of(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the recipes' files: a trace, a directory of traces, a configuration, a baseline."""
    monkeypatch.chdir(directory)
    (directory / "traces").mkdir()
    shutil.copy(TRACE, directory / "train.trace.json.gz")
    shutil.copy(TRACE, directory / "traces")
    (directory / "overlapscope.toml").write_text(blocks("toml")[0])
    assert main(["check", "train.trace.json.gz", "--write-baseline"]) == 0


def test_there_are_recipes() -> None:
    assert len(commands()) >= 6 and len(blocks("yaml")) >= 4


@pytest.mark.parametrize("command", [command for command in commands() if not command.startswith("overlapscope run ")])
def test_a_recipes_command_runs(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files_of(tmp_path, monkeypatch)
    # Elsewhere, a comment is printed.
    for system in ("GITHUB_ACTIONS", "GITLAB_CI"):
        monkeypatch.delenv(system, raising=False)
    arguments = shlex.split(command)[1:]
    assert main(arguments) in (0, 1, 3)
    for part in arguments:
        name, _, path = part.partition(":")
        assert not path or (tmp_path / path).stat().st_size > 0, name


def test_recordings_of_the_recipes_name_a_script() -> None:
    recordings = [shlex.split(command) for command in commands() if command.startswith("overlapscope run ")]
    assert recordings
    for arguments in recordings:
        assert arguments[-1] == "train.py"
        assert set(arguments[2:-1:2]) <= {"--active", "--output"}


def test_the_action_is_used_with_inputs_that_it_has() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    steps = [
        step
        for block in blocks("yaml")
        for job in yaml.safe_load(block).get("jobs", {}).values()
        for step in job["steps"]
        if "overlapscope@" in step.get("uses", "")
    ]
    assert len(steps) >= 2
    for step in steps:
        assert step["with"].keys() <= inputs.keys()
    for name in inputs:
        assert f"`{name}`" in REFERENCE


def test_every_format_is_in_the_table() -> None:
    assert {name for name in FORMATS if f"| `{name}` |" not in REFERENCE} == set()

"""Tests of the skill file: its command lines work, and it explains all words."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from overlapscope.catalog.causes import CAUSES
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.commands import commands, main, subcommand
from overlapscope.plugins.assistant.command import skill
from overlapscope.reading.samples import SAMPLES
from overlapscope.rules import RULES

PLACES = {"TRACE": "training_naive.json.gz", "BEFORE": "training_naive.json.gz", "AFTER": "training_prefetched.json.gz"}
PARSED = {"run", "try", "ranks", "doctor"}
"""Commands that start processes: parsed here, run in tests of their own."""


def test_it_is_a_skill_file_of_bounded_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["skill"]) == 0
    text = capsys.readouterr().out
    # Assistants read all of it: about 5,000 tokens.
    assert text == skill() and len(text.encode()) < 20_000
    _, head, body = text.split("---\n", 2)
    front = yaml.safe_load(head)
    assert front.keys() == {"name", "description"} and front["name"] == "overlapscope"
    # The bounds that the format sets.
    assert len(front["description"]) <= 1024 and len(front["name"]) <= 64
    assert body.startswith("\n# overlapscope\n")


def test_it_has_every_word() -> None:
    words = set(re.findall(r"^- `([^`]+)`: \S", skill(), re.MULTILINE))
    causes = {str(cause) for cause_ids in CAUSES.values() for cause in cause_ids}
    assert words >= {*RULES} | causes | {f"--{name}" for name in INTERVENTIONS}
    assert set(re.findall(r"`overlapscope (\w+)", skill())) <= {*commands()}


@pytest.mark.parametrize("command", re.findall(r"^\| .+ \| `(.+)` \|$", skill(), re.MULTILINE))
def test_every_command_line_in_it_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in PLACES.values():
        shutil.copy(SAMPLES / name, tmp_path)
    (tmp_path / "train.py").touch()
    program, *arguments = shlex.split(command.replace("SELECT ...", "SELECT 1"))
    assert program == "overlapscope"
    arguments = [PLACES.get(argument, argument) for argument in arguments]
    if arguments[0] in PARSED:
        parser = argparse.ArgumentParser()
        subcommand(arguments[0]).prepare_parser(parser)
        parser.parse_args(arguments[1:])
        return
    if "overlap-baseline.json" in arguments:
        assert main(["check", PLACES["TRACE"], "--write-baseline"]) == 0
    if "4" in arguments:
        arguments[arguments.index("4")] = "9"
    assert main(arguments) in (0, 1, 3)
    assert "Traceback" not in capsys.readouterr().err

"""The command `record`, without a process to record, and the option of `run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlapscope.commands import main


def test_run_shows_the_option_that_waits_for_requests(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    assert "--on-demand" in capsys.readouterr().out


def test_processes_that_can_be_recorded_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    assert main(["record", "--list", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    for line in (["record"], ["record", "1", "--list"]):
        assert main(line) == 2
        assert "name one process as PID or a server with --url" in capsys.readouterr().err


def test_a_wrong_number_of_steps_is_named_as_the_user_wrote_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "1", "--steps", "0"]) == 2
    assert "argument --steps: '0' is not a number of steps" in capsys.readouterr().err

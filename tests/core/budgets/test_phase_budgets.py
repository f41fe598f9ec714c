"""Budgets on the phases of an inference server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overlapscope.commands import main
from tests.support.served import Pass, write_server

PREFILL, DECODE = "execute_context_2(600)_generation_0(0)", "execute_context_0(0)_generation_7(7)"


def recording(path: Path, *, prefills: int = 7, prefill: int = 3000, decode: int = 600) -> Path:
    """Write a recording of prefill steps, and of 20 decode steps; lengths are in microseconds."""
    passes = [Pass([PREFILL], gpu=prefill)] * prefills + [Pass([DECODE], gpu=decode)] * 20
    return write_server(path, passes)


def check(trace: Path, *options: str | Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the status of each budget."""
    capsys.readouterr()
    assert main(["check", str(trace), *map(str, options), "--format", "json"]) != 2
    return {verdict["budget"]: verdict["status"] for verdict in json.loads(capsys.readouterr().out)["verdicts"]}


def test_a_budget_is_judged_by_the_steps_of_its_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recording(tmp_path / "x.json")
    config = tmp_path / "overlapscope.toml"
    config.write_text(
        "[budgets]\n"
        "step_time = [\n"
        '    { max = "1 ms", phase = "decode" }, { max = "1 ms", phase = "prefill" }, { max = "1 ms" },\n'
        '    { max = "1 ms", phase = "mixed" },\n'
        "]\n"
    )
    statuses = check(trace, "--config", config, capsys=capsys)
    assert statuses == {
        "step_time <= 1 ms in phase decode": "pass",
        "step_time <= 1 ms in phase prefill": "fail",
        "step_time <= 1 ms": "fail",
        "step_time <= 1 ms in phase mixed": "unknown",
    }
    assert main(["check", str(trace), "--config", str(config)]) == 1
    out = capsys.readouterr().out
    assert "there is no whole step of the phase mixed" in out


def test_a_budget_on_the_command_line_names_a_phase(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = recording(tmp_path / "x.json")
    assert check(trace, "--budget", "p90 decode step_time <= 1 ms", capsys=capsys) == {
        "p90 step_time <= 1 ms in phase decode": "pass"
    }
    assert main(["check", str(trace), "--budget", "decode window step_time <= 1 ms"]) == 2


def test_a_change_is_that_of_the_same_phase_even_if_another_takes_most_time_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = recording(tmp_path / "a.json", prefill=900), recording(tmp_path / "b.json", prefill=9000)
    baseline = tmp_path / "baseline.json"
    assert main(["check", str(before), "--write-baseline", "--baseline", str(baseline)]) == 0
    budgets = ["--budget", "step_time increase <= 5%", "--budget", "decode step_time increase <= 5%"]
    same = check(before, "--baseline", baseline, *budgets, capsys=capsys)
    assert set(same.values()) == {"pass"}
    changed = check(after, "--baseline", baseline, *budgets, capsys=capsys)
    # Decode steps took most time, prefill steps do now: they became ten times as long, decode steps are as before.
    assert list(changed.values()) == ["fail", "pass"]

"""The scripts by which `overlapscope try` is held against edits made by hand."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import trials_runs
from benchmarks.plain_runs import Machine
from benchmarks.trials_page import page
from benchmarks.trials_runs import SCRIPTS, ByHand, Tested
from overlapscope.catalog.changes import CHANGES
from overlapscope.trials.result import Edit, LeftOut, Recordings, Trial, Tried

PROGRAMS = trials_runs.programs()
EDITED = [name for name in PROGRAMS if (SCRIPTS / "by_hand" / f"{name}.py").exists()]


def printed(script: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *told: str) -> str:
    """The last line that a script prints after two steps on the CPU."""
    patch.setattr(sys, "argv", [str(script), "--device", "cpu", "--steps", "2", *told])
    runpy.run_path(str(script), run_name="__main__")
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("name", EDITED)
def test_an_edited_program_computes_what_it_did(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    script, edited = SCRIPTS / f"{name}.py", SCRIPTS / "by_hand" / f"{name}.py"
    for package in ("transformers", "accelerate", "lightning"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs {package}")
    loads = "workers" in edited.read_text() and PROGRAMS[name].breaks != "workers"
    edits = ["--edited", "workers=1"] if loads else []
    assert printed(edited, monkeypatch, capsys, *edits) == printed(script, monkeypatch, capsys)


def test_what_programs_are_expected_to_do_is_said_in_words_that_exist() -> None:
    named = {change for program in PROGRAMS.values() for change in (*program.pays, *filter(None, [program.breaks]))}
    asked = {
        change
        for program in PROGRAMS.values()
        if program.options
        for change in program.options[program.options.index("--only") + 1].split(",")
    }
    assert named | asked <= CHANGES.keys()
    assert {path.stem for path in (SCRIPTS / "by_hand").glob("*.py")} - {"__init__", "edits"} <= PROGRAMS.keys()


def tried(change: str, measured_pct: float, *after: str, results: str = "same", value: str = "") -> Tried:
    return Tried(
        change=change,
        value=value,
        title=CHANGES[change].title,
        after=after,
        predicted_pct=None,
        step_ns=round(1e7 * (1 + measured_pct / 100)),
        measured_pct=measured_pct,
        measured_low_pct=measured_pct - 1,
        measured_high_pct=measured_pct + 1,
        added_pct=measured_pct,
        added_low_pct=measured_pct - 1,
        added_high_pct=measured_pct + 1,
        verdict="faster",
        kept=True,
        runs=3,
        results=results,  # type: ignore[arg-type]
        races=None,
        failure="",
        edit=Edit(diff="", advice=()),
    )

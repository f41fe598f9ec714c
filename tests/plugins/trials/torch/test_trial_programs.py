"""The scripts by which `overlapscope try` is held against edits made by hand."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import trials_runs
from benchmarks.plain_runs import MachineVersions
from benchmarks.trials_page import page
from benchmarks.trials_runs import SCRIPTS, ByHand, TrialMeasurements
from overlapscope.plugins.trials.changes import CHANGES
from overlapscope.plugins.trials.result import Edit, LeftOut, Recordings, Trial, Tried

PROGRAMS = trials_runs.programs()
EDITED = [name for name in PROGRAMS if (SCRIPTS / "by_hand" / f"{name}.py").exists()]


def printed(script: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """Return the last line that a script prints after two steps on the CPU."""
    patch.setattr(sys, "argv", [str(script), "--device", "cpu", "--steps", "2", *options])
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


def test_expectations_of_programs_name_existing_causes_and_rules() -> None:
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


def trial(*changes: Tried, best: int | None) -> Trial:
    return Trial(
        program="python train.py",
        device_name="NVIDIA H200",
        ranks=1,
        baseline_step_ns=10_000_000,
        baseline_low_ns=9_900_000,
        baseline_high_ns=10_100_000,
        baseline_runs=3,
        warmup_steps=2,
        timed_steps=3,
        repeatable=True,
        changes=changes,
        left_out=(LeftOut(change="graph", title=CHANGES["graph"].title, reason="It is compiled already."),),
        best=best,
        recordings=Recordings(before=None, after=None),
        interrupted=False,
        notes=(),
        wall_s=100.0,
        plain_runs_s=80.0,
    )


def test_the_best_set_is_made_by_hand_and_timed_in_turn_with_the_program_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    monkeypatch.setattr(trials_runs, "ROUNDS", 1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    outcome = trial(tried("fused", -5.0), best=0)
    by_hand = trials_runs.made_by_hand("embedding", outcome, "fused")
    assert len(by_hand.as_is_ns) == len(by_hand.edited_ns) == 1 and min(*by_hand.as_is_ns, *by_hand.edited_ns) > 0


def test_the_page_says_how_far_each_gain_is_from_that_of_the_edit_by_hand() -> None:
    machine = MachineVersions("NVIDIA H200", "2.11.0", "3.12.0")
    best = tried("pin", -10.0, "workers (6)")
    assert trials_runs.edits_of(best) == "workers=6,pin"
    steps = ByHand("workers=6,pin", (10_000_000, 10_000_000), (9_050_000, 9_060_000))
    refused = tried("workers", -50.0, value="2", results="different")
    measured = [
        TrialMeasurements("finetune", machine, trial(tried("workers", -9.0, value="6"), best, best=1), steps),
        TrialMeasurements("crops", machine, trial(refused, best=None), None),
        TrialMeasurements(
            "well_made", machine, trial(tried("fused", -2.0), best=0), None, "not written by hand: fused"
        ),
    ]
    text = page(measured)
    assert "| gain by `try` within 3 points of the edit by hand | all | 1 of 1 |" in text
    assert "| what should pay is recommended | all | 1 of 1 |" in text
    assert "| nothing is recommended where nothing should pay | all | **1 of 2** |" in text
    assert "| a change that breaks the program or its results is refused | all | 1 of 1 |" in text
    assert "| finetune | workers (6) and pin |  | -10.0% (-11.0 to -9.0) | -9.5% (-18.5 to +0.6) | 0.5 |" in text
    assert "| not written by hand: fused |" in text

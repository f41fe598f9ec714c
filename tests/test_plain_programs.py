"""The scripts by which plain steps and predictions are held against programs that nobody records."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import plain_record, plain_runs
from overlapscope.prediction.interventions import all_interventions

PROGRAMS = plain_runs.programs()


def printed(script: Path, edits: tuple[str, ...], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """The last line that a script prints after two steps on the CPU."""
    arguments = ["--device", "cpu", "--steps", "2", *(f"--edit={edit}" for edit in edits)]
    patch.setattr(sys, "argv", [str(script), *arguments])
    runpy.run_path(str(script), run_name="__main__")
    return capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_edited_program_computes_what_it_did(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    script = plain_runs.SCRIPTS / f"{name}.py"
    if "transformers" in script.read_text():
        pytest.importorskip("transformers", reason="needs Hugging Face Transformers")
        pytest.importorskip("accelerate", reason="its Trainer needs accelerate")
    before = printed(script, (), monkeypatch, capsys)
    for pair in PROGRAMS[name].pairs:
        assert printed(script, pair.edits, monkeypatch, capsys) == before


def test_edits_stand_for_interventions_that_exist() -> None:
    known = {one.id for one in all_interventions()}
    asked = {one.split()[0] for program in PROGRAMS.values() for pair in program.pairs for one in pair.interventions}
    assert asked <= known


def test_a_program_is_timed_in_a_process_without_overlapscope_and_only_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    first, *others = plain_record.wanted(tmp_path, ["classes"])
    plain_record.measure(tmp_path, [first], "cpu", until=float("inf"))

    (plain,) = plain_runs.read(tmp_path).runs
    assert (plain.program, plain.variant, plain.number) == ("classes", "before", 1)
    assert len(plain.timed.step_ns) == 40, "60 steps have 59 lengths, of which the first third is left out"
    assert plain_record.wanted(tmp_path, ["classes"]) == others

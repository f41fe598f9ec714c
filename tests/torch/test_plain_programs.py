"""Tests of the scripts that compare plain steps and predictions with unrecorded programs."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from benchmarks import plain_record, plain_runs
from benchmarks.plain_evaluation import UnrecordedStep, UntoldStep, evaluate
from benchmarks.plain_page import data, page
from overlapscope.catalog.interventions import INTERVENTIONS
from overlapscope.export.chrome_trace import blocks
from overlapscope.trace.model import PlainSteps, TimedSteps
from tests.support.helpers import TRACES
from tests.support.recordings import trace_of

PROGRAMS = plain_runs.programs()


def printed(script: Path, edits: tuple[str, ...], patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the last line that a script prints after two steps on the CPU."""
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
    interventions = set(INTERVENTIONS)
    asked = {
        intervention.split()[0]
        for program in PROGRAMS.values()
        for pair in program.pairs
        for intervention in pair.interventions
    }
    assert asked <= interventions


def test_a_program_is_timed_in_a_process_without_overlapscope_and_only_once(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="needs PyTorch")
    first, *others = plain_record.wanted(tmp_path, ["classes"])
    plain_record.measure(tmp_path, [first], "cpu", until=float("inf"))

    (plain,) = plain_runs.read(tmp_path).runs
    assert (plain.program, plain.variant, plain.number) == ("classes", "before", 1)
    assert len(plain.timed.step_ns) == 40, "60 steps have 59 lengths, of which the first third is left out"
    assert plain_record.wanted(tmp_path, ["classes"]) == others


def test_messages_are_compared_with_those_of_separate_processes(tmp_path: Path) -> None:
    trace = trace_of(TRACES / "second" / "lstm" / "eager.json.gz")
    timed = TimedSteps(device_ns=(1_020_000,) * 10)
    recording = plain_runs.trace_path(tmp_path, "conv", "before")
    recording.parent.mkdir()
    recording.write_bytes(b"".join(blocks(replace(trace, plain_steps=PlainSteps(timed, timed)), packed=True)))
    machine = plain_runs.MachineVersions("NVIDIA H200", "2.11.0", "3.12.0")
    steps = {("before", 1): 1_000_000, ("before", 2): 1_010_000, ("graph", 1): 300_000, ("graph", 2): 320_000}
    runs = (
        plain_runs.TimedProcess("conv", variant, number, plain_runs.PlainStepTimes((1,) * 3, (step_ns,) * 3, machine))
        for (variant, number), step_ns in steps.items()
    )
    plain_runs.write(tmp_path, plain_runs.ProcessTimings(tuple(runs)))

    (row,) = evaluate(tmp_path)
    assert row.truth == UnrecordedStep(step_ns=1_005_000, low_ns=1_000_000, high_ns=1_010_000, mean_ns=1_005_000)
    assert row.plain is not None and row.plain.step_ns == row.before_ns == row.after_ns == 1_020_000
    assert row.untold.low_holds and not row.untold.above_pct and row.untold.width_pct > 0
    assert row.idle_pct == pytest.approx(100 * (1 - row.busy_ns / 1_005_000))
    (predicted,) = row.predicted
    assert predicted.measured_ns == 310_000
    assert predicted.step_ns is not None and predicted.inside is False, "no graph of that program was recorded"

    untold = {"laboratory/a.json.gz": UntoldStep(1_000_000, 700_000, 800_000, 900_000)}
    text = page([row], untold, machine, len(steps))
    assert "| plain step measured within 3% of the truth | all | 1 of 1 |" in text
    assert "the lower end holds for 1 of 1, and 1 were timed longer than recorded, by 11.1%" in text
    files = data([row], untold)
    assert "laboratory/a.json.gz,1.000,0.700,0.800 to 0.900,11.1,yes,11.1" in files["-intervals"]
    assert 'conv,host,1.005,1.000 to 1.010,1.005,"1.020, 1.020",+1.5,1.970,' in files[""]
    assert "conv: graph,graph step,1.005," in files["-predictions"]

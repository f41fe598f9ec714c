"""Recordings in which data races are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import overlapscope as ov
from benchmarks.several_gpus_plan import JOBS, PROGRAMS
from overlapscope.plugins.hazards.checker import HazardChecker
from tests.exhaustive.test_scenario_jobs import ended
from tests.support.recorded import steps, work

pytestmark = pytest.mark.usefixtures("nothing_is_left_running")


def test_where_data_races_are_looked_for_no_step_is_plain(path: Path) -> None:
    with ov.record(path, active=2, observers=("hazards",)) as rec:
        for _ in range(4):
            rec.step()
    assert steps(path) == [0, 1, 2]


def test_data_races_are_looked_for_until_the_recording_is_complete(path: Path) -> None:
    unwrapped = torch.Tensor.numpy
    watched = []
    with ov.record(path, active=2, observers=("hazards",)) as rec:
        for _ in range(5):
            watched.append(torch.Tensor.numpy is not unwrapped)
            rec.step()
    assert watched == [True, True, True, False, False]
    assert [note for note in rec.notes if "Data races" in note] == [
        "Data races were checked until the recording was complete; a larger --active checks longer."
    ]
    with ov.record(path, active=1, observers=("hazards",)) as rec:
        rec.step()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            work()
        for _ in range(3):
            rec.step()
        assert torch.Tensor.numpy is not unwrapped
    assert torch.Tensor.numpy is unwrapped


def test_a_recording_states_how_many_data_races_were_found(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ov.record(path, active=1, observers=("hazards",)) as rec:
        rec.step()
    assert ov.load(path).found == {}
    # Without a GPU, none can be found.
    monkeypatch.setattr(HazardChecker, "count", 2)
    with ov.record(path, active=1, observers=("hazards",)) as rec:
        for _ in range(4):
            rec.step()
    assert ov.load(path).found == {"hazards": 2}


@pytest.mark.parametrize("options", [["--race"], []])
def test_without_a_gpu_a_job_has_no_data_races_and_runs_as_ever(options: list[str], tmp_path: Path) -> None:
    recorder = ("-m", "overlapscope", "run", "--check-hazards", "--active", "2")
    arguments = (*PROGRAMS["two_collectives"].small, *options, "--steps", "20")
    for code, errors in ended(tmp_path, *recorder, JOBS / "two_collectives.py", *arguments):
        assert code == 0, errors
        assert "data races were not checked, because the program used no GPU." in errors
        assert "found" not in errors and "ended early" not in errors

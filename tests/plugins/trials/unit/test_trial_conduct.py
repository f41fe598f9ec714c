"""Tests of how a trial spends its time and what it notes, with a made-up program that runs in no time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from msgspec import field

from overlapscope.plugins.trials.conduct import TrialOptions, conduct
from overlapscope.plugins.trials.protocol import (
    EndedRun,
    Facts,
    Optimizer,
    RankOutcome,
    RankResults,
    Task,
    TrialProgram,
)
from overlapscope.plugins.trials.result import Trial
from overlapscope.recorder.program_lines import CodeLine
from overlapscope.render.progress import Progress
from tests.support.fake_clock import FakeClock

RUN_S = 20


class MadeUpProgram(TrialProgram, frozen=True, kw_only=True):
    """A program on a GPU with an optimizer whose fused form changes the step by a factor.

    Its runs differ by 20 %, and torch compiles in some steps of its changed runs.
    """

    clock: FakeClock
    factor: float
    compiled: tuple[int, ...] = ()
    source: random.Random = field(default_factory=lambda: random.Random(1))
    text: str = "train.py"
    root: Path = Path("/")

    def run(self, task: Task, limit_s: float) -> EndedRun:
        self.clock.wait(s=RUN_S)
        steps_ns = 20e6 * self.source.lognormvariate(0, 0.2) * (self.factor if task.changes else 1)
        lengths = [round(steps_ns)] * (task.steps or 0)
        for number in self.compiled if task.changes else ():
            lengths[number] += 6_000_000_000
        fused = Optimizer(site=CodeLine("/train.py", 3), name="AdamW", takes_fused=True, fused=False)
        outcome = RankOutcome(
            rank=0,
            ranks=1,
            all_steps=len(lengths),
            complete=True,
            host_ns=tuple(lengths),
            compiled=self.compiled if task.changes else (),
            results=RankResults(digest="same", sketches=(), loss=1.0),
            facts=Facts(cuda=True, cpus=4, optimizers=(fused,)),
            effects={setting.change: 1 for setting in task.changes},
        )
        return EndedRun((outcome,), 0, "", RUN_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr("overlapscope.base.clock.now_ns", fake)
    return fake


def tried(program: MadeUpProgram, directory: Path, runs: float) -> Trial:
    """Try the change in the time of so many runs."""
    asked = TrialOptions(minutes=runs * RUN_S / 60, steps=100, only=("fused",))
    return conduct(program, asked, directory, Progress())[0]


@pytest.mark.parametrize(("factor", "rounds"), [(0.2, 2), (1.0, 3)])
def test_without_an_answer_the_time_of_its_check_goes_to_a_further_round(
    tmp_path: Path, clock: FakeClock, factor: float, rounds: int
) -> None:
    # The survey takes a run, each round two, the check one and a half.
    trial = tried(MadeUpProgram(clock=clock, factor=factor), tmp_path, runs=7.5)
    assert (trial.best is not None, trial.baseline_runs) == (factor < 1, rounds)


def test_steps_in_which_a_change_is_compiled_are_not_part_of_its_step_and_noted(
    tmp_path: Path, clock: FakeClock
) -> None:
    trial = tried(MadeUpProgram(clock=clock, factor=0.2, compiled=(60, 61)), tmp_path, runs=30)
    assert trial.best == 0
    assert trial.changes[0].measured_pct == pytest.approx(-80, abs=10)
    assert [note for note in trial.notes if "compiled" in note] == [
        "Torch compiled in 2 of the 100 timed steps of the first run, fused: runs are compared over the other steps, "
        "since this happens once."
    ]


def test_a_change_that_makes_torch_compile_in_most_steps_is_as_slow_as_that(tmp_path: Path, clock: FakeClock) -> None:
    trial = tried(MadeUpProgram(clock=clock, factor=0.2, compiled=tuple(range(10, 90))), tmp_path, runs=30)
    assert trial.best is None
    assert trial.changes[0].measured_pct is not None and trial.changes[0].measured_pct > 1000
    assert any(note.endswith("it counts as a part of its steps.") for note in trial.notes)

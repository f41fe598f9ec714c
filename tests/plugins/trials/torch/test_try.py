"""`overlapscope try` on programs of torch's: changes are made to the program itself, and pay or do not."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset

import overlapscope as ov
from overlapscope import load
from overlapscope.errors import UsageError
from overlapscope.plugins.trials.processes import environment
from overlapscope.plugins.trials.protocol import Setting, Task
from tests.support import forked

PATIENCE_S = 300

PROGRAM = """
import time, torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((16,), float(i % 7))

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Slow(), batch_size=4, shuffle=True):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def test_workers_load_the_same_batches_for_a_program_and_are_edited_in(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    options = ("--format", "json", "--only", "workers", "--steps", "20", "--minutes", "60")
    process = subprocess.Popen(
        [sys.executable, "-m", "overlapscope", "try", *options, "train.py"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        # Interrupted as soon as workers have been tried, and not by a clock.
        for line in process.stderr:
            if line.startswith("Run 2, "):
                process.send_signal(signal.SIGINT)
                break
        out, _ = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    document = json.loads(out)
    assert (process.returncode, document["interrupted"]) == (130, True)
    workers = document["changes"][0]
    assert (workers["change"], workers["value"], workers["results"]) == ("workers", "2", "same")
    assert workers["step_ns"] > 0
    assert "+for x in DataLoader(Slow(), batch_size=4, shuffle=True, num_workers=2," in workers["edit"]["diff"]


def test_a_program_is_recorded_with_the_changes_made(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    task = Task(directory=str(tmp_path), changes=(Setting("workers", "2"),))
    command = ["-m", "overlapscope", "run", "--stop-after-recording", "-o", "t.trace.json.gz", "train.py"]
    run = forked.run(command, tmp_path, environment=environment(task), unloads=False)
    assert run.returncode == 0, run.stderr
    assert load(tmp_path / "t.trace.json.gz").plain_steps.before.host_ns
    assert "Traceback" not in run.stderr


# -- in code ----------------------------------------------------------------------------------------


def build() -> Callable[[], None]:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    batches = iter(DataLoader(TensorDataset(torch.ones(400, 8)), batch_size=4))

    def step() -> None:
        optimizer.zero_grad()
        model(next(batches)[0]).square().mean().backward()
        optimizer.step()

    return step


def test_changes_are_tried_on_a_step_function_and_unmade_afterwards() -> None:
    before = DataLoader.__init__, DataLoader.__iter__, Optimizer.__init__, torch.Tensor.item, torch.Tensor.to
    trial = ov.try_changes(build, steps=20, minutes=5, only=["fused"])
    assert [change.change for change in trial.changes] == ["fused"]
    assert trial.changes[0].results in ("same", "within noise")
    assert trial.program == "build"
    assert trial.repeatable
    assert "+    optimizer = torch.optim.AdamW(model.parameters(), fused=True)" in trial.changes[0].edit.diff
    assert repr(trial).startswith("<Trial: A step takes ")
    assert "fused" in trial._repr_html_()
    after = DataLoader.__init__, DataLoader.__iter__, Optimizer.__init__, torch.Tensor.item, torch.Tensor.to
    assert after == before


def collecting() -> Callable[[], None]:
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    gc.freeze()  # Only these are looked through in each step, not all of torch's.
    records = [[number] for number in range(30_000)]

    def step() -> None:
        optimizer.zero_grad()
        (model(torch.ones(4, 8)).square().mean() * len(records)).backward()
        optimizer.step()
        gc.collect()

    return step


def test_long_lived_objects_are_frozen_where_collections_take_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # Otherwise the collections between runs search the objects of all other tests.
    monkeypatch.setattr(gc, "unfreeze", gc.freeze)
    trial = ov.try_changes(collecting, steps=20, minutes=5, only=["gc", "threads"])
    (frozen,) = trial.changes
    assert (frozen.change, frozen.results) == ("gc", "same")
    assert "Call `gc.collect()` and `gc.freeze()` once, before the loop." in frozen.edit.advice[0]
    assert [omitted.change for omitted in trial.left_out] == ["threads"]


def test_a_step_function_that_ends_early_or_fails_says_so() -> None:
    def ends() -> Callable[[], object]:
        return iter(range(9)).__next__

    def fails() -> Callable[[], object]:
        raise ValueError("no data")

    with pytest.raises(UsageError, match="made 9 steps"):
        ov.try_changes(ends)
    with pytest.raises(ValueError, match="no data"):
        ov.try_changes(fails)

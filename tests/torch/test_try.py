"""`overlapscope try` on programs of torch's: changes are made to the program itself, and pay or do not."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

PATIENCE_S = 300

PROGRAM = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Slow(Dataset):
    def __len__(self):
        return 400
    def __getitem__(self, i):
        if "alone" in sys.argv and get_worker_info() is not None:
            raise ValueError("not in a worker")
        time.sleep(0.004)
        return torch.full((16,), float(i % 7))

model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x in DataLoader(Slow(), batch_size=4, shuffle=True):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""


def attempt(script: Path, *like: str, minutes: str) -> Any:
    script.write_text(PROGRAM)
    options = ("--format", "json", "--only", "workers", "--steps", "20", "--minutes", minutes)
    done = subprocess.run(
        [sys.executable, "-m", "overlapscope", "try", *options, script.name, *like],
        cwd=script.parent,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_workers_make_a_program_faster_that_waits_for_its_batches_and_compute_the_same(tmp_path: Path) -> None:
    told = attempt(tmp_path / "train.py", minutes="0.5")
    assert told["repeatable"] or told["baseline_runs"] == 1
    workers = told["changes"][0]
    assert (workers["change"], workers["value"], workers["results"]) == ("workers", "2", "same")
    assert workers["measured_pct"] < -20
    assert "+for x in DataLoader(Slow(), batch_size=4, shuffle=True, num_workers=2," in workers["edit"]["diff"]


def test_a_dataset_that_cannot_live_in_a_worker_fails_with_that_change_alone(tmp_path: Path) -> None:
    told = attempt(tmp_path / "train.py", "alone", minutes="1")
    workers = told["changes"][0]
    assert "ValueError: not in a worker" in workers["failure"]
    assert (workers["kept"], told["best"]) == (False, None)

"""The clock of the public programs' runs sees every step in the recorded process, and changes nothing about it."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.public_programs_clock import Clocked
from benchmarks.public_programs_runs import CLOCK, ROOT
from tests.support.run_command import execute, write

pytest.importorskip("torch", reason="records with torch")

PROGRAM = """
import multiprocessing, sys, torch
model = torch.nn.Linear(8, 8)
{optimizer}

def train(steps):
    for _ in range(steps):
        {step}

if __name__ == "__main__":
    print(sys.argv, sys.path[0] == {folder!r})
    train(60)
    child = multiprocessing.get_context("fork").Process(target=train, args=(5,))
    child.start()
    child.join()
    print(child.exitcode)
    raise SystemExit(3)
"""


FORWARD = "model(torch.ones(4, 8))"
BACKWARD = f"{FORWARD}.sum().backward()"
SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"


@pytest.mark.parametrize(
    ("kind", "optimizer", "step", "found"),
    [
        ("optimizer", SGD, f"{BACKWARD}; optimizer.step()", "SGD.step"),
        ("backward", "", BACKWARD, "backward() in program.py:8"),
        ("call Linear", "", FORWARD, "Linear.forward"),
    ],
    ids=["optimizer", "backward", "call"],
)
def test_every_step_of_a_recorded_program_is_clocked_as_it_is_found(
    tmp_path: Path, kind: str, optimizer: str, step: str, found: str
) -> None:
    text = PROGRAM.format(optimizer=optimizer, step=step, folder=str(tmp_path))
    write(tmp_path / "program.py", text)
    clock = [sys.executable, str(CLOCK), "clock.json", kind]
    run = execute([*clock, "-m", "overlapscope", "run", "program.py", "9"], tmp_path, PYTHONPATH=str(ROOT))
    assert (run.returncode, run.stdout) == (3, "['program.py', '9'] True\n0\n"), run.stderr
    assert f"Steps: calls of {found}." in run.stderr
    clocked = msgspec.json.decode((tmp_path / "clock.json").read_bytes(), type=Clocked)
    assert len(clocked.ends_ns) == 60
    ends = [part.end_ns for part in clocked.disturbances]
    # At least the rehearsal, the recording, its file, and an addition to the file.
    assert len(ends) >= 4 and ends == sorted(ends)
    assert 0 < clocked.disturbances[0].begin_ns < clocked.ends_ns[0] < ends[0] < clocked.ends_ns[-1]

"""Programs under `overlapscope run`, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from overlapscope.recorder import devices
from tests.support import forked

FORKED = ("-m", "overlapscope", "run")
"""Start of a command line of `overlapscope run`, for `forked.run`."""
RUN = (sys.executable, *FORKED)
"""For `execute`."""
OWN = "overlapscope: The program's own torch.profiler was used, with its schedule."
TRAIN = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
"""
HEAD = """
import sys, threading, time, torch, overlapscope as ov
from torch.profiler import record_function

def work(name):
    with record_function(name):
        torch.ones(8, 8) @ torch.ones(8, 8)
"""
SHORT = (
    "overlapscope: The program made only {} of the 41 steps needed; its first steps were recorded instead. "
    "--plain-steps 0 needs 10."
)
AS_IT_IS = "the recording is used as it is"
Done = subprocess.CompletedProcess[str]


def execute(command: Sequence[str], cwd: Path, *, stdin: str = "", **environment: str) -> Done:
    """Run a command to its end."""
    return subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=forked.PATIENCE_S,
    )


def write(path: Path, text: str) -> Path:
    """Write a file and the directories that it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def run(options: str, program: str, cwd: Path) -> list[str]:
    """Run a program with `overlapscope run OPTIONS -o x.json`, and return its notes."""
    write(cwd / "program.py", HEAD + program)
    done = forked.run([*FORKED, "-o", "x.json", *options.split(), "program.py"], cwd)
    assert done.returncode == 0, done.stderr
    ours = [line for line in done.stderr.splitlines() if line.startswith("overlapscope: ")]
    common = ("no GPU was used", " wrote ", "a complete recording takes", "shows the report again", "Steps: ")
    at_end = [line for line in ours if not any(words in line for words in common)]
    return [line.removeprefix("overlapscope: ") for line in at_end]


def messages(run: Done) -> list[str]:
    """Return what overlapscope and Python wrote to stderr; Kineto of torch 2.13 writes there, too."""
    return [line for line in run.stderr.splitlines() if not line.startswith("USDT:")]


def wrote(path: str) -> str:
    """Return the line about a trace that was written."""
    return f"overlapscope: wrote {path}, analyze with `overlapscope analyze {path}`"


def no_gpu() -> str:
    """Return the line about a trace without a GPU."""
    return f"overlapscope: no GPU was used, so the report is on the host alone: {devices.why_unused()}."


def ours(run: Done) -> list[str]:
    """Return overlapscope's messages, without the report and the messages about every program."""
    common = ("a complete recording takes ", "shows the report again.", "overlapscope: Steps: ", ", median ")
    lines = [line for line in run.stderr.splitlines() if line.startswith(("overlapscope: ", "overlapscope ("))]
    return [line for line in lines if not any(words in line for words in common)]

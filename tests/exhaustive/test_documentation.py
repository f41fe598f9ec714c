"""Recordings that the documentation tells a reader to make, without a GPU; `test_docs.py` has the others."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.documented import BLOCKS, lines

SCRIPTS = [block.text for block in BLOCKS if block.page.name == "tutorial.md" and block.language == "python"]
COMMANDS = {
    line for block in BLOCKS if block.language == "sh" for line in lines(block.text) if "overlapscope run " in line
}
NOT_HERE = {
    "--open": "serves until Ctrl-C: tests/browser",
    "--delay": "waits for half a minute: tests/torch/test_windows_by_time.py",
    "--slow-step": "waits for a slow step: tests/torch/test_windows_by_time.py",
    "--check-hazards": "needs a GPU: tests/plugins/hazards/gpu",
    "cudaProfilerApi": "needs a GPU: tests/gpu",
    "--on-demand": "records when asked: tests/plugins/watch/torch/test_watch.py",
    "prefetch.py": "needs a GPU: its recordings are in tests/programs/contract",
    "torchrun": "starts ranks: tests/torch/test_run_processes.py",
}
"""Commands that cannot run here, with the reason and where they are tested."""
PROGRAM = """\
import overlapscope
import torch

with torch.profiler.record_function("epoch"):
    for _ in range(45):
        torch.ones(8).sum()
        overlapscope.step()
"""
GIVEN = """\
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batches = [torch.randn(4, 8) for _ in range(12)]
"""
"""Names that the scripts leave out."""
NO_GPU = """\
import contextlib
from types import SimpleNamespace

import torch

torch.cuda.Stream = lambda: None
torch.cuda.stream = lambda stream: contextlib.nullcontext()
torch.cuda.current_stream = lambda: SimpleNamespace(wait_stream=lambda stream: None)
torch.Tensor.record_stream = lambda *_: None
"""
"""Streams that do nothing."""


GAN = """\
import torch

players = [torch.nn.Linear(8, 8) for _ in range(2)]
optimizers = [torch.optim.Adam(player.parameters()) for player in players]
for _ in range(45):
    for player, optimizer in zip(players, optimizers):
        player(torch.ones(4, 8)).sum().backward()
        optimizer.step()
"""
SAMPLE = """\
import torch

class UNet2DModel(torch.nn.Linear):
    pass

model = UNet2DModel(8, 8)
with torch.no_grad():
    for _ in range(45):
        model(torch.ones(4, 8))
"""


SERVE = """\
import torch

model = torch.nn.Linear(8, 8)
for number in range(45):
    with torch.profiler.record_function(f"request {number}"):
        model(torch.ones(4, 8))
"""
PROGRAMS = {
    "train.py": PROGRAM,
    "launch.py": PROGRAM,
    "ppo.py": PROGRAM,
    "gan.py": GAN,
    "sample.py": SAMPLE,
    "serve.py": SERVE,
    "train.ipynb": json.dumps(
        {
            "cells": [{"cell_type": "code", "metadata": {}, "outputs": [], "source": PROGRAM}],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 4,
        }
    ),
}


@pytest.mark.parametrize("script", SCRIPTS, ids=("slow", "fixed"))
def test_a_script_of_the_tutorial_runs_and_is_recorded(script: str, tmp_path: Path) -> None:
    given = re.sub(r"^model, optimizer, batches = .*$", GIVEN, script, flags=re.MULTILINE).replace('"cuda"', '"cpu"')
    assert given.count("torch.randn") == 1
    (tmp_path / "train.py").write_text(NO_GPU + given)
    done = forked.run(["-m", "overlapscope", "run", "train.py"], tmp_path, unloads=False)
    assert done.returncode == 0 and (tmp_path / "train.trace.json.gz").exists(), done.stderr


@pytest.mark.parametrize("line", sorted(line for line in COMMANDS if not any(command in line for command in NOT_HERE)))
def test_a_recording_is_made(line: str, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
    done = forked.run(["-m", *shlex.split(line)], tmp_path, unloads=False)
    assert done.returncode == 0 and list(tmp_path.rglob("*.trace.json.gz")), done.stderr

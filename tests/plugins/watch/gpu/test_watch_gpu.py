"""A training on the GPU that is recorded while it goes on."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import overlapscope as ov
from overlapscope.plugins.watch.ask import Asking
from overlapscope.plugins.watch.protocol import RecordingRequest
from overlapscope.recorder.options import Options
from tests.plugins.watch.torch.test_watch import PATIENCE_S, place, started, stepping, waited

__all__ = ["place", "started"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

TRAINING = """
import os, sys, torch
model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(4))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
batches = [torch.randn(512, 2048) for _ in range(4)]
number = 0
while not os.path.exists("enough"):
    optimizer.zero_grad()
    model(batches[number % 4].cuda()).square().mean().backward()
    optimizer.step()
    number += 1
print("trained")
"""


@pytest.mark.parametrize("by", ["steps", "light", "seconds"])
def test_it_is_recorded_and_goes_on(by: str, started: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    training = started(TRAINING)
    stepping()
    path = tmp_path / "x.trace.json.gz"
    options = Options(duration_s=0.5, plain_steps=0) if by == "seconds" else Options(active=5, light=by == "light")
    asked = RecordingRequest(path=str(path), options=options)
    with Asking(training.pid, asked) as asking:
        outcome = asking.outcome(lambda step: None, until_begun_s=PATIENCE_S)
    assert outcome.failure == ""
    report = ov.analyze(path)
    (device,) = report.devices
    assert device.exposed_copy_by_cause["pageable-memory"] > 0
    assert "pageable-memory" in {finding.rule for finding in report.findings}
    if by != "seconds":
        assert device.plain is not None and device.plain.origin == "measured"
    (status,) = waited(lambda programs: len(programs) == 1 and programs[0].plain_step_ns is not None)
    if by != "seconds" and device.plain is not None and status.plain_step_ns is not None:
        # The same unit, at least: the first of these steps still warm up.
        assert 0.1 < status.plain_step_ns / device.plain.step_ns < 10
    (tmp_path / "enough").touch()
    printed, _ = training.communicate(timeout=PATIENCE_S)
    assert (training.returncode, printed) == (0, "trained\n")

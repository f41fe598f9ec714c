"""Calibration on a real GPU: everything is seen, and it makes sense."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec
import pytest
import torch

from overlapscope.commands import main
from overlapscope.prediction import calibration

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_calibrating_measures_every_constant(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "calibration.json"
    assert main(["scenarios", "calibrate", "--output", str(path)]) == 0
    contents = calibration.read(path)
    assert contents.gpu == torch.cuda.get_device_name() and contents.torch == torch.__version__
    assert contents.gpu in capsys.readouterr().err
    assert all(value not in (None, ()) for value in msgspec.structs.asdict(contents.constants).values())
    for copies in (contents.constants.h2d, contents.constants.d2h):
        assert len(copies) == 10
        # A copy of a quarter of the size takes less.
        assert all(less.duration_ns < more.duration_ns for less, more in itertools.pairwise(copies))
        assert all(copy.low_ns <= copy.duration_ns <= copy.high_ns for copy in copies)
    # An earlier calibration is replaced.
    assert main(["scenarios", "calibrate", "--output", str(path)]) == 0

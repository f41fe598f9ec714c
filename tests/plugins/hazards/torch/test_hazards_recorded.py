"""Recordings in which data races are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import overlapscope as ov
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

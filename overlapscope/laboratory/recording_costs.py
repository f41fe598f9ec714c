"""Measures what recording costs the host, for each kind of event: loops timed with and without a profiler, in turns."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from overlapscope.recorder.recording import SilentRecording

_EVENTS = 2000
_ROUNDS = 3


def measure() -> dict[str, int]:
    """`op_cost_ns`, `call_cost_ns` and `frame_cost_ns` (`prediction.constants`) of this machine. Needs a GPU."""
    stream = torch.cuda.current_stream()
    loops: dict[str, tuple[Callable[[], object], bool]] = {
        "op_cost_ns": (_one_op, False),
        "call_cost_ns": (stream.query, False),
        "frame_cost_ns": (_nothing, True),
    }
    return {name: _added_ns(event, stacks=stacks) for name, (event, stacks) in loops.items()}


def _added_ns(event: Callable[[], object], *, stacks: bool) -> int:
    rounds = (_recorded_ns(event, stacks=stacks) - _plain_ns(event) for _ in range(_ROUNDS))
    return max(0, round(statistics.median(rounds)))


def _one_op() -> torch.Tensor:
    return torch.empty(0)


def _nothing() -> None:
    pass


def _plain_ns(event: Callable[[], object]) -> float:
    begun = time.perf_counter_ns()
    for _ in range(_EVENTS):
        event()
    return (time.perf_counter_ns() - begun) / _EVENTS


def _recorded_ns(event: Callable[[], object], *, stacks: bool) -> float:
    with tempfile.TemporaryDirectory() as directory:
        recording = SilentRecording(Path(directory) / "costs.json", plain_steps=0, stacks=stacks)
        with recording:
            return _plain_ns(event)

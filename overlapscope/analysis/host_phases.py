"""Phases of a training step, by the functions of PyTorch in a sampled stack."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from overlapscope.analysis.host_lines import main_stacks
from overlapscope.trace.host_activity import HostActivity, StackFrame

Phase = Literal["data loading", "forward", "backward", "optimizer", "other"]
PHASES: Final[tuple[Phase, ...]] = ("data loading", "forward", "backward", "optimizer", "other")
"""All phases, in the order of a step."""
_ENTRIES: Final[tuple[tuple[Phase, re.Pattern[str]], ...]] = (
    ("data loading", re.compile(r"(?:^|/)torch/utils/data/dataloader\.py:(?:__next__|_next_data|__iter__)$")),
    ("forward", re.compile(r"(?:^|/)torch/nn/modules/module\.py:_(?:wrapped_)?call_impl$")),
    ("backward", re.compile(r"(?:^|/)torch/(?:_tensor\.py:backward|autograd/__init__\.py:(?:backward|grad))$")),
    ("optimizer", re.compile(r"(?:^|/)torch/(?:optim/|nn/utils/clip_grad\.py:|amp/grad_scaler\.py:)")),
)
"""Functions of a phase, as `file:function`."""


def phase_samples(activity: HostActivity) -> Mapping[Phase, int]:
    """Return the samples of the main thread in each phase, in the order of `PHASES`; they add up to all of them."""
    entries = [_entry(frame) for frame in activity.frames]
    samples: Counter[Phase] = Counter()
    for stack in main_stacks(activity):
        samples[_phase([entries[number] for number in stack.frames])] += stack.samples
    return {phase: samples[phase] for phase in PHASES}


def _entry(frame: StackFrame) -> Phase | None:
    place = f"{frame.file}:{frame.function.rpartition('.')[2]}".replace("\\", "/")
    return next((phase for phase, entry in _ENTRIES if entry.search(place)), None)


def _phase(entries: Sequence[Phase | None]) -> Phase:
    """Return the innermost phase of a stack.

    Modules that compute a batch, or a layer again in the backward pass, belong to that phase. A closure that an
    optimizer calls has phases of its own.
    """
    inner = [phase for phase in reversed(entries) if phase is not None]
    outer = (phase for phase in inner if phase != "forward")
    if inner[:1] == ["forward"]:
        around = next(outer, None)
        return around if around in ("data loading", "backward") else "forward"
    return next(outer, "other")

"""Sampled stacks of the main thread by line of the user's code, as a tree for a flame graph, and by phase of a step.

Times are estimates: each sample stands for an equal part of the sampled steps. Sums of samples are exact.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, Literal, TypeAlias

from msgspec import Struct

from overlapscope.trace.host import is_library
from overlapscope.trace.host_activity import HostActivity, SampledStack, StackFrame, is_python

_WRAPPERS: Final = frozenset(
    {
        "_wrapped_call_impl",
        "_call_impl",
        "_use_grad",
        "decorate_context",
        "maybe_fallback",
        "wrapper",
        "wrapped",
        "inner",
        "_fn",
    }
)
"""Names of functions that only call another function, which says more."""
_TORCH: Final = re.compile(r"(?:^|[/\\])torch[/\\]")
_MIN_SHARE = 0.005
"""Smallest share of all samples that is a part of its own in a flame graph."""
_MAX_DEPTH = 100
"""Maximum number of functions above one another in a flame graph. Deeper ones belong to the last of these."""

_Key: TypeAlias = tuple[str, int, str]
"""File, line and function."""
_JOINED: Final = ("", 0, "")
"""Key of small parts together, and of stacks without frames."""


class HostLine(Struct, frozen=True):
    """A line of the user's code, and the samples that found it innermost among the lines of the user's code."""

    file: str
    """Full path; empty for samples without a line."""
    line: int
    function: str
    calls: tuple[tuple[str, int], ...]
    """Functions of libraries that the line called, with their samples, most first."""
    samples: int
    running: int
    """Number of these samples in which the thread ran; it slept or waited in the others."""

    @property
    def called(self) -> str:
        """The function that has at least half of the samples; empty if none has."""
        return next((name for name, samples in self.calls[:1] if 2 * samples >= self.samples), "")

    @property
    def place(self) -> str:
        """The line without the directory, such as `train.py:212`; empty if unknown."""
        return place(self.file, self.line)


class FlamePart(Struct, frozen=True):
    """A line of the user's code or a function of a library, with all that it calls."""

    caller: int
    """Position of the calling part in the graph; -1 for the outermost."""
    file: str
    line: int
    """0 for a function of a library."""
    function: str
    """Empty for small parts of the same caller together."""
    is_own: bool
    """True for the user's own code."""
    samples: int
    running: int
    """Number of these samples in which the thread ran."""


def place(file: str, line: int) -> str:
    """Return a line without its directory, such as `train.py:212`."""
    name = PurePosixPath(file.replace("\\", "/")).name
    return f"{name}:{line}" if line else name


def most_python(activity: HostActivity) -> float:
    """Return the share of samples in Python of the user's function, or line outside of functions, that has most."""
    samples: Counter[tuple[str, int | str]] = Counter()
    stacks = activity.main_stacks
    for stack in stacks:
        frames = [activity.frames[number] for number in stack.frames]
        if frames and is_python(frames):
            frame = frames[_own_line(frames)]
            # Parts of a line, such as `<genexpr>`, and of a module have no name of their own.
            within = frame.line if "<" in frame.function else frame.function
            samples[frame.file, within] += stack.samples
    return max(samples.values(), default=0) / max(1, sum(stack.samples for stack in stacks))


def host_lines(activity: HostActivity) -> tuple[HostLine, ...]:
    """Return the lines of the main thread, most samples first. Their samples add up to those of the thread.

    A stack without the user's code counts for its innermost line.
    """
    samples, running, calls = Counter[_Key](), Counter[_Key](), defaultdict[_Key, Counter[str]](Counter)
    for stack in activity.main_stacks:
        frames = [activity.frames[number] for number in stack.frames]
        at = _own_line(frames)
        frame = frames[at] if frames else StackFrame(*_JOINED)
        key = frame.file, frame.line, frame.function
        samples[key] += stack.samples
        running[key] += stack.running
        # Wrappers say nothing of what is called.
        called = next((frame.function for frame in frames[at + 1 :] if not is_wrapper(frame)), "")
        if called:
            calls[key][called] += stack.samples
    most_first = sorted(samples, key=lambda key: (-samples[key], key))
    return tuple(HostLine(*key, tuple(calls[key].most_common()), samples[key], running[key]) for key in most_first)


def flame(activity: HostActivity) -> tuple[FlamePart, ...]:
    """Return the calls of the main thread as a tree: parts after their callers, most samples first.

    Samples of a part are those of the parts that it calls, and those that found it innermost. Parts of less than 0.5%
    of all samples are joined with those of the same caller. The functions that wrappers call belong to their caller.
    """
    keys: list[_Key | None] = [
        # Lines of a library's function are one part.
        None if is_wrapper(frame) else (frame.file, 0 if is_library(frame.file) else frame.line, frame.function)
        for frame in activity.frames
    ]
    root = _SampleSum()
    for stack in activity.main_stacks:
        node = root
        node.add(stack)
        shown = [key for number in stack.frames if (key := keys[number]) is not None]
        for key in shown[:_MAX_DEPTH] or [_JOINED]:
            node = node.inner[key]
            node.add(stack)
    parts = list[FlamePart]()
    callers = [(-1, root)]
    while callers:
        (caller, node), small = callers.pop(), _SampleSum()
        for key, part in sorted(node.inner.items(), key=lambda item: (-item[1].samples, item[0])):
            if part.samples < _MIN_SHARE * root.samples or key == _JOINED:
                small.add(part)
                continue
            callers.append((len(parts), part))
            parts.append(FlamePart(caller, *key, not is_library(key[0]), part.samples, part.running))
        if small.samples:
            parts.append(FlamePart(caller, *_JOINED, False, small.samples, small.running))
    return tuple(parts)


class _SampleSum:
    """Samples of a function with all that it calls, while they are added up."""

    def __init__(self) -> None:
        self.samples, self.running = 0, 0
        self.inner = defaultdict[_Key, _SampleSum](_SampleSum)

    def add(self, part: SampledStack | _SampleSum) -> None:
        """Add the samples of a stack or of a part."""
        self.samples += part.samples
        self.running += part.running


def _own_line(frames: Sequence[StackFrame]) -> int:
    """Return the position of the innermost frame of the user's code, or else of the innermost frame."""
    user_frames = (at for at in range(len(frames) - 1, -1, -1) if not is_library(frames[at].file))
    return next(user_frames, len(frames) - 1)


def is_wrapper(frame: StackFrame) -> bool:
    """Return whether a frame is of a library's function that only calls another one."""
    name = frame.function.rpartition(".")[2]
    return is_library(frame.file) and (name in _WRAPPERS or (name == "__call__" and bool(_TORCH.search(frame.file))))


# -- Phases of a training step -----------------------------------------------------------------------

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
    for stack in activity.main_stacks:
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

"""The sampled stacks of traces as a file for speedscope, which draws flame graphs (https://www.speedscope.app)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from overlapscope.base.words import clean
from overlapscope.errors import NotInTrace
from overlapscope.trace.host_activity import StackFrame
from overlapscope.trace.model import Trace
from overlapscope.version import __version__

_RARE: Final = StackFrame("", 0, "rare stacks")


def render(traces: Sequence[Trace]) -> bytes:
    """Return the file, which has a profile for each sampled thread, the threads that run the steps first.

    Weights are numbers of samples. They were taken in steps without the profiler.

    Raises:
        NotInTrace: No trace has samples.
    """
    frames: dict[tuple[str, str, int], int] = {}
    profiles = [profile for trace in traces for profile in _profiles(trace, frames, several=len(traces) > 1)]
    if not profiles:
        names = ", ".join(clean(trace.source, 100) for trace in traces[:3])
        raise NotInTrace(f"{names}: no stacks of the host were sampled; `overlapscope run` samples them.")
    shared = [{"name": name, "file": file} | ({"line": line} if line else {}) for name, file, line in frames]
    return msgspec.json.encode(
        {
            "$schema": "https://www.speedscope.app/file-format-schema.json",
            "exporter": f"overlapscope {__version__}",
            "shared": {"frames": shared},
            "profiles": profiles,
        }
    )


def _profiles(trace: Trace, frames: dict[tuple[str, str, int], int], *, several: bool) -> Iterator[dict[str, Any]]:
    activity = trace.host_activity
    threads = dict.fromkeys((activity.thread, *(stack.thread for stack in activity.stacks)))
    for thread in threads:
        stacks = [stack for stack in activity.stacks if stack.thread == thread]
        if not stacks:
            continue
        of = f"{clean(trace.source, 200)}, " if several else ""
        name = clean(trace.thread_names.get(thread, ""), 80) or str(thread)
        yield {
            "type": "sampled",
            "name": f"{of}thread {name}{' (steps)' if thread == activity.thread else ''}",
            "unit": "none",
            "startValue": 0,
            "endValue": sum(stack.samples for stack in stacks),
            "samples": [
                [_frame(frames, frame) for frame in [activity.frames[number] for number in stack.frames] or [_RARE]]
                for stack in stacks
            ],
            "weights": [stack.samples for stack in stacks],
        }


def _frame(frames: dict[tuple[str, str, int], int], frame: StackFrame) -> int:
    """Return the number of a frame among those of all profiles."""
    return frames.setdefault((clean(frame.function) or "?", clean(frame.file), frame.line), len(frames))

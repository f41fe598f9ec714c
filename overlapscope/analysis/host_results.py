"""Results on the host's time by op, thread, sampled line and cause. All times are integer nanoseconds."""

from __future__ import annotations

import msgspec


class OpTime(msgspec.Struct, frozen=True, kw_only=True):
    """Outermost CPU ops of the same name."""

    op: str
    count: int
    time_ns: int


class ThreadUse(msgspec.Struct, frozen=True, kw_only=True):
    """Time that one thread was in CPU ops."""

    thread: int
    name: str = ""
    """Python's name of the thread; empty if the recording doesn't state it."""
    steps: bool
    """True if the steps run on it."""
    busy_ns: int


class LineTime(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code, by samples of the program without the profiler."""

    line: str
    """File and number, such as `train.py:212`."""
    function: str
    calls: str
    """Function of a library that it calls most; empty if it calls none."""
    time_ns: int
    """Part of an average step."""


class SampledStep(msgspec.Struct, frozen=True, kw_only=True):
    """The launching thread in an average step without the profiler, as far as samples and facts of the host show it.

    A GPU that has work left waits for only a part of these times.
    """

    step_ns: int
    """Length of the step of which the times are parts."""
    lines: tuple[LineTime, ...] = ()
    """Lines with the most samples, at most 20."""
    by_cause: dict[str, int] = {}
    """Time by cause: `gil-wait`, `file-io`, `preempted`, `cpu-throttled`, `gc-pause`; without causes of no time."""

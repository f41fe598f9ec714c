"""Results on the host's time in a program that runs nothing on a GPU. All times are integer nanoseconds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from overlapscope.analysis.figures import Window


class HostStep(msgspec.Struct, frozen=True, kw_only=True):
    """One step on the host, from its mark to the next. Its three parts add up to it."""

    name: str
    window: Window
    span_ns: int
    loading_ns: int
    """Time inside the DataLoader's next."""
    ops_ns: int
    """Time in other CPU ops."""
    rest_ns: int
    """Time in neither: Python, and anything that the profiler doesn't record."""


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


class HostPlain(msgspec.Struct, frozen=True, kw_only=True):
    """Length of a step without the profiler, timed by the recorder."""

    step_ns: int
    low_ns: int
    high_ns: int


class HostUse(msgspec.Struct, frozen=True, kw_only=True):
    """Host time of a program that runs nothing on a GPU."""

    by_steps: bool
    """False if no steps are marked; then the only one of `steps` is the whole recording."""
    steps: Annotated[tuple[HostStep, ...], msgspec.Meta(min_length=1)]
    loader: Literal["none", "own-thread", "workers"]
    """Maker of the DataLoader's batches: no loader, the thread that marks the steps, or worker processes."""
    ops: tuple[OpTime, ...]
    """Ops on that thread, in the steps, outside loading: the longest first, at most 20 names."""
    threads: tuple[ThreadUse, ...]
    """Threads in the steps: the thread of the steps first, then the busiest."""
    plain: HostPlain | None = None
    """None if the recorder timed too few steps."""

"""Steps and ranges: where host annotations begin and end on the device."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from overlapscope.analysis.timeline import Timeline
from overlapscope.intervals import I64, Bool
from overlapscope.trace import HostEvents, Trace

_STEP = re.compile(r"ProfilerStep#\d+")


@dataclass(frozen=True, slots=True, eq=False)
class Periods:
    """Windows on the device, by start: `[start_ns[i], end_ns[i])` belongs to annotation `row[i]`."""

    row: I64
    start_ns: I64
    end_ns: I64


def is_step(annotations: HostEvents) -> Bool:
    """Which annotations are profiler steps."""
    hit = np.zeros(len(annotations.names), np.bool_)
    hit[annotations.name_id] = True
    for name_id in np.flatnonzero(hit):
        hit[name_id] = _STEP.fullmatch(annotations.names[name_id]) is not None
    return hit[annotations.name_id]


def find_steps(trace: Trace, timeline: Timeline) -> Periods:
    """Each step begins at the first op launched from it on the main stream and ends where the next begins.

    A step that launched nothing there has no place on the device and is left out; the part of a step in the
    lead-in is cut off. The host runs ahead and side streams run early, so neither can bound a step.
    """
    rows = np.flatnonzero(is_step(trace.annotations))
    launches = _Launches(trace, timeline, timeline.main_stream)
    begins, found = launches.first_from(trace.annotations.start_ns[rows], trace.annotations.end_ns[rows])
    order = np.argsort(begins[found], kind="stable")
    begins = begins[found][order]
    return _judged(timeline, rows[found][order], begins, np.append(begins[1:], timeline.end_ns))


def find_ranges(trace: Trace, timeline: Timeline) -> Periods:
    """Each range begins like a step, and ends where the first op launched after it begins on the same stream.

    So an inner range lies within its outer one, and idle time between two ranges counts to the earlier, as
    between steps. A range that launched nothing on the main stream is placed by the stream on which it
    launched first.
    """
    notes = trace.annotations
    pending = np.flatnonzero(~is_step(notes))
    streams = [timeline.main_stream]
    streams += [int(s) for s in np.unique(timeline.ops.stream) if s != timeline.main_stream]
    parts: list[tuple[I64, I64, I64]] = []
    for stream in streams:
        if not len(pending):
            break
        launches = _Launches(trace, timeline, stream)
        begins, found = launches.first_from(notes.start_ns[pending], notes.end_ns[pending])
        ends = launches.first_after(notes.end_ns[pending[found]], timeline.end_ns)
        parts.append((pending[found], begins[found], ends))
        pending = pending[~found]
    if not parts:
        return Periods(*(np.empty(0, np.int64) for _ in range(3)))
    row, begin, end = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((-end, begin))
    return _judged(timeline, row[order], begin[order], end[order])


def _judged(timeline: Timeline, row: I64, start: I64, end: I64) -> Periods:
    start = np.maximum(start, timeline.judged_from_ns)
    kept = end > start
    return Periods(row[kept], start[kept], end[kept])


class _Launches:
    """The ops of one stream in launch order."""

    def __init__(self, trace: Trace, timeline: Timeline, stream: int) -> None:
        ops = timeline.ops
        mine = np.flatnonzero((ops.stream == stream) & (ops.launch >= 0))
        at = trace.runtime_calls.start_ns[ops.launch[mine]]
        order = np.lexsort((ops.start_ns[mine], at))
        self.launched_ns: I64 = at[order]
        self.start_ns: I64 = ops.start_ns[mine][order]

    def first_from(self, starts: I64, ends: I64) -> tuple[I64, Bool]:
        """Start of the first op launched in each host interval, and whether there is one."""
        low = np.searchsorted(self.launched_ns, starts, side="left")
        high = np.searchsorted(self.launched_ns, ends, side="left")
        # `reduceat` over pairs of bounds; what it puts between them, and for empty intervals, is not used.
        bounds = np.stack([low, high], axis=1).ravel()
        first = np.minimum.reduceat(np.append(self.start_ns, 0), bounds)[::2] if len(bounds) else low
        return first, low < high

    def first_after(self, at: I64, otherwise: int) -> I64:
        """Start of the first op launched at or after each host time."""
        following = np.minimum.accumulate(np.append(self.start_ns, otherwise)[::-1])[::-1]
        return following[np.searchsorted(self.launched_ns, at, side="left")]

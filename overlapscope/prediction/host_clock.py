"""Times of the host in a replay: where each instant of the recording's host threads comes to lie."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.grouping import distinct
from overlapscope.analysis.host import on_thread, rows_of
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import Intervals, contains, covered, union
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.overhead import LEFT, MOST_TIMES, event_cost
from overlapscope.prediction.replay import Replay
from overlapscope.trace.model import F64, I64, HostEvents

H = TypeVar("H", bound=HostEvents)
_Knots = tuple[I64, F64]
"""Instants of the recording, ascending, and their times in the replay."""


class HostClock:
    """Maps the host's times to those of the replay.

    Calls have the replay's times. Work between two calls that becomes shorter loses time first where the profiler had
    added it, then everywhere alike. The profiler notes the start of an op last before the op, and its end first after
    it, so its overhead lies outside of the op. The overhead on a runtime call lies inside the call.
    """

    def __init__(self, graph: Graph, replayed: Replay) -> None:
        calls = graph.calls
        self._origin = int(min(calls.start_ns.min(initial=2**62), graph.items.start_ns.min(initial=2**62)))
        self._knots: dict[int, tuple[I64, F64]] = {}
        for thread, of_thread in graph.by_thread():
            measured = np.stack([calls.start_ns[of_thread], calls.end_ns[of_thread]], axis=1).ravel()
            moved = np.stack([replayed.call_start_ns[of_thread], replayed.call_end_ns[of_thread]], axis=1).ravel()
            self._knots[thread] = _with_edges(graph, thread, measured, moved, self._origin)
        # Threads without calls follow the thread with the most calls.
        self._main = max(self._knots.values(), key=lambda knots: len(knots[0]), default=None)

    def host(self, table: H) -> H:
        """Return host events at their new times."""
        start, end = table.start_ns.copy(), table.end_ns.copy()
        for thread in distinct(table.thread).tolist():
            of_thread = table.thread == thread
            knots = self._knots.get(thread, self._main)
            if knots is not None:
                start[of_thread], end[of_thread] = (
                    self._moved(knots, start[of_thread]),
                    self._moved(knots, end[of_thread]),
                )
        return replace(table, start_ns=start, end_ns=np.maximum(start, end))

    def instant(self, at_ns: int) -> int:
        """Return an instant at its new time; -1 stays -1."""
        if at_ns < 0 or self._main is None:
            return at_ns
        return int(self._moved(self._main, np.array([at_ns]))[0])

    def _moved(self, knots: _Knots, at: I64) -> I64:
        measured, moved = knots
        at = at - self._origin
        result = np.interp(at, measured, moved)
        result = np.where(at < measured[0], at + moved[0] - measured[0], result)
        result = np.where(at > measured[-1], at + moved[-1] - measured[-1], result)
        whole: I64 = np.rint(result).astype(np.int64) + self._origin
        return whole


def work_inside(graph: Graph, thread: int, rows: I64, when: Intervals) -> I64:
    """Return how much of the work that is left before each call of a thread lies inside some times of the recording.

    Args:
        graph: A graph, perhaps with less work than the recording.
        thread: The thread.
        rows: Its calls, in order.
        when: Times of the recording.
    """
    its = graph.calls.take(rows)
    since, before = np.minimum(its.since_ns, its.start_ns), np.maximum(its.before_ns, 0)
    measured = np.maximum.accumulate(np.stack([since, its.start_ns], axis=1).ravel())
    length = np.diff(measured)
    length[::2] = np.minimum(before, length[::2])
    origin = int(measured[0])
    moved = origin + np.append(0, np.cumsum(length))
    at, left = _with_edges(graph, thread, measured, moved, origin, work=0)
    start, end = (np.rint(np.interp(side - origin, at, left)).astype(np.int64) for side in when)
    return covered(union(start, end), moved[::2] - origin, moved[1::2] - origin)


def _edges(graph: Graph, thread: int, called: I64, begins: int) -> tuple[I64, F64, F64]:
    """Return the instants at which host events of a thread begin or end, and the overhead right before and after each.

    Args:
        graph: The recording's graph.
        thread: Thread of the events.
        called: Starts and ends of the graph's calls of this thread, in turn.
        begins: 0 if the first of them is a start, 1 if it is an end.

    Returns:
        `(instants, overhead before, overhead after)`, in order.
    """
    trace = graph.trace
    op_ns, call_ns, around_ns, frame_ns = event_cost(trace, Constants())
    kept = mask_of(graph.calls.row, len(trace.runtime_calls))
    rows = rows_of(trace.runtime_calls, thread)
    parts = [(called, *_outside(len(called), around_ns, begins))]
    other = trace.runtime_calls.take(rows[~kept[rows]])
    for table, outside, inside in (
        (other, around_ns, call_ns),
        (trace.cpu_ops.take(rows_of(trace.cpu_ops, thread)), op_ns, 0.0),
        (trace.annotations.take(rows_of(trace.annotations, thread)), op_ns, 0.0),
        (trace.python_frames.take(rows_of(trace.python_frames, thread)), frame_ns, 0.0),
    ):
        count = len(table)
        at = np.stack([table.start_ns, table.end_ns], axis=1).ravel()
        before, after = _outside(2 * count, outside)
        within_before, within_after = _outside(2 * count, inside)
        parts.append((at, before + within_after, after + within_before))
    at, before, after = (np.concatenate(column) for column in zip(*parts, strict=True))
    # An event that ends where another begins comes first, and a call's edge bounds the work on either side.
    order = np.argsort(at, kind="stable")
    return at[order], before[order], after[order]


def _outside(count: int, each_ns: float, begins: int = 0) -> tuple[F64, F64]:
    """Return the overhead before and after each edge, where starts and ends alternate: half of it on either side."""
    starts = np.arange(count) % 2 == begins
    return np.where(starts, each_ns / 2, 0.0), np.where(starts, 0.0, each_ns / 2)


def _with_edges(graph: Graph, thread: int, measured: I64, moved: I64, origin: int, *, work: int = 1) -> _Knots:
    """Return the knots of a thread: its calls, and the edges of events inside work that becomes shorter.

    Args:
        graph: The recording's graph.
        thread: The thread.
        measured: Measured starts and ends of its calls, in turn.
        moved: Their times in the replay.
        origin: Instant that the knots count from, so that they are exact as floating-point numbers.
        work: 1 if the first two enclose a call, 0 if they enclose the work before a call.
    """
    measured = np.maximum.accumulate(measured - origin)
    moved = moved - origin
    lost = np.maximum(np.diff(measured) - np.diff(moved), 0)
    lost[1 - work :: 2] = 0
    at, before, after = _edges(graph, thread, measured + origin, 1 - work)
    at = at - origin
    # The work that each segment between two edges lies in, or a call.
    place = np.searchsorted(measured, at[:-1], side="right") - 1
    within = (place >= 0) & (place < len(lost))
    within[within] = lost[place[within]] > 0
    segment = np.flatnonzero(within)
    if not len(segment):
        return measured, moved.astype(np.float64)
    place, length, count = place[segment], np.diff(at)[segment], len(lost)
    added = (after[:-1] + before[1:])[segment]
    times = np.minimum(lost / np.maximum(np.bincount(place, added, count), 1.0), MOST_TIMES)
    inside_calls = contains(on_thread(graph.trace.runtime_calls, thread), at[segment] + origin)
    left = np.maximum(length - added * times[place], np.where(inside_calls, LEFT * length, 0.0))
    staying = np.bincount(place, left, count)
    left *= ((np.diff(measured) - lost) / np.maximum(staying, 1.0))[place]
    reached = np.cumsum(left)
    first = np.searchsorted(place, place, side="left")
    new = moved[place] + reached - np.append(0.0, reached)[first]
    inner = at[segment + 1] < measured[place + 1]
    knots, first = np.unique(np.concatenate([measured, at[segment + 1][inner]]), return_index=True)
    return knots, np.maximum.accumulate(np.concatenate([moved, new[inner]])[first])

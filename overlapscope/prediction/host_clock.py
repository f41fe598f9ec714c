"""Times of the host in a replay: where each instant of the recording's host threads comes to lie."""

from __future__ import annotations

from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.host import on_thread, rows_of
from overlapscope.base.columns import I32, mask_of, quantile
from overlapscope.base.grouping import distinct, group_starts
from overlapscope.base.intervals import Intervals, contains, covered, union
from overlapscope.base.kept import kept
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Graph, RecordedParts, by_thread
from overlapscope.prediction.hardware import launches_single_kernel
from overlapscope.prediction.replay import Replay
from overlapscope.trace.model import F64, I64, Bool, HostEvents, Trace

MAX_OVERHEAD_FACTOR = 3.0
"""Maximum overhead to remove, as a multiple of the overhead by the launch calls; up to 2 was seen
(`docs/evaluation/plain.md`)."""
PLAIN_LAUNCH_NS = 2200.0
"""Length of a kernel's launch call without recording. This and the fractions below fit 37 recordings of 22 programs on
H200s, which were also timed without a profiler (`docs/evaluation/plain.md`)."""
_OP, _CALL, _AROUND_CALL, _FRAME = 0.8, 0.8, 0.6, 0.3
"""Overhead of an op, of a call, around a call, and of a Python function, as fractions of the overhead of a launch call.
"""
_USUAL_ADDED_NS = 2500.0
"""Overhead of a launch call in recordings with too few launches to measure it."""
_MIN_LAUNCHES = 20
_QUICK_CALL_QUANTILE = 0.1
"""Quantile of the lengths of launch calls that counts as their length: longer calls wait for room in a queue, or load a
module."""
MIN_REMAINING_SHARE = 0.2
"""Minimum fraction of each stretch of host work that remains without the overhead."""
H = TypeVar("H", bound=HostEvents)
_MAX_THREADS = 2
"""Number of threads whose events are kept for the next replay. Most programs launch from two."""
_Edges = Literal["calls", "work"]
_Knots = tuple[I64, F64]
"""Instants of the recording, ascending, and their times in the replay."""


def event_cost(trace: Trace, calibrated: Constants) -> tuple[float, float, float, float]:
    """Return the overhead, in nanoseconds, of a recorded op, inside a call, around a call, and of a Python function.

    The recording's launch calls determine it, in the proportions of a calibration of the same machine, if there is one.
    """
    calls = trace.runtime_calls
    launches = np.flatnonzero(launches_single_kernel(calls))
    added = _USUAL_ADDED_NS
    if len(launches) >= _MIN_LAUNCHES:
        quick = quantile(calls.end_ns[launches] - calls.start_ns[launches], _QUICK_CALL_QUANTILE)
        added = max(quick - PLAIN_LAUNCH_NS, 0.0)
    op, call, around, frame = _OP, _CALL, _AROUND_CALL, _FRAME
    if calibrated.op_cost_ns and calibrated.call_cost_ns and calibrated.frame_cost_ns:
        then = max((calibrated.launch_call_ns or 0) - PLAIN_LAUNCH_NS, 1.0)
        op, frame = calibrated.op_cost_ns / then, calibrated.frame_cost_ns / then
        call, around = (calibrated.call_cost_ns / then * part / (_CALL + _AROUND_CALL) for part in (call, around))
    return op * added, call * added, around * added, frame * added


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
            moved = np.stack([replayed.call_start_ns[of_thread], replayed.call_end_ns[of_thread]], axis=1).ravel()
            self._knots[thread] = _with_edges(graph, thread, moved, self._origin)
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
    measured = _edges_of_calls(graph.recorded, thread, "work")
    length = np.diff(measured)
    length[::2] = np.minimum(np.maximum(graph.calls.before_ns[rows], 0), length[::2])
    origin = int(measured[0])
    moved = origin + np.append(0, np.cumsum(length))
    at, left = _with_edges(graph, thread, moved, origin, of="work")
    start, end = (np.rint(np.interp(side - origin, at, left)).astype(np.int64) for side in when)
    return covered(union(start, end), moved[::2] - origin, moved[1::2] - origin)


class _HostStretches(Struct, frozen=True, eq=False):
    """Stretches between instants at which host events of a thread begin or end, in order."""

    edge_ns: I64
    """The instants, one more than there are stretches."""
    place: I32
    """The last start or end of a call before each stretch; -1 for none."""
    added_ns: F64
    """Overhead of recording in each stretch."""
    in_call: Bool
    """True for a stretch inside a runtime call."""


@kept()
def _edges_of_calls(recorded: RecordedParts, thread: int, of: _Edges) -> I64:
    """Return the measured starts and ends of a thread's calls, or of the work before each call.

    They alternate, and none is earlier than the one before.
    """
    calls = recorded.calls.take(dict(by_thread(recorded))[thread])
    work = np.minimum(calls.since_ns, calls.start_ns), calls.start_ns
    sides = work if of == "work" else (calls.start_ns, calls.end_ns)
    return np.maximum.accumulate(np.stack(sides, axis=1).ravel())


@kept(most=_MAX_THREADS)
def _stretches(recorded: RecordedParts, thread: int, of: _Edges) -> _HostStretches:
    """Return the stretches between a thread's events and the instants of `_edges_of_calls`."""
    trace, called = recorded.trace, _edges_of_calls(recorded, thread, of)
    op_ns, call_ns, around_ns, frame_ns = event_cost(trace, Constants())
    in_graph = mask_of(recorded.calls.row, len(trace.runtime_calls))
    rows = rows_of(trace.runtime_calls, thread)
    tables: tuple[tuple[HostEvents, float, float], ...] = (
        (trace.runtime_calls.take(rows[~in_graph[rows]]), around_ns, call_ns),
        (trace.cpu_ops.take(rows_of(trace.cpu_ops, thread)), op_ns, 0.0),
        (trace.annotations.take(rows_of(trace.annotations, thread)), op_ns, 0.0),
        (trace.python_frames.take(rows_of(trace.python_frames, thread)), frame_ns, 0.0),
    )
    # Half of the overhead outside an event lies before its start, half after its end; half of that inside after its
    # start, half before its end.
    sides = [(0.0, around_ns / 2) if of == "work" else (around_ns / 2, 0.0)]
    sides += [(outside / 2, inside / 2) for _, outside, inside in tables]
    edges = [called, *(np.stack([table.start_ns, table.end_ns], axis=1).ravel() for table, _, _ in tables)]
    at = np.concatenate(edges)
    # An event that ends where another begins comes first, and a call's edge bounds the work on either side.
    order = np.argsort(at, kind="stable")
    before, after = (
        np.concatenate([np.tile(pair[::step], len(edge) // 2) for pair, edge in zip(sides, edges, strict=True)])[order]
        for step in (1, -1)
    )
    at = at[order]
    place = np.searchsorted(called, at[:-1], side="right") - 1
    in_call = contains(on_thread(trace.runtime_calls, thread), at[:-1])
    return _HostStretches(at, place.astype(np.int32), after[:-1] + before[1:], in_call)


def _with_edges(graph: Graph, thread: int, moved: I64, origin: int, *, of: _Edges = "calls") -> _Knots:
    """Return the knots of a thread: its calls, and the edges of events inside work that becomes shorter.

    Args:
        graph: A graph of the recording.
        thread: The thread.
        moved: Times in the replay of the instants of `_edges_of_calls`.
        origin: Instant that the knots count from, so that they are exact as floating-point numbers.
        of: As for `_edges_of_calls`.
    """
    measured = _edges_of_calls(graph.recorded, thread, of) - origin
    moved = moved - origin
    lost = np.maximum(np.diff(measured) - np.diff(moved), 0)
    # Only work gets shorter, which is every second stretch.
    lost[int(of == "work") :: 2] = 0
    if not lost.any():
        return measured, moved.astype(np.float64)
    segments, count = _stretches(graph.recorded, thread, of), len(lost)
    within = (segments.place >= 0) & (segments.place < count)
    within[within] = lost[segments.place[within]] > 0
    segment = np.flatnonzero(within)
    at, place, added = segments.edge_ns - origin, segments.place[segment], segments.added_ns[segment]
    length = at[segment + 1] - at[segment]
    times = np.minimum(lost / np.maximum(np.bincount(place, added, count), 1.0), MAX_OVERHEAD_FACTOR)
    left = np.maximum(
        length - added * times[place], np.where(segments.in_call[segment], MIN_REMAINING_SHARE * length, 0.0)
    )
    staying = np.bincount(place, left, count)
    left *= ((np.diff(measured) - lost) / np.maximum(staying, 1.0))[place]
    reached = np.cumsum(left)
    first = group_starts(place)
    # Time of the segments before the first in the same place.
    earlier = np.repeat(np.append(0.0, reached)[first], np.diff(first, append=len(place)))
    new = moved[place] + reached - earlier
    inner = (length > 0) & (at[segment + 1] < measured[place + 1])
    apart = group_starts(measured)
    knots = np.concatenate([measured[apart], at[segment + 1][inner]])
    order = np.argsort(knots, kind="stable")
    return knots[order], np.maximum.accumulate(np.concatenate([moved[apart], new[inner]])[order])

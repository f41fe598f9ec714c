"""Recording overhead of the host: a graph without it, and where instants of the host then come to lie.

The host takes longer for a CPU op, runtime call or Python function that is recorded. Ops on the device hardly change
(1% or less on an H200). So a recording becomes the plain program by shortening the host's work until its step is the
plain step: the work between two calls by the overhead of the events in it, each call by its own overhead.

The overhead varies between machines, and from hour to hour on a shared machine: 0.7 to 4 us for an op. So it only says
which work becomes shorter; the length of a plain step is timed by the recorder or told by the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis.average import known_plain_step
from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.plain_step import from_user
from overlapscope.analysis.results import PlainStep
from overlapscope.base.columns import I32, mask_of, quantile
from overlapscope.base.grouping import distinct, group_starts
from overlapscope.base.intervals import Intervals, contains, covered, union
from overlapscope.base.kept import kept
from overlapscope.prediction.base import Base
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import Graph, by_thread
from overlapscope.prediction.hardware import launches_single_kernel
from overlapscope.prediction.replay import Replay, replay
from overlapscope.prediction.steps import step_times
from overlapscope.trace.host import on_thread, rows_of
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


def event_costs(trace: Trace, calibrated: Constants) -> tuple[tuple[HostEvents, float, float], ...]:
    """Return each table of the host's events with the overhead around and inside an event, in ns; calls are the last.

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
    return (
        (trace.cpu_ops, op * added, 0.0),
        (trace.annotations, op * added, 0.0),
        (trace.python_frames, frame * added, 0.0),
        (calls, around * added, call * added),
    )


# -- A graph without the overhead ----------------------------------------------------------------------

_MAX_STEP_DIFFERENCE = 0.005
"""Maximum relative difference between a replayed step and the plain step that counts as equal."""
_ALIKE, DIFFER = 0.015, 0.03
"""Maximum relative errors of a step: with the usual overhead, and from differences of kernels and copies between runs.
"""
_MAX_OVERHEAD_SHARE = 0.98
"""Maximum fraction of the host's work that may be removed."""
_MAX_TRIES = 8


def plain_program(recorded: Base, user_step_ns: int | None) -> Base | None:
    """Return the plain program of a recording; None if its step is unknown or the recording cannot be replayed.

    Args:
        recorded: The recording, prepared for predictions.
        user_step_ns: Step time without recording, if the user passed it. Otherwise it is the one that the recorder
            timed.
    """
    if not recorded.fidelity.valid or recorded.trace.predicted_by is not None:
        return None
    step = known_step(recorded.trace, user_step_ns)
    return None if step is None else as_plain(recorded, step)


def known_step(trace: Trace, user_step_ns: int | None) -> PlainStep | None:
    """Return the step time without recording, if the user passed it or it was timed."""
    return known_plain_step(trace) if user_step_ns is None else from_user(user_step_ns)


def as_plain(base: Base, plain: PlainStep) -> Base:
    """Return the plain program: the recording's graph, with the host's work shortened until its step is the plain step.

    The overhead of events is removed first. The overhead by the launch calls is used if it gives the plain step within
    the differences between runs; otherwise up to `MAX_OVERHEAD_FACTOR` as much. If the step is still longer, a fraction
    of all host work is removed as well. Any remaining difference is scaled away (`Base.real_ns`), as it is if the plain
    step is longer than the recorded one.
    """
    step_ns, usual = plain.usual.step_ns, _lightened(base, 1.0)
    if abs(usual.steps.mean_ns - step_ns) <= _ALIKE * step_ns:
        return replace(usual, plain=plain)

    def without(times: float) -> Base:
        return usual if times == 1 else _lightened(base, times)

    fitted = _searched(base, step_ns, without, first=1.0, most=MAX_OVERHEAD_FACTOR)
    if fitted.steps.mean_ns > (1 + DIFFER) * step_ns:
        most = _MAX_OVERHEAD_SHARE
        fitted = _searched(
            fitted, step_ns, lambda part: _lightened(base, MAX_OVERHEAD_FACTOR, 1 - part), first=0.3, most=most
        )
    return replace(fitted, plain=plain)


def _searched(base: Base, wanted_ns: int, at: Callable[[float], Base], *, first: float, most: float) -> Base:
    """Shorten the host's work by the amount, from 0 to `most`, that brings the step nearest to the wanted one.

    The step gets no longer as the work gets shorter, and is nearly linear in it. So this is false position, with half
    the error of an end that stays ("Illinois"; Dowell and Jarratt, BIT 11, 1971).

    Returns:
        The recording with its host work shortened by that amount.
    """
    # The ends of the range: an amount whose step is too long, and one whose step is too short, with their errors.
    low, low_ns = 0.0, _over(base, wanted_ns)
    high, high_ns = most, 0.0
    best, best_ns, amount, was_long = base, low_ns, first, True
    for _ in range(_MAX_TRIES if low_ns > 0 else 0):
        reached = at(amount)
        over_ns = _over(reached, wanted_ns)
        if abs(over_ns) < abs(best_ns):
            best, best_ns = reached, over_ns
        if over_ns == 0 or (over_ns > 0 and amount >= most):
            break
        if over_ns < 0:
            low_ns, high, high_ns = low_ns if was_long else low_ns / 2, amount, over_ns
        else:
            # Where nothing is too short yet, go somewhat further than the last two points suggest.
            gained_ns, further = low_ns - over_ns, 3 * amount
            further = min(1.1 * (amount - low) * over_ns / gained_ns, further) if gained_ns > 0 else further
            low, low_ns, high_ns = amount, over_ns, high_ns / 2 if was_long else high_ns
            amount = min(amount + further, most)
        was_long = over_ns > 0
        if high_ns < 0:
            amount = low + (high - low) * low_ns / (low_ns - high_ns)
    return best


def lighter_ones(base: Base, step_ns: int) -> Iterator[Base]:
    """Yield replays of the recording with ever less host work, at least until its step is as short as the plain step.

    First they are without one, two... times the overhead by its launch calls, then with ever smaller fractions of the
    host's remaining work.
    """
    lighter = base
    for times in range(1, round(MAX_OVERHEAD_FACTOR) + 1):
        lighter = _lightened(base, times)
        yield lighter
    if lighter.steps.mean_ns > step_ns:
        for rest in (0.5, 1 - _MAX_OVERHEAD_SHARE):
            yield _lightened(base, MAX_OVERHEAD_FACTOR, rest)


def _lightened(base: Base, times: float, rest: float = 1.0) -> Base:
    """Replay the recording without `times` the overhead, and with the fraction `rest` of the remaining host work."""

    def shortened(lengths: I64, by: F64 | float) -> I64:
        # Lengths up to 0 are not work: the thread continued before the thread that handed over had returned.
        shorter = np.where(lengths > 0, np.maximum(lengths - times * by, MIN_REMAINING_SHARE * lengths) * rest, lengths)
        return np.rint(shorter).astype(np.int64)

    before_ns, call_ns = _host_cost(base)
    calls = base.graph.calls
    calls = replace(
        calls, before_ns=shortened(calls.before_ns, before_ns), length_ns=shortened(calls.length_ns, call_ns)
    )
    graph = replace(base.graph, calls=calls)
    replayed = replay(graph)
    steps = step_times(graph, base.judged, replayed.start_ns, replayed.end_ns)
    return replace(base, graph=graph, replayed=replayed, steps=steps)


def _over(base: Base, wanted_ns: int) -> float:
    """Return by how much the step is too long; 0 if the difference is negligible."""
    over = base.steps.mean_ns - wanted_ns
    return 0.0 if abs(over) <= _MAX_STEP_DIFFERENCE * wanted_ns else float(over)


@kept()
def _host_cost(base: Base) -> tuple[F64, float]:
    """Return the overhead of recording, in nanoseconds, in the work before each call, and inside a call.

    The work is on the call's thread or on the thread that handed over.
    """
    graph = base.graph
    trace, calls = graph.trace, graph.calls
    costs = event_costs(trace, base.hardware.calibrated)
    _, around_call_ns, call_ns = costs[-1]
    before = np.full(len(calls), around_call_ns)
    giver = np.where(calls.handed_by >= 0, calls.thread[calls.handed_by], calls.thread)
    for table, around_ns, inside_ns in costs:
        for number, thread in enumerate(graph.threads):
            starts, of_thread = table.start_ns[rows_of(table, thread)], (calls.thread == number) | (giver == number)
            begun, before_it = (np.searchsorted(starts, at[of_thread]) for at in (calls.start_ns, calls.since_ns))
            before[of_thread] += (around_ns + inside_ns) * np.maximum(begun - before_it, 0)
    return before, call_ns


# -- Times of the host in a replay ---------------------------------------------------------------------

H = TypeVar("H", bound=HostEvents)
_MAX_THREADS = 2
"""Number of threads whose events are kept for the next replay. Most programs launch from two."""
_Edges = Literal["calls", "work"]
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
    measured = _edges_of_calls(graph.trace, thread, "work")
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
def _edges_of_calls(trace: Trace, thread: int, of: _Edges) -> I64:
    """Return the measured starts and ends of a thread's calls, or of the work before each call.

    They alternate, and none is earlier than the one before.
    """
    calls = find_calls(trace).calls.take(dict(by_thread(trace))[thread])
    work = np.minimum(calls.since_ns, calls.start_ns), calls.start_ns
    sides = work if of == "work" else (calls.start_ns, calls.end_ns)
    return np.maximum.accumulate(np.stack(sides, axis=1).ravel())


@kept(most=_MAX_THREADS)
def _stretches(trace: Trace, thread: int, of: _Edges) -> _HostStretches:
    """Return the stretches between a thread's events and the instants of `_edges_of_calls`."""
    called = _edges_of_calls(trace, thread, of)
    *others, (runtime, around_ns, call_ns) = event_costs(trace, Constants())
    in_graph, rows = mask_of(find_calls(trace).calls.row, len(runtime)), rows_of(runtime, thread)
    tables = [(runtime.take(rows[~in_graph[rows]]), around_ns, call_ns)]
    tables += [(table.take(rows_of(table, thread)), outside, inside) for table, outside, inside in others]
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
    measured = _edges_of_calls(graph.trace, thread, of) - origin
    moved = moved - origin
    lost = np.maximum(np.diff(measured) - np.diff(moved), 0)
    # Only work gets shorter, which is every second stretch.
    lost[int(of == "work") :: 2] = 0
    if not lost.any():
        return measured, moved.astype(np.float64)
    segments, count = _stretches(graph.trace, thread, of), len(lost)
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

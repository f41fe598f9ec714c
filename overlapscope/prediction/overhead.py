"""Removal of recording overhead: a graph's host work is shortened until its step is the plain step.

The host takes longer for a CPU op, runtime call or Python function that is recorded. Ops on the device hardly change
(1% or less on an H200). So a recording becomes the plain program by shortening the host's work: the work between two
calls by the overhead of the events in it, each call by its own overhead.

The overhead varies between machines, and from hour to hour on a shared machine: 0.7 to 4 us for an op. So it only says
which work becomes shorter; the length of a plain step is timed by the recorder or told by the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.plain_step import from_user, measured
from overlapscope.analysis.results import PlainStep
from overlapscope.base.grouping import rows_by
from overlapscope.base.kept import kept
from overlapscope.prediction.base import Base
from overlapscope.prediction.host_clock import MAX_OVERHEAD_FACTOR, MIN_REMAINING_SHARE, event_cost
from overlapscope.prediction.replay import replay
from overlapscope.prediction.steps import step_times
from overlapscope.trace.model import F64, I64, HostEvents

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
    step = known_step(recorded, user_step_ns)
    return None if step is None else as_plain(recorded, step)


def known_step(base: Base, user_step_ns: int | None) -> PlainStep | None:
    """Return the step time without recording, if the user passed it or it was timed."""
    if user_step_ns is not None:
        return from_user(user_step_ns)
    return measured(base.trace.plain_steps, base.recorded.mean_ns, base.trace.host_activity)


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
    op_ns, call_ns, around_call_ns, frame_ns = event_cost(trace, base.hardware.calibrated)
    before = np.full(len(calls), around_call_ns)
    giver = np.where(calls.handed_by >= 0, calls.thread[calls.handed_by], calls.thread)
    tables: tuple[tuple[HostEvents, float], ...] = (
        (trace.cpu_ops, op_ns),
        (trace.annotations, op_ns),
        (trace.python_frames, frame_ns),
        (trace.runtime_calls, call_ns + around_call_ns),
    )
    for table, each in tables:
        rows_of = dict(rows_by(table.thread))
        for number, thread in enumerate(graph.recorded.threads):
            if thread in rows_of:
                starts = table.start_ns[rows_of[thread]]
                of_thread = (calls.thread == number) | (giver == number)
                inside = np.searchsorted(starts, calls.start_ns[of_thread]) - np.searchsorted(
                    starts, calls.since_ns[of_thread]
                )
                before[of_thread] += each * np.maximum(inside, 0)
    return before, call_ns

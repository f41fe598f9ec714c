"""The plain program: a recording's graph without what recording costs the host, with steps as long as they are then.

A CPU op, a runtime call or a Python function that is recorded takes the host longer than one that is not. Ops on the
device hardly change (1% or less on an H200). So a recording is turned into the plain program by taking time off the
host: from the work between two calls as much as the events in it cost, from each call what recording it costs.

How much that is differs from machine to machine, and from hour to hour on a shared one: 0.7 to 4 us for an op. It shows
in the recording itself, by how much longer a kernel's launch call is than one that nobody records. Where nobody timed
or told the plain step, it is estimated by that: an interval.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.grouping import rows_by
from overlapscope.analysis.plain_step import PlainStep, measured, told
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import covered, union
from overlapscope.prediction.base import Base
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.observed_hardware import KERNEL_LAUNCH
from overlapscope.prediction.replay import replay
from overlapscope.prediction.steps import lower_median, step_times
from overlapscope.trace.model import F64, I64, HostEvents, Trace

_CLOSE = 0.005
"""A replayed step is as long as the plain one if they differ by less than this share."""
_MOST_TIMES = 3.0
"""What recording cost was up to twice what its launch calls say (`docs/evaluation/plain.md`)."""
_ALIKE, _DIFFER = 0.015, 0.03
"""Shares of a step by which the usual cost may miss it, and by which kernels and copies differ at most between runs."""
_MOST_PART = 0.98
"""Of the host's work, which goes at most."""
_TRIES = 8
_LEAST, _MOST = 0.4, 2.0
"""Between which multiples of what recording costs by the recording's launch calls its cost lay, for 34 of 37 programs
(`docs/evaluation/plain.md`)."""
_DEVICE, _HOST = 0.03, 0.2
"""By what shares of the device's and of the host's part of a step programs differ from one process to the next
(`docs/evaluation/noise.md`)."""
PLAIN_LAUNCH_NS = 2200.0
"""A kernel's launch call that nobody records. This and the shares below fit 37 recordings of 22 programs on H200s, each
of which was timed without a profiler, too (`docs/evaluation/plain.md`)."""
_OP, _CALL, _AROUND_CALL, _FRAME = 0.8, 0.8, 0.6, 0.3
"""What recording an op, a call, what is around a call, and a Python function costs, as shares of what it adds to a
launch call."""
_USUAL_ADDED_NS = 2500.0
"""For recordings with too few launches to tell."""
_FEWEST = 20
_QUICK = 0.1
"""Quantile of launch calls: others wait for room in a queue, or load a module."""
_LEFT = 0.2
"""What is left at least of each stretch of host work by what its events cost."""


def known_step(base: Base, told_ns: int | None) -> PlainStep | None:
    """What a step takes while nothing is recorded, where that is told or was timed."""
    return told(told_ns) if told_ns is not None else measured(base.trace.plain_steps, base.recorded.median_ns)


def as_plain(base: Base, plain: PlainStep) -> Base:
    """The plain program: the recording's graph without what recording costs the host, until its step is the plain one.

    First the events' cost goes: what it is by the launch calls if that gives the plain step but for what kernels and
    copies differ by from run to run, else up to `_MOST_TIMES` that much. Where the step is still longer than they
    explain, a share of all host work goes as well. What then remains is in proportion (`Base.real_ns`), as it is where
    the plain step is longer than the recorded one.
    """
    cost = _host_cost(base)
    usual = _lightened(base, cost, 1.0)
    if abs(usual.steps.median_ns - plain.step_ns) <= _ALIKE * plain.step_ns:
        return replace(usual, plain=plain)
    fitted = _searched(
        base,
        plain.step_ns,
        lambda times: usual if times == 1 else _lightened(base, cost, times),
        first=1.0,
        most=_MOST_TIMES,
    )
    if fitted.steps.median_ns > (1 + _DIFFER) * plain.step_ns:
        least = fitted
        fitted = _searched(
            least, plain.step_ns, lambda part: _lightened(base, cost, _MOST_TIMES, 1 - part), first=0.3, most=_MOST_PART
        )
    return replace(fitted, plain=plain)


class _Tried(NamedTuple):
    """An amount of shortening, and by how much the step is too long with it; negative where it is too short."""

    amount: float
    over_ns: float

    @property
    def half(self) -> _Tried:
        """The same with half the error, so that the next guess moves towards it."""
        return self._replace(over_ns=self.over_ns / 2)


def _searched(base: Base, wanted_ns: int, at: Callable[[float], Base], *, first: float, most: float) -> Base:
    """Shorten the host's work by the amount, from 0 to `most`, that brings the step nearest to the wanted one.

    The step gets no longer as the work gets shorter, and is nearly linear in it. So this is false position, with half
    the error of an end that stays ("Illinois"; Dowell and Jarratt, BIT 11, 1971).
    """
    too_long, too_short = _Tried(0.0, _over(base, wanted_ns)), None
    best, best_over, amount, was_long = base, too_long.over_ns, first, True
    for _ in range(_TRIES if too_long.over_ns > 0 else 0):
        reached = at(amount)
        tried = _Tried(amount, _over(reached, wanted_ns))
        if abs(tried.over_ns) < abs(best_over):
            best, best_over = reached, tried.over_ns
        if tried.over_ns == 0 or (tried.over_ns > 0 and amount >= most):
            break
        if tried.over_ns < 0:
            too_long, too_short = too_long if was_long else too_long.half, tried
        elif too_short is None:
            too_long, amount = tried, min(amount + _further(too_long, tried), most)
        else:
            too_long, too_short = tried, too_short.half if was_long else too_short
        was_long = tried.over_ns > 0
        if too_short is not None:
            low, high = too_long, too_short
            amount = low.amount + (high.amount - low.amount) * low.over_ns / (low.over_ns - high.over_ns)
    return best


def _further(before: _Tried, now: _Tried) -> float:
    """Return how much to add where nothing is too short yet: somewhat more than the last two points suggest."""
    gained = before.over_ns - now.over_ns
    most = 3 * now.amount
    return min(1.1 * (now.amount - before.amount) * now.over_ns / gained, most) if gained > 0 else most


def _lightened(base: Base, cost: _HostCost, times: float, rest: float = 1.0) -> Base:
    """The recording without so many times that cost, and with the `rest` of what the host then takes, replayed."""
    calls = replace(
        base.graph.calls,
        before_ns=_shortened(base.graph.calls.before_ns, times * cost.before_ns, rest),
        length_ns=_shortened(base.graph.calls.length_ns, times * cost.length_ns, rest),
    )
    graph = replace(base.graph, calls=calls)
    replayed = replay(graph)
    steps = step_times(graph, base.device, base.main_stream, base.numbers, replayed.start_ns, replayed.end_ns)
    return replace(base, graph=graph, replayed=replayed, steps=steps)


def _over(base: Base, wanted_ns: int) -> float:
    """By how much the step is too long; 0 where that is next to nothing."""
    over = base.steps.median_ns - wanted_ns
    return 0.0 if abs(over) <= _CLOSE * wanted_ns else float(over)


def estimated(base: Base) -> Base:
    """The plain program by what events cost by its launch calls; its `plain` has the interval.

    Less and less of the host's work decides the length of a step, the less of it there is: in proportion to what the
    cost saves, the interval's ends are on the safe side. No step is shorter than what the GPU works for it.
    """
    lighter = _lightened(base, _host_cost(base), 1.0)
    recorded_ns, step_ns, busy_ns = base.steps.median_ns, lighter.steps.median_ns, _busy_ns(base)
    saved = recorded_ns - step_ns
    differs = _DEVICE * busy_ns + _HOST * max(0, step_ns - busy_ns)
    # A replay may order the host's work otherwise and take longer than the recording.
    ends = (recorded_ns - _MOST * saved, recorded_ns - _LEAST * saved)
    low = max(min(ends) - differs, (1 - _DEVICE) * busy_ns)
    high = max(ends) + differs
    return replace(lighter, plain=PlainStep(step_ns, min(round(low), step_ns), round(high), "estimated"))


def _busy_ns(base: Base) -> int:
    """For how long the device works in a step (median)."""
    items, steps = base.graph.items, base.recorded
    there = (items.device == base.device) & ~items.gone
    busy = union(items.start_ns[there], items.end_ns[there])
    return lower_median(covered(busy, steps.start_ns, steps.end_ns)[: len(steps.known)])


class _HostCost(NamedTuple):
    """What recording added to each call of a graph, in ns."""

    before_ns: F64
    """To the work before it."""
    length_ns: float
    """To the call."""


def _event_cost(trace: Trace, calibrated: Constants) -> tuple[float, float, float, float]:
    """How much longer the host takes, in ns, for an op that is recorded, inside a call and around it, and for a Python
    function: by how long the recording's launch calls are; in the proportions of a calibration of the same machine,
    where there is one."""
    calls = trace.runtime_calls
    launches = np.flatnonzero(call_kinds.named(calls, KERNEL_LAUNCH))
    added = _USUAL_ADDED_NS
    if len(launches) >= _FEWEST:
        quick = quantile(calls.end_ns[launches] - calls.start_ns[launches], _QUICK)
        added = max(quick - PLAIN_LAUNCH_NS, 0.0)
    op, call, around, frame = _OP, _CALL, _AROUND_CALL, _FRAME
    if calibrated.op_cost_ns and calibrated.call_cost_ns and calibrated.frame_cost_ns:
        then = max((calibrated.launch_call_ns or 0) - PLAIN_LAUNCH_NS, 1.0)
        op, frame = calibrated.op_cost_ns / then, calibrated.frame_cost_ns / then
        call, around = (calibrated.call_cost_ns / then * part / (_CALL + _AROUND_CALL) for part in (call, around))
    return op * added, call * added, around * added, frame * added


def _host_cost(base: Base) -> _HostCost:
    """The cost of all events that begin in the work before each call, on its thread or on the one that handed over."""
    graph = base.graph
    trace, calls = graph.trace, graph.calls
    op_ns, call_ns, around_call_ns, frame_ns = _event_cost(trace, base.hardware.calibrated)
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
    return _HostCost(before, call_ns)


def _shortened(lengths: I64, by: F64 | float, rest: float) -> I64:
    # What is not positive is no work: a thread went on before the one that handed over had returned.
    shorter = np.where(lengths > 0, np.maximum(lengths - by, _LEFT * lengths) * rest, lengths)
    return np.rint(shorter).astype(np.int64)

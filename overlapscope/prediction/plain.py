"""The plain program: a recording's graph without what recording costs the host, with steps as long as they are then.

Where nobody timed or told the plain step, it is estimated: an interval, from what events cost the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from overlapscope.analysis.plain_step import PlainStep, measured, told
from overlapscope.base.intervals import covered, union
from overlapscope.prediction.base import Base
from overlapscope.prediction.recording_cost import HostCost, event_cost, host_cost, without
from overlapscope.prediction.replay import replay
from overlapscope.prediction.steps import lower_median, step_times

_CLOSE = 0.005
"""A replayed step is as long as the plain one if they differ by less than this share."""
_MOST_TIMES = 3.0
"""What recording cost was up to twice what its launch calls say (`docs/plain.md`)."""
_ALIKE, _DIFFER = 0.015, 0.03
"""Shares of a step by which the usual cost may miss it, and by which kernels and copies differ at most between runs."""
_MOST_PART = 0.98
"""Of the host's work, which goes at most."""
_TRIES = 8
_LEAST, _MOST = 0.4, 2.0
"""Between which multiples of what recording costs by the recording's launch calls its cost lay, for 34 of 37 programs
(`docs/plain.md`)."""
_DEVICE, _HOST = 0.03, 0.2
"""By what shares of the device's and of the host's part of a step programs differ from one process to the next
(`docs/noise.md`)."""


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
    cost = host_cost(base.graph, event_cost(base.trace, base.hardware.calibrated))
    usual = lightened(base, cost, 1.0)
    if abs(usual.steps.median_ns - plain.step_ns) <= _ALIKE * plain.step_ns:
        return replace(usual, plain=plain)
    found = _searched(
        base,
        plain.step_ns,
        lambda times: usual if times == 1 else lightened(base, cost, times),
        first=1.0,
        most=_MOST_TIMES,
    )
    if found.steps.median_ns > (1 + _DIFFER) * plain.step_ns:
        least = found
        found = _searched(
            least, plain.step_ns, lambda part: lightened(base, cost, _MOST_TIMES, 1 - part), first=0.3, most=_MOST_PART
        )
    return replace(found, plain=plain)


def _searched(base: Base, wanted_ns: int, at: Callable[[float], Base], *, first: float, most: float) -> Base:
    """The base with its host's work shortened by the amount, from 0 to `most`, that brings its step nearest.

    The step gets no longer as the work gets shorter, and is nearly linear in it: false position, where the value of an
    end that stays is halved ("Illinois"; Dowell and Jarratt, BIT 11, 1971).
    """
    low, low_over, amount = 0.0, _over(base, wanted_ns), first
    high, high_over, above = most, 0.0, True
    best, best_over = base, low_over
    for _ in range(_TRIES if low_over > 0 else 0):
        found = at(amount)
        over = _over(found, wanted_ns)
        if abs(over) < abs(best_over):
            best, best_over = found, over
        if over == 0 or (over > 0 and amount >= most):
            break
        if over > 0:
            gained, since = low_over - over, amount - low
            high_over /= 1 + above
            low, low_over, above = amount, over, True
            # Nothing is too short yet: somewhat further than the last stretch points to.
            further = min(1.1 * since * over / gained, 3 * amount) if gained > 0 else 3 * amount
        else:
            low_over /= 2 - above
            high, high_over, above, further = amount, over, False, 0.0
        bracketed = low + (high - low) * low_over / (low_over - high_over) if high_over else 0.0
        amount = bracketed if high_over else min(amount + further, most)
    return best


def lightened(base: Base, cost: HostCost, times: float, rest: float = 1.0) -> Base:
    """The recording without so many times that cost, and with the `rest` of what the host then takes, replayed."""
    graph = without(base.graph, cost, times, rest=rest)
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
    found = lightened(base, host_cost(base.graph, event_cost(base.trace, base.hardware.calibrated)), 1.0)
    recorded_ns, step_ns, busy_ns = base.steps.median_ns, found.steps.median_ns, _busy_ns(base)
    saved = recorded_ns - step_ns
    differs = _DEVICE * busy_ns + _HOST * max(0, step_ns - busy_ns)
    # A replay may order the host's work otherwise and take longer than the recording.
    ends = (recorded_ns - _MOST * saved, recorded_ns - _LEAST * saved)
    low = max(min(ends) - differs, (1 - _DEVICE) * busy_ns)
    high = max(ends) + differs
    return replace(found, plain=PlainStep(step_ns, min(round(low), step_ns), round(high), "estimated"))


def _busy_ns(base: Base) -> int:
    """For how long the device works in a step (median)."""
    items, steps = base.graph.items, base.recorded
    there = (items.device == base.device) & ~items.gone
    busy = union(items.start_ns[there], items.end_ns[there])
    return lower_median(covered(busy, steps.start_ns, steps.end_ns)[: len(steps.known)])

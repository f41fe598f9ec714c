"""The launching thread in an average step without the profiler, by line and by cause."""

from __future__ import annotations

from collections import Counter

from overlapscope.analysis.host_lines import HostLine, host_lines, main_stacks
from overlapscope.analysis.host_results import LineTime, SampledStep
from overlapscope.analysis.host_sampled import amounts, step_ns
from overlapscope.analysis.results import HostUse, host_parts
from overlapscope.catalog.causes import IdleCause
from overlapscope.trace.host_activity import HostActivity
from overlapscope.trace.model import Trace

_MOST_LINES = 20
_NOT_SAMPLED = (IdleCause.DATA_LOADING, IdleCause.PYTHON, IdleCause.UNRECORDED)
"""Causes that the recording itself shows of a host without a GPU, and what nothing shows."""


def sampled_step(trace: Trace, host: HostUse | None = None) -> SampledStep | None:
    """Return the launching thread's time by line and by cause; None without samples and facts.

    Without a GPU, it is the step on the host (`host`) that is divided.
    """
    activity = trace.host_activity
    if activity is None:
        return None
    if host is not None:
        frame = host.frame()
        waits = {cause: ns for cause, ns in frame.idle_by_cause.items() if ns and cause not in _NOT_SAMPLED}
        whole_ns = sum(host_parts(frame).values())
        return SampledStep(step_ns=whole_ns, lines=_lines(activity, whole_ns), by_cause=waits)
    facts, step = activity.facts, step_ns(trace)
    by_cause = {str(amount.cause): round(amount.share * step) for amount in amounts(activity)}
    if facts.gc_pause_ns and facts.span_ns:
        by_cause[IdleCause.GC_PAUSE] = round(facts.gc_pause_ns * step / facts.span_ns)
    return SampledStep(
        step_ns=round(step), lines=_lines(activity, step), by_cause={cause: ns for cause, ns in by_cause.items() if ns}
    )


def _lines(activity: HostActivity, step_ns: float) -> tuple[LineTime, ...]:
    """Return the lines with the most samples; lines of the same place count together."""
    whole = sum(stack.samples for stack in main_stacks(activity))
    samples: Counter[str] = Counter()
    first: dict[str, HostLine] = {}
    for line in host_lines(activity):
        if line.place and line.line:
            samples[line.place] += line.samples
            first.setdefault(line.place, line)
    return tuple(
        LineTime(
            line=place,
            function=first[place].function,
            calls=next((name for name, _ in first[place].calls), ""),
            time_ns=round(step_ns * count / whole),
        )
        for place, count in samples.most_common(_MOST_LINES)
    )

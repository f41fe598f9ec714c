"""Spread of the lengths of steps, and the cause of long steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from msgspec import Struct

from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.figures import Period
from overlapscope.analysis.results import Device, HostUse, host_parts
from overlapscope.base.median import median_ns

LONG = 1.5
"""Minimum length of a long step, as a multiple of the median."""


class Spread(Struct, frozen=True, kw_only=True):
    """Lengths of a program's steps, in nanoseconds."""

    count: int
    median_ns: int
    mean_ns: int
    shortest_ns: int
    longest_ns: int
    long: int
    """Number of steps that take over 1.5 times the median."""
    cause: str
    """Part of a step that grows most in long steps; empty if none is long."""
    cause_ns: int
    """Its growth, on average over long steps."""


def of_device(device: Device) -> Spread | None:
    """Return the spread of the judged steps on a device; None if there are fewer than two."""
    steps = [device.steps[number] for number in judged_steps(device)]
    return _spread([step.span_ns for step in steps], [_parts(step) for step in steps])


def of_host(host: HostUse) -> Spread | None:
    """Return the spread of the judged steps on the host, as recorded; None if there are fewer than two."""
    return _spread([step.span_ns for step in host.judged], [host_parts(step) for step in host.judged])


def _spread(spans: Sequence[int], parts: Sequence[Mapping[str, int]]) -> Spread | None:
    if len(spans) < 2:
        return None
    usual_ns = median_ns(spans)
    long = [row for row, span in enumerate(spans) if span > LONG * usual_ns]
    usual = [part for span, part in zip(spans, parts, strict=True) if span <= LONG * usual_ns]
    grown = {
        name: fmean(parts[row].get(name, 0) for row in long) - fmean(part.get(name, 0) for part in usual)
        for name in sorted({name for row in long for name in parts[row]})
    }
    cause, cause_ns = max(grown.items(), key=lambda item: item[1], default=("", 0.0))
    return Spread(
        count=len(spans),
        median_ns=usual_ns,
        mean_ns=round(fmean(spans)),
        shortest_ns=min(spans),
        longest_ns=max(spans),
        long=len(long),
        cause=cause,
        cause_ns=round(cause_ns),
    )


def _parts(step: Period) -> dict[str, int]:
    """Return the parts of a step: its buckets, all but the first divided by cause."""
    return {
        "compute": step.buckets.compute_ns,
        **{f"exposed copies ({cause})": ns for cause, ns in step.exposed_copy_by_cause.items()},
        **{f"exposed communication ({cause})": ns for cause, ns in step.exposed_comm_by_cause.items()},
        **{f"memory work of the GPU ({cause})": ns for cause, ns in step.exposed_other_by_cause.items()},
        **{f"idle time ({cause})": ns for cause, ns in step.idle_by_cause.items()},
    }

"""Questions about a device's steps: a representative one, outliers, and the spread of their lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from msgspec import Struct

from overlapscope.analysis.figures import Period
from overlapscope.base.columns import quantile
from overlapscope.base.intervals import Bool
from overlapscope.base.median import median_ns

FEWEST = 5
"""Minimum number of steps for outliers."""

DEVIATIONS = 3.0
LEAST_SHARE = 0.05
"""Minimum deviation of an outlier as a share of the median span, however even the other steps are."""

_SCALE = 1.4826
"""Factor that turns the median absolute deviation of a normal distribution into its standard deviation."""


def median_step(periods: Sequence[Period]) -> Period | None:
    """Return the step of median length, the lower of the two middle ones, so that it is a recorded one."""
    ordered = sorted(periods, key=lambda step: (step.span_ns, step.window.start_ns))
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def find_outliers(steps: Sequence[Period]) -> Bool:
    """Select the steps whose span is more than 3 scaled median absolute deviations and 5% from the median.

    Outliers don't move the median and the median absolute deviation. 3 is the strictest threshold that C. Leys et al.
    propose ("Detecting outliers: Do not use standard deviation around the mean, use absolute deviation around the
    median", Journal of Experimental Social Psychology 49 (2013), 764-766).

    Returns:
        Mask of the steps; all false if there are too few to judge.
    """
    spans = np.array([step.span_ns for step in steps], np.float64)
    if len(spans) < FEWEST:
        return np.zeros(len(spans), np.bool_)
    usual = quantile(spans, 0.5)
    away = np.abs(spans - usual)
    unusual: Bool = (away > DEVIATIONS * _SCALE * quantile(away, 0.5)) & (away >= LEAST_SHARE * usual)
    return unusual


# -- Spread ------------------------------------------------------------------------------------------

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


def spread(steps: Sequence[Period], parts_of: Callable[[Period], Mapping[str, int]]) -> Spread | None:
    """Return the spread of some steps, given the parts that may grow; None if there are fewer than two."""
    spans, parts = [step.span_ns for step in steps], [*map(parts_of, steps)]
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


def parts_on(gpu: str, step: Period) -> dict[str, int]:
    """Return the parts of a step on a device: its buckets, all but the first divided by cause."""
    return {
        "compute": step.buckets.compute_ns,
        **{f"exposed copies ({cause})": ns for cause, ns in step.exposed_copy_by_cause.items()},
        **{f"exposed communication ({cause})": ns for cause, ns in step.exposed_comm_by_cause.items()},
        **{f"memory work of the {gpu} ({cause})": ns for cause, ns in step.exposed_other_by_cause.items()},
        **{f"idle time ({cause})": ns for cause, ns in step.idle_by_cause.items()},
    }

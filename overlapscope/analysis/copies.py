"""Copies grouped by direction, memory kinds and stream."""

from __future__ import annotations

from typing import Literal

import numpy as np

from overlapscope.analysis.by_step import row, step_at, table
from overlapscope.analysis.grouping import groups_of, rows_by
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.results import CopiesByStep, CopyGroup
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Intervals, covered, intersect, total, union
from overlapscope.trace.model import Kind, Memory

TINY_BYTES = 64 << 10
"""Below this a copy's time is latency: at 50 GB/s the bytes take 1.3 us, a copy at least about as long."""
LARGE_BYTES = 1 << 20
"""From this on latency is next to nothing, and bandwidths can be compared."""


def says_bandwidth(group: CopyGroup) -> bool:
    """Whether the group's bandwidth is more than the latency of copies that are mostly tiny."""
    return group.bytes is not None and group.bytes >= TINY_BYTES * group.count


def group_copies(timeline: Timeline, steps: Periods, windows: Intervals) -> tuple[CopyGroup, ...]:
    """The copies that run inside the given disjoint windows, longest group first.

    Times are cut at the windows' edges; counts, bytes and bandwidth are of whole copies.
    """
    ops = timeline.ops
    copies = np.flatnonzero(ops.is_copy)
    # The first window that ends behind the copy's start has begun before its end. A copy of no length counts at
    # either edge of a window.
    begin, stop = ops.start_ns[copies], ops.end_ns[copies]
    nearest = np.searchsorted(windows.ends, begin, side="right")
    following = np.append(windows.starts, np.iinfo(np.int64).max)
    empty = begin == stop
    inside = (following[nearest] < stop) | empty & (following[nearest] <= begin)
    inside |= empty & (pick(windows.ends, np.searchsorted(windows.ends, begin, side="left")) == begin)
    copies = copies[inside]
    columns = (ops.kind[copies], ops.source_kind[copies], ops.target_kind[copies], ops.stream[copies])
    groups = []
    for _, which in rows_by(groups_of(columns)) if len(copies) else ():
        rows, key = copies[which], [int(column[which[0]]) for column in columns]
        ran = intersect(union(ops.start_ns[rows], ops.end_ns[rows]), windows)
        sized = ops.bytes[rows] >= 0
        moved = int(ops.bytes[rows][sized].sum())
        duration = ops.end_ns[rows] - ops.start_ns[rows]
        took = int(duration[sized].sum())
        judged = sized & (ops.start_ns[rows] >= timeline.judged_from_ns)
        direction: Literal["h2d", "d2h"] = "h2d" if key[0] == Kind.H2D else "d2h"
        groups.append(
            CopyGroup(
                direction=direction,
                source_kind=Memory(key[1]).name.lower(),
                target_kind=Memory(key[2]).name.lower(),
                stream=int(key[3]),
                count=len(rows),
                bytes=moved if sized.any() else None,
                time_ns=total(ran),
                exposed_ns=int(covered(timeline.exposed_copy, ran.starts, ran.ends).sum()),
                gb_per_s=moved / took if sized.any() and took else None,
                judged_bytes=int(ops.bytes[rows][judged].sum()),
                judged_duration_ns=int(duration[judged].sum()),
                by_step=_by_step(timeline, steps, rows, ran),
            )
        )
    return tuple(sorted(groups, key=lambda g: (-g.time_ns, g.direction, g.stream)))


def _by_step(timeline: Timeline, steps: Periods, rows: I64, ran: Intervals) -> CopiesByStep:
    """A group's copies, the given rows of `Timeline.ops`, in each step; `ran` is the union of their intervals."""
    ops, step, shape = timeline.ops, step_at(steps, timeline.ops.start_ns[rows]), (1, len(steps.row))
    one, sized = np.zeros(len(rows), np.int64), ops.bytes[rows] >= 0

    def added(weight: I64) -> tuple[int, ...]:
        return row(table(one, step, weight, shape)[0])

    return CopiesByStep(
        count=added(one + 1),
        bytes=added(np.where(sized, ops.bytes[rows], 0)),
        duration_ns=added(np.where(sized, ops.end_ns[rows] - ops.start_ns[rows], 0)),
        time_ns=row(covered(ran, steps.start_ns, steps.end_ns)),
        exposed_ns=row(covered(intersect(ran, timeline.exposed_copy), steps.start_ns, steps.end_ns)),
    )

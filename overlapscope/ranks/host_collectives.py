"""Collectives of a rank without a GPU: the ops that start them, and the times in which a thread waits for them.

A thread starts a collective by an op such as `c10d::allreduce_`, and a thread of the backend runs it. The recording
doesn't show waiting, only that the starting thread does nothing until the collective ends. So a time without ops in
which a collective ends is a wait for it. If the thread goes on much later, it may as well have worked all that time.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.analysis.host_use import host_timeline
from overlapscope.analysis.periods import judged_steps
from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool, Intervals, begins_after_all, contains, expand, union
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import is_collective_range, starts_collective

_WAITED_NS = 20_000
"""Minimum time without ops before a collective's end for a wait."""
_LATE_NS, _LATE = 200_000, 0.05
"""A thread that goes on later than this, or than this fraction of the time without ops, may have worked in between."""
_AUTOGRAD = ("autograd::", "torch::autograd")
"""Beginnings of the names of autograd's own ops."""
_PARTS_OF_NAME = re.compile(r"c10d::|gloo:|mpi:|ucc:|xccl:|_base|_tensor|_into|_coalesced|_")
_RUN_AS = {"reducescatter": "allreduce"}
"""Collectives that gloo runs as another one, whose name the range has (`ProcessGroupGloo.cpp`)."""


class HostWaits(Columns, frozen=True):
    """Times without ops in which collectives ended, one row each by start."""

    start_ns: I64
    end_ns: I64
    ended_ns: I64
    """End of the collective that ended last in it."""
    prompt: Bool
    """True if the thread went on right after that, so it did nothing else."""


class HostCollectives(Struct, frozen=True, eq=False):
    """Collectives from the first step to the last, started by a single thread."""

    ranges: HostEvents
    issue_ns: I64
    """Start of the op that starts each collective."""
    waits: HostWaits


def find_host_collectives(trace: Trace) -> HostCollectives | None:
    """Return the collectives of a trace with steps, and the waits for them.

    None if the starts of some are not recorded, or several threads start them, so that their order is unknown.
    """
    ranges, started = _started(trace)
    if started is None:
        return None
    threads = distinct(trace.cpu_ops.thread[started])
    steps = trace.annotations.take(judged_steps(trace))
    if len(threads) != 1 or (steps.thread != threads[0]).any():
        return None
    ops = trace.cpu_ops.take(trace.cpu_ops.thread == threads[0])
    issue = trace.cpu_ops.start_ns[started]
    idle = _idle(ops, trace.annotations.take(trace.annotations.thread == threads[0]))
    return HostCollectives(ranges, issue, _waits(idle, issue, trace.cpu_ops.end_ns[started], steps.start_ns, ranges))


def _started(trace: Trace) -> tuple[HostEvents, I64 | None]:
    """Return the collectives, and the op that started each, or None if they don't fit together.

    The backend takes collectives in the order in which they were started. Those started before the recording have no
    op, those that began after it no range.
    """
    notes, timeline = trace.annotations, host_timeline(trace)
    ranges = notes.take(notes.named(is_collective_range))
    judged = ranges.take(np.arange(0)) if timeline is None else timeline.collectives
    ops = _outermost(trace.cpu_ops, np.flatnonzero(trace.cpu_ops.named(lambda name: name.startswith("c10d::"))))
    op_kinds = [_kind_of(trace.cpu_ops.name(row)) for row in ops.tolist()]
    range_kinds = [_kind_of(ranges.name(row)) for row in range(len(ranges))]
    earlier = started_earlier(op_kinds, trace.cpu_ops.start_ns[ops], range_kinds, ranges.start_ns)
    if earlier is None:
        return judged, None
    count = min(len(ops), len(ranges) - earlier)
    inside = np.isin(ranges.place, judged.place)[earlier : earlier + count]
    return judged, ops[:count][inside] if inside.sum() == len(judged) else None


def started_earlier(ops: Sequence[str], op_ns: I64, ranges: Sequence[str], range_ns: I64) -> int | None:
    """Find how many collectives were started before the recording.

    Args:
        ops: Kind of each op that starts a collective, in order.
        op_ns: Start of each.
        ranges: Kind of each range of a collective, in order.
        range_ns: Start of each, ascending.

    Returns:
        The least number with which ops and ranges fit together; None if there is none.
    """
    # No collective begins before the op that starts it.
    least = int((np.searchsorted(range_ns, op_ns) - np.arange(len(ops))).max(initial=0))
    letters: dict[str, str] = {}
    # Finding a text in another takes linear time.
    started, ran = (
        "".join(letters.setdefault(kind, chr(min(len(letters), sys.maxunicode))) for kind in kinds)
        for kinds in (ops, ranges)
    )
    whole = ran.find(started, least) if ran else -1
    # Without a place for all ops, the last ones have no range.
    rest = range(max(least, len(ran) - len(started) + 1), len(ran))
    return whole if whole >= 0 else next((place for place in rest if started.startswith(ran[place:])), None)


def _kind_of(name: str) -> str:
    """Return what an op and the range of the same collective have in common."""
    kind = _PARTS_OF_NAME.sub("", name)
    return _RUN_AS.get(kind, kind)


def _outermost(ops: HostEvents, rows: I64) -> I64:
    """Return the rows that are not inside another of the rows on their thread."""
    kept = np.zeros(len(rows), np.bool_)
    for _, of_thread in rows_by(ops.thread[rows]):
        rows_of_thread = rows[of_thread]
        kept[of_thread] = begins_after_all(ops.start_ns[rows_of_thread], ops.end_ns[rows_of_thread])
    return rows[kept]


def _works(ops: HostEvents) -> Bool:
    """Return a mask of the ops that compute: `aten::mm`, `fbgemm::...`, but no autograd node and no collective."""
    return ops.named(lambda name: "::" in name and not name.startswith(_AUTOGRAD) and not starts_collective(name))


def _idle(ops: HostEvents, notes: HostEvents) -> Intervals:
    """Return the times between the beginnings and ends of ops and ranges that lie in no op that computes.

    An op with a collective inside, such as one of a DTensor, may wait for it.
    """
    at = distinct(np.concatenate((ops.start_ns, ops.end_ns, notes.start_ns, notes.end_ns)))
    collectives = np.sort(ops.start_ns[ops.named(starts_collective)])
    first, last = (np.searchsorted(collectives, edges) for edges in (ops.start_ns, ops.end_ns))
    computes = _works(ops) & (first == last)
    inside = contains(union(ops.start_ns[computes], ops.end_ns[computes]), at[:-1])
    long = (at[1:] - at[:-1] >= _WAITED_NS) & ~inside
    return Intervals(at[:-1][long], at[1:][long])


def _waits(idle: Intervals, issue: I64, issued: I64, marks: I64, ranges: HostEvents) -> HostWaits:
    """Return the waits.

    An uncertain wait is left out if a certain one follows in the same step: that may be for both collectives.

    Args:
        idle: Times without ops.
        issue: Start of the op that starts each collective.
        issued: End of that op.
        marks: Starts of the steps.
        ranges: The collectives.
    """
    slack = np.maximum(_LATE_NS, np.rint(_LATE * (idle.ends - idle.starts)).astype(np.int64))
    by_end = np.argsort(ranges.end_ns, kind="stable")
    ends = ranges.end_ns[by_end]
    first, behind = np.searchsorted(ends, idle.starts + _WAITED_NS), np.searchsorted(ends, idle.ends + slack, "right")
    row, place = expand(first, behind)
    within = by_end[place]
    before = issue[within] <= idle.starts[row]
    row, within = row[before], within[before]
    # A collective that is started and waited for at once leaves no op in between.
    at_once = mask_of(row[issued[within] == idle.starts[row]], len(slack))
    last = np.flatnonzero(np.diff(row, append=-1))
    row, ended = row[last], ranges.end_ns[within[last]]
    start, end = idle.starts[row], idle.ends[row]
    prompt = end - ended <= slack[row]
    certain, step = prompt | at_once[row], np.searchsorted(marks, start, side="right")
    # Step of the next certain wait, by the step of the last one up to each wait.
    following = np.append(step[certain], -1)[np.cumsum(certain)]
    return HostWaits(start, end, ended, prompt).take(certain | (following != step))

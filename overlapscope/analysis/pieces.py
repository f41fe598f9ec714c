"""Exposed copy time, exposed communication and idle time, divided into pieces with one cause each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I8, I64, Bool, Columns
from overlapscope.base.grouping import among, distinct, first_of_each
from overlapscope.base.intervals import Intervals, cut, union
from overlapscope.catalog.causes import IDLE_RANK, STALL_CAUSES

NO_CAUSE = -1


class Pieces(Columns, frozen=True):
    """Sorted and disjoint pieces, whose lengths add up to the whole time exactly."""

    start_ns: I64
    end_ns: I64
    cause: I8
    """Index into `COPY_CAUSES`, `COMM_CAUSES`, `OTHER_CAUSES` or `IDLE_CAUSES`."""
    confidence: I8
    """`event_waits.EXACT`, unless it is based on a rebuilt edge."""

    @property
    def length_ns(self) -> I64:
        return self.end_ns - self.start_ns

    def of_cause(self, rank: int) -> Intervals:
        """Return the times of pieces with a cause."""
        of_cause = self.cause == rank
        return union(self.start_ns[of_cause], self.end_ns[of_cause])

    def inside(self, windows: Intervals) -> Self:
        """Return the parts of the pieces inside the windows."""
        return self.parts(*cut(self.start_ns, self.end_ns, windows))

    def parts(self, row: I64, start: I64, end: I64) -> Self:
        """Return parts of the pieces in some rows."""
        return replace(self.take(row), start_ns=start, end_ns=end)

    @classmethod
    def in_order(cls, parts: Sequence[Self]) -> Self:
        """Return the pieces of all parts in order, without empty ones."""
        pieces = cls.joined(parts)
        kept = np.flatnonzero(pieces.end_ns > pieces.start_ns)
        return pieces.take(kept[np.argsort(pieces.start_ns[kept], kind="stable")])


class Exposed(Pieces, frozen=True):
    """Exposed copies, communication or other memory work of a device."""

    op: I64
    """Row of `Timeline.ops` of the op that decided the cause."""
    call: I64
    """Row in `Trace.runtime_calls` of the call to look at, which launched the op unless it is communication; -1 where
    unknown."""
    held_by: I64
    """Row of `Timeline.ops` of the op that a collective waited for before it began; -1 if it waited for none, or for
    one of another device, and for other ops."""


class CommOps(Columns, frozen=True):
    """Communication of a device with a duration, one row each by start: what let it begin, and what awaits it."""

    op: I64
    """Row of `Timeline.ops`."""
    cause: I8
    """Index into `COMM_CAUSES` of the cause of exposed time that an earlier begin would have hidden: `late-issue` or
    `host-sync` if its launch let it begin, `blocked-behind` for the one before it on its stream or communicator,
    `waiting-for-input` for an event or other op; `unknown` if nothing explains when it began."""
    gain_ns: I64
    """Additional time beside compute if the others of these had decided when it began."""
    held_by: I64
    """Row of `Timeline.ops` of the op that it waited for; -1 if it waited for none or for one of another device."""
    call: I64
    """Row of `Trace.runtime_calls`: its launch, or that of the op that fed it; -1 where unknown."""
    consumer: I64
    """Row of `Timeline.ops` of the first compute that waits for it; -1 if none does, or its stream is `UNFOLLOWED`."""


class IdleTime(Pieces, frozen=True):
    """Idle time of a device."""

    call: I64
    """Row in `Trace.runtime_calls` of the blocking call or late launch; -1 if the host was busy with something else."""
    host_ns: I64
    """Host time of the piece's start, at which op and line are looked up."""
    thread: I64

    @property
    def blames_call(self) -> Bool:
        """Mask of the pieces that are due to the blocking call that the host was inside."""
        return among(self.cause, [IDLE_RANK[cause] for cause in STALL_CAUSES]) & (self.call >= 0)

    def parts(self, row: I64, start: I64, end: I64) -> Self:
        """Return parts of the pieces in some rows, which begin as much later on the host as on the device."""
        return replace(super().parts(row, start, end), host_ns=self.host_ns[row] + start - self.start_ns[row])


def cut_at(starts: I64, ends: I64, instants: Sequence[I64]) -> tuple[I64, I64, I64]:
    """Return the parts of intervals that are cut at some instants: the row of the interval, start and end, in order."""
    edges = distinct(np.concatenate([[starts.min(initial=0), ends.max(initial=0)], *instants]))
    return cut(starts, ends, Intervals(edges[:-1], edges[1:]))


def first_part(granted: I64, of: I64, length: I64) -> I64:
    """Return the part of each piece that lies in the first `granted` time of all pieces of the same number in `of`."""
    order = np.argsort(of, kind="stable")
    sorted_length = length[order]
    passed = np.cumsum(sorted_length) - sorted_length
    first = np.searchsorted(of[order], of[order], side="left")
    part = np.empty(len(of), np.int64)
    part[order] = np.clip(granted[order] - (passed - passed[first]), 0, sorted_length)
    return part


def main_cause(op: I64, cause: I8, length: I64, count: int) -> I8:
    """Return the cause with the most time for each op; among equals, the first in the order of causes.

    Args:
        op: Number of the op of each piece, from 0 to `count` - 1.
        cause: Cause of each piece.
        length: Length of each piece.
        count: Number of ops.

    Returns:
        One cause for each op; `NO_CAUSE` for an op without pieces.
    """
    causes = int(cause.max(initial=0)) + 1
    key, place = np.unique(op * causes + cause, return_inverse=True)
    time = np.zeros(len(key), np.int64)
    np.add.at(time, place, length)
    most = key[first_of_each(key // causes, -time, key)]
    result = np.full(count, NO_CAUSE, np.int8)
    result[most // causes] = most % causes
    return result

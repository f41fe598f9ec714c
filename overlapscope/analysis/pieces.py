"""Exposed copy time and idle time, divided into pieces with one cause each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I8, I64, Columns
from overlapscope.base.intervals import Intervals, cut, union


class Pieces(Columns, frozen=True):
    """Sorted and disjoint pieces, whose lengths add up to the whole time exactly."""

    start_ns: I64
    end_ns: I64
    cause: I8
    """Index into `COPY_CAUSES` or `IDLE_CAUSES`."""
    confidence: I8
    """`edges.EXACT`, unless it is based on a rebuilt edge."""

    @property
    def length_ns(self) -> I64:
        return self.end_ns - self.start_ns

    def of_cause(self, rank: int) -> Intervals:
        """Return the times of pieces with a cause."""
        of_cause = self.cause == rank
        return union(self.start_ns[of_cause], self.end_ns[of_cause])

    def inside(self, windows: Intervals) -> Self:
        """Return the parts of the pieces inside the windows."""
        row, start, end = cut(self.start_ns, self.end_ns, windows)
        return replace(self.take(row), start_ns=start, end_ns=end)

    @classmethod
    def in_order(cls, parts: Sequence[Self]) -> Self:
        """Return the pieces of all parts in order, without empty ones."""
        pieces = cls.joined(parts)
        kept = np.flatnonzero(pieces.end_ns > pieces.start_ns)
        return pieces.take(kept[np.argsort(pieces.start_ns[kept], kind="stable")])


class ExposedCopies(Pieces, frozen=True):
    """Exposed copy time of a device."""

    copy: I64
    """Row of `Timeline.ops` of the copy that decided the cause."""


class IdleTime(Pieces, frozen=True):
    """Idle time of a device."""

    call: I64
    """Row in `Trace.runtime_calls` of the blocking call or late launch; -1 if the host was busy with something else."""
    host_ns: I64
    """Host time of the piece's start, at which op and line are looked up."""
    thread: I64

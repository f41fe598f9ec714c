"""Exposed copy time and idle time, cut into pieces that each have one cause."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I8, I64, Columns
from overlapscope.base.intervals import Intervals, cut, union


class Pieces(Columns, frozen=True):
    """Sorted and disjoint; their lengths add up exactly to the time that they are of."""

    start_ns: I64
    end_ns: I64
    cause: I8
    """Index into the causes: `COPY_CAUSES` or `IDLE_CAUSES`."""
    confidence: I8
    """`edges.EXACT` unless it rests on a rebuilt edge."""

    @property
    def length_ns(self) -> I64:
        return self.end_ns - self.start_ns

    def of_cause(self, rank: int) -> Intervals:
        """When there was a piece of a cause."""
        of_cause = self.cause == rank
        return union(self.start_ns[of_cause], self.end_ns[of_cause])

    def inside(self, windows: Intervals) -> Self:
        """The parts of the pieces inside the windows."""
        row, start, end = cut(self.start_ns, self.end_ns, windows)
        return replace(self.take(row), start_ns=start, end_ns=end)

    @classmethod
    def in_order(cls, parts: Sequence[Self]) -> Self:
        """The pieces of all parts that have a length."""
        pieces = cls.joined(parts)
        kept = np.flatnonzero(pieces.end_ns > pieces.start_ns)
        return pieces.take(kept[np.argsort(pieces.start_ns[kept], kind="stable")])


class ExposedCopies(Pieces, frozen=True):
    """The exposed copy time of a device."""

    copy: I64
    """The copy that decided; a row of `Timeline.ops`."""


class IdleTime(Pieces, frozen=True):
    """The idle time of a device."""

    call: I64
    """Row in `Trace.runtime_calls`: the blocking call behind it, or the launch that came late; -1 where the host
    was busy with something else."""
    host_ns: I64
    """The host instant the piece's start is the image of: where to look for the op and line behind it."""
    thread: I64

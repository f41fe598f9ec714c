"""Times in which the ops of a device ran, by kind."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from msgspec import Struct

from overlapscope.base.intervals import I64, Intervals, complement, join, union
from overlapscope.trace.model import I8, Kind


class Ran(Struct, frozen=True, eq=False, dict=True):
    """Times in which each kind of a device's ops ran.

    Sets that combine several kinds are made on first use.
    """

    compute: Intervals
    comm: Intervals
    h2d: Intervals
    d2h: Intervals
    p2p: Intervals
    """Times in which peer copies ran, which are part of `other`."""
    other: Intervals
    """Times in which memory work of the device ran: peer copies, copies within the device, memsets."""
    start_ns: int
    """Start of the window, which is the start of the first op."""
    end_ns: int
    """End of the window, which is the end of the last op."""

    @cached_property
    def copy(self) -> Intervals:
        """Times in which copies ran, in either direction."""
        return join(self.h2d, self.d2h)

    @cached_property
    def sm(self) -> Intervals:
        """Times in which kernels ran, those of communication included."""
        return join(self.compute, self.comm)

    @cached_property
    def busy(self) -> Intervals:
        """Times in which kernels or copies between host and device ran."""
        return join(self.sm, self.copy)

    @cached_property
    def any(self) -> Intervals:
        """Times in which anything ran."""
        return join(self.busy, self.other)

    @cached_property
    def idle(self) -> Intervals:
        """Times in the window in which nothing ran."""
        return complement(self.any, self.start_ns, self.end_ns)


def when_ran(kind: I8, start_ns: I64, end_ns: I64) -> Ran:
    """Return the times in which the ops of each `Kind` ran. Ops may be in any order; there must be at least one."""
    rows = {each: np.flatnonzero(kind == each) for each in Kind}
    rows[Kind.OTHER] = np.concatenate([rows[Kind.OTHER], rows[Kind.P2P]])
    sets = {each.name.lower(): union(start_ns[of_kind], end_ns[of_kind]) for each, of_kind in rows.items()}
    return Ran(**sets, start_ns=int(start_ns.min()), end_ns=int(end_ns.max()))

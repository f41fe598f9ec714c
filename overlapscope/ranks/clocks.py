"""How the ranks' clocks stand to one another, from collectives in which every member waits for every other.

The kernel of such a collective ends on every member once the data is through, so its ends tell the clocks apart. How
closely: no member can be through before the last has come, and what follows then, the transfer, lasts about as long as
the shortest of the kernels, which is that of the member that came last. The assumptions that make bounds of it:

- ends of one collective lie no further apart than its shortest kernel is long (in 485 collectives recorded on one
  machine: up to a quarter of it);
- but for an all-reduce the member that came last may find some of what it needs waiting, and be through before what it
  brought has gone round the others. NCCL sends eight pieces ahead (`NCCL_STEPS`) and hands one on in at most 10 us, so
  that it may be through by so much earlier;
- timestamps of two devices on one clock agree to 5 us.

With `offset` what a clock reads too much against the reference, each meeting of `i` and `j` says

    |(end_i - offset_i) - (end_j - offset_j)| <= shortest + 5 us [+ 10 us * min(members - 1, 8)]

and all of them together bound every offset, also of ranks that meet the reference only by way of others. The estimate
is the median of the differences of ends, moved into the bounds; its error reaches to the farther bound. A few meetings
that end nothing like the others (a lost or cut kernel) are left out.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.collectives import Meetings, goes_round

TIMESTAMP_ERROR_NS = 5_000
"""By how much timestamps of two devices of one machine may differ."""
HOP_NS = 10_000
"""What it takes at most to hand a small message on to the next rank."""
AHEAD = 8
"""How many pieces may be waiting for a rank before it takes part."""
SHARED_NS = 100_000
"""Clocks that differ by less than this may be one: ends on one machine were seen up to 70 us apart."""

ODD_SLACK = 3
"""A meeting whose ends lie further apart than this many times what is allowed is odd..."""
ODD_SHARE = 0.1
"""...and left out, unless more than this share are: then it is not the meetings that are odd."""

_FAR = np.int64(1) << 61
_ROUNDS = 64


class Offsets(Struct, frozen=True, eq=False):
    """Of each rank, by its place."""

    status: Literal["shared", "estimated", "unknown"]
    offset_ns: I64
    """0 where clocks are shared or nothing is known."""
    error_ns: I64
    """How far the offset may be off; 0 where clocks are shared, -1 where nothing is known."""
    apart_ns: I64
    """Median difference of ends before any offset was taken off."""
    bound_ns: I64
    """The largest offset that the meetings leave open, either way, or the error where that is estimated."""
    reference: I64
    """Place of the rank whose clock it was compared with, directly or by way of others; -1 where nothing is known."""
    within_ns: I64
    """Of each meeting given: how far the offsets of two of its members may be off against one another, which is less
    than against a reference elsewhere."""
    odd: Bool
    """Of each meeting given: whether it was left out."""
    consistent: bool
    """False where no constant offsets fit: clocks ran apart during the recording, or what was matched is not alike."""


def find_offsets(meetings: Meetings, ranks: int) -> Offsets:
    """The offsets of so many ranks from meetings that are all symmetric."""
    nothing = np.full(ranks, -1, np.int64)
    zero = np.zeros(ranks, np.int64)
    odd = np.zeros(len(meetings), np.bool_)
    if not len(meetings):
        return Offsets("unknown", zero, nothing, zero, nothing, nothing, zero[:0], odd, True)
    ends = everything = _Ends(meetings, ranks)
    reference = ends.components()
    estimate, error = ends.estimate(reference)
    odd = ends.odd(estimate)
    if odd.any() and odd.mean() <= ODD_SHARE:
        ends = _Ends(meetings.take(~odd), ranks)
        reference = ends.components()
        estimate, error = ends.estimate(reference)
    else:
        odd[:] = False
    known = reference >= 0
    low, high = ends.bounds(reference)
    consistent = bool((low <= high)[known].all())
    if consistent:
        estimate = np.where(known, np.clip(estimate, low, high), 0)
        error = np.maximum(high - estimate, estimate - low)
    apart = np.where(known, estimate, 0)
    bound = np.where(known, np.maximum(np.abs(low), np.abs(high)) if consistent else error, -1)
    near = np.abs(apart) <= np.minimum(SHARED_NS, error // 2)
    if consistent and ((low <= 0) & (high >= 0) & near)[known].all():
        within = everything.within(zero)
        return Offsets("shared", zero, np.where(known, 0, -1), apart, bound, reference, within, odd, True)
    within = everything.within(estimate) if consistent else np.full(len(meetings), _FAR)
    error = np.where(known, error, -1)
    return Offsets("estimated", apart, error, apart, error, reference, within, odd, consistent)


class _Ends:
    """When the kernels of the meetings ended, by meeting and by rank."""

    def __init__(self, meetings: Meetings, ranks: int) -> None:
        kernels, row = meetings.kernels, meetings.row
        self.ranks = ranks
        self.first: I64 = meetings.first[:-1]
        self.meeting: I64 = meetings.meeting
        self.rank: I64 = kernels.rank[row]
        self.end: I64 = kernels.end_ns[row] - kernels.end_ns[row].min()
        lengths = kernels.end_ns[row] - kernels.start_ns[row]
        round_ = np.array([goes_round(kind) for kind in kernels.kinds], np.bool_)[meetings.kind]
        sizes = np.array([kind.group_size for kind in kernels.kinds], np.int64)[meetings.kind]
        hops = np.where(round_, np.minimum(np.maximum(sizes, np.diff(meetings.first)) - 1, AHEAD), 0)
        self.slack: I64 = np.minimum.reduceat(lengths, self.first) + TIMESTAMP_ERROR_NS + HOP_NS * hops
        self.group: I64 = meetings.group
        self.members: I64 = np.diff(meetings.first)
        self.by_rank = np.argsort(self.rank, kind="stable")
        self.present, self.rank_first = np.unique(self.rank[self.by_rank], return_index=True)

    def components(self) -> I64:
        """For each rank the lowest one that it is connected with through meetings; -1 for those without meetings."""
        label = np.arange(self.ranks)
        while True:
            lowest = np.minimum.reduceat(label[self.rank], self.first)[self.meeting]
            new = label.copy()
            new[self.present] = np.minimum(
                label[self.present], np.minimum.reduceat(lowest[self.by_rank], self.rank_first)
            )
            if (new == label).all():
                break
            label = new
        met = np.zeros(self.ranks, np.bool_)
        met[self.present] = True
        return np.where(met, label, -1)

    def estimate(self, reference: I64) -> tuple[I64, I64]:
        """Medians of the differences of ends, from the references outwards, and how far single ones lie from them."""
        offset, error = np.zeros(self.ranks, np.int64), np.zeros(self.ranks, np.int64)
        estimated = reference == np.arange(self.ranks)
        while (missing := (reference >= 0) & ~estimated).any():
            there = estimated[self.rank]
            ended, at = _medians(self.meeting[there], (self.end - offset[self.rank])[there])
            when = np.zeros(len(self.first), np.int64)
            tells = np.zeros(len(self.first), np.bool_)
            when[at], tells[at] = ended, True
            doubt = np.zeros(len(self.first), np.int64)
            np.maximum.at(doubt, self.meeting[there], error[self.rank][there])
            told = missing[self.rank] & tells[self.meeting]
            difference, rank = (self.end - when[self.meeting])[told], self.rank[told]
            middle, at = _medians(rank, difference)
            offset[at] = middle
            away = np.abs(difference - offset[rank]) + (doubt + self.slack)[self.meeting[told]]
            np.maximum.at(error, rank, away)
            estimated[at] = True
        return offset, error

    def odd(self, offset: I64) -> Bool:
        """Which meetings' ends lie far apart with these offsets."""
        far: Bool = self._spread(offset) > ODD_SLACK * self.slack
        return far

    def within(self, offset: I64) -> I64:
        """For each meeting, how far offsets of its members may be off against one another.

        True offsets bring any meeting's ends within its slack of one another; these bring them within the spread that
        is left. So they differ from the true ones by no more than both together, by the best meeting of all members.
        """
        doubt = self._spread(offset) + self.slack
        most = np.zeros(int(self.group.max()) + 1, np.int64)
        np.maximum.at(most, self.group, self.members)
        complete = self.members == most[self.group]
        least = np.full(len(most), _FAR)
        np.minimum.at(least, self.group[complete], doubt[complete])
        return least[self.group]

    def _spread(self, offset: I64) -> I64:
        end = self.end - offset[self.rank]
        spread: I64 = np.maximum.reduceat(end, self.first) - np.minimum.reduceat(end, self.first)
        return spread

    def bounds(self, reference: I64) -> tuple[I64, I64]:
        """The least and the largest offset of each rank that all meetings allow. True after any number of rounds."""
        fixed = reference == np.arange(self.ranks)
        low, high = np.where(fixed, 0, -_FAR), np.where(fixed, 0, _FAR)
        slack, last = self.slack[self.meeting], None
        for _ in range(_ROUNDS):
            earliest = np.minimum.reduceat(self.end - low[self.rank], self.first)[self.meeting]
            latest = np.maximum.reduceat(self.end - high[self.rank], self.first)[self.meeting]
            lows = np.maximum.reduceat((self.end - slack - earliest)[self.by_rank], self.rank_first)
            highs = np.minimum.reduceat((self.end + slack - latest)[self.by_rank], self.rank_first)
            low[self.present] = np.maximum(low[self.present], lows)
            high[self.present] = np.minimum(high[self.present], highs)
            now = (low.tobytes(), high.tobytes())
            if now == last or (low > high).any():
                break
            last = now
        return low, high


def _medians(group: I64, values: I64) -> tuple[I64, I64]:
    """The median of the values of each group, and the groups. Between two middle ones, half way."""
    order = np.lexsort((values, group))
    groups, first, counts = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    below, above = ordered[first + (counts - 1) // 2], ordered[first + counts // 2]
    return below + (above - below) // 2, groups

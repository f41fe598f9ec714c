"""Offsets between the ranks' clocks, from collectives in which every member waits for every other.

The kernel of such a collective ends on every member once the data has arrived, so that its ends relate the clocks. No
member can finish before the last one has arrived, and the transfer that follows takes about as long as the shortest of
the kernels, which is that of the last member. Bounds follow from these assumptions:

- The ends of a collective are no further apart than its shortest kernel is long. (In 485 collectives recorded on one
  machine: up to a quarter of it.)
- Except in an all-reduce, the last member may find some of the data it needs waiting, and finish before its own data
  has gone round the others. NCCL sends eight pieces ahead (`NCCL_STEPS`) and hands a piece on within 10 us, so the last
  member may finish that much earlier.
- Timestamps of two devices on one clock agree to 5 us.

With `offset` as a clock's lead over the reference, each meeting of `i` and `j` says

    |(end_i - offset_i) - (end_j - offset_j)| <= shortest + 5 us [+ 10 us * min(members - 1, 8)]

If the messages of an all-to-all differ between members, the longest of the kernels takes the place of the shortest. It
does so for ranges on the host, too, because their threads may have to wait for a core. All meetings together bound
every offset, including those of ranks that meet the reference only through others. The
estimate is the median of the differences of ends, moved into the bounds. Its error is the distance to the farther
bound. A few meetings whose ends are unlike the others' (a lost or cut kernel) are left out.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import group_starts
from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.collectives import Meetings, goes_round, on_host

TIMESTAMP_ERROR_NS = 5_000
"""Maximum difference between timestamps of two devices of the same machine."""
HOP_NS = 10_000
"""Maximum time to hand a small message on to the next rank."""
AHEAD = 8
"""Maximum number of pieces that can be waiting for a rank before it takes part."""
SHARED_NS = 100_000
"""Clocks that differ by less than this may be one clock: ends on one machine were seen up to 70 us apart."""
HOST_NS = 5_000_000
"""The same for ranges on the host, by the median of their ends."""

ODD_SLACK = 3
"""A meeting is odd if its ends are further apart than this multiple of its slack."""
ODD_SHARE = 0.1
"""Odd meetings are left out unless they are more than this share of all: then something else is wrong."""

_FAR = np.int64(1) << 61
_ROUNDS = 64


class Offsets(Struct, frozen=True, eq=False):
    """Offsets of the clocks. Arrays of ranks go by the rank's place, arrays of meetings by the meetings given."""

    status: Literal["shared", "estimated", "unknown"]
    offset_ns: I64
    """Offset of each rank; 0 where clocks are shared or unknown."""
    error_ns: I64
    """Maximum error of each rank's offset; 0 where clocks are shared, -1 where the offset is unknown."""
    apart_ns: I64
    """Median difference of each rank's ends before any offset was subtracted."""
    bound_ns: I64
    """Largest offset of each rank, either way, that the meetings allow; the error if clocks are estimated."""
    reference: I64
    """Place of the rank whose clock each rank is compared with, directly or through others; -1 where unknown."""
    within_ns: I64
    """Maximum error between the offsets of two members of each meeting, smaller than that against the reference."""
    odd: Bool
    """Mask of the meetings that were left out."""
    consistent: bool
    """False if no constant offsets fit: the clocks drifted during the recording, or unlike kernels were matched."""


def find_offsets(meetings: Meetings, ranks: int) -> Offsets:
    """Return the offsets of the ranks' clocks, from meetings that are all symmetric."""
    everything = _Ends(meetings, ranks)
    estimate, odd = everything.estimate(), np.zeros(len(meetings), np.bool_)
    if not len(meetings):
        zero, unknown = np.zeros(ranks, np.int64), estimate.reference
        return Offsets("unknown", zero, unknown, zero, unknown, unknown, zero[:0], odd, True)
    ends, unlike = everything, everything.odd(estimate.offset)
    if 0 < unlike.mean() <= ODD_SHARE:
        odd = unlike
        ends = _Ends(meetings.take(~odd), ranks)
        estimate = ends.estimate()
    reference, connected = estimate.reference, estimate.reference >= 0
    low, high = ends.bounds(reference)
    if not (low <= high)[connected].all():
        error = np.where(connected, estimate.error, -1)
        within = np.full(len(meetings), _FAR)
        return Offsets("estimated", estimate.offset, error, estimate.offset, error, reference, within, odd, False)
    offset = np.where(connected, np.clip(estimate.offset, low, high), 0)
    error = np.maximum(high - offset, offset - low)
    near_0 = HOST_NS if ends.on_host.any() else SHARED_NS
    possible_0 = (low <= 0) & (high >= 0) & (np.abs(offset) <= np.minimum(near_0, error // 2))
    if possible_0[connected].all():
        zero = np.zeros(ranks, np.int64)
        bound = np.where(connected, np.maximum(np.abs(low), np.abs(high)), -1)
        within = everything.within(zero)
        return Offsets("shared", zero, np.where(connected, 0, -1), offset, bound, reference, within, odd, True)
    error, within = np.where(connected, error, -1), everything.within(offset)
    return Offsets("estimated", offset, error, offset, error, reference, within, odd, True)


class _Estimate(Struct, frozen=True, eq=False):
    """Estimated offsets, one for each rank."""

    reference: I64
    """Place of the rank that the offset is against, which has offset 0; -1 for ranks without meetings."""
    offset: I64
    error: I64
    """Maximum distance of a single difference of ends from the offset, with what each is uncertain by."""


class _Ends:
    """Ends of the kernels of meetings.

    `meeting`, `rank` and `end` have one entry for each kernel, the entries of a meeting contiguous; `first`, `slack`,
    `group`,
    `members` and `on_host` one for each meeting.
    """

    def __init__(self, meetings: Meetings, ranks: int) -> None:
        self.ranks = ranks
        self.first: I64 = meetings.first[:-1]
        self.meeting: I64 = meetings.meeting
        self.rank: I64 = meetings.rank
        self.end: I64 = meetings.end_ns - meetings.end_ns.min(initial=_FAR)
        self.group: I64 = meetings.group
        self.members: I64 = np.diff(meetings.first)
        sizes = meetings.kernels.by_kind(lambda kind: kind.group_size)[meetings.kind]
        hops = np.minimum(np.maximum(sizes, self.members) - 1, AHEAD)
        hops *= meetings.kernels.by_kind(goes_round)[meetings.kind]
        took = meetings.end_ns - meetings.start_ns
        shortest, longest = (side.reduceat(took, self.first) for side in (np.minimum, np.maximum))
        self.on_host: Bool = meetings.kernels.by_kind(on_host)[meetings.kind] != 0
        together = np.where(meetings.alike() & ~self.on_host, shortest, longest)
        self.slack: I64 = together + TIMESTAMP_ERROR_NS + HOP_NS * hops
        """Maximum distance between the ends of each meeting, in nanoseconds, with true offsets."""
        self._by_rank = np.argsort(self.rank, kind="stable")
        self._rank_first = group_starts(self.rank[self._by_rank])
        self._present = self.rank[self._by_rank][self._rank_first]

    def estimate(self) -> _Estimate:
        """Estimate offsets as medians of the differences of ends, from the references outwards.

        In each round, the ranks that meet a rank with an estimate get theirs: the median, over these meetings, of
        their end minus the median end of the members with an estimate.

        Returns:
            For each rank, its reference, its offset from it and the error of that offset.
        """
        reference = self._components()
        offset, error = np.zeros(self.ranks, np.int64), np.zeros(self.ranks, np.int64)
        estimated = reference == np.arange(self.ranks)
        while (missing := (reference >= 0) & ~estimated).any():
            members = estimated[self.rank]
            meeting = self.meeting[members]
            middle, compared = _medians(meeting, (self.end - offset[self.rank])[members])
            common_end = np.zeros(len(self.first), np.int64)
            common_end[compared] = middle
            doubt = np.full(len(self.first), -1)
            np.maximum.at(doubt, meeting, error[self.rank][members])
            new = missing[self.rank] & (doubt >= 0)[self.meeting]
            rank, meeting = self.rank[new], self.meeting[new]
            difference = self.end[new] - common_end[meeting]
            middle, shifted = _medians(rank, difference)
            offset[shifted] = middle
            np.maximum.at(error, rank, np.abs(difference - offset[rank]) + (doubt + self.slack)[meeting])
            estimated[shifted] = True
        return _Estimate(reference, offset, error)

    def _components(self) -> I64:
        """Return for each rank the lowest rank connected with it through meetings; -1 for ranks without meetings."""
        label = np.arange(self.ranks)
        while True:
            lowest = np.minimum.reduceat(label[self.rank], self.first)[self.meeting]
            new = label.copy()
            reached = np.minimum.reduceat(lowest[self._by_rank], self._rank_first)
            new[self._present] = np.minimum(label[self._present], reached)
            if (new == label).all():
                break
            label = new
        return np.where(mask_of(self._present, self.ranks), label, -1)

    def odd(self, offset: I64) -> Bool:
        """Select the meetings whose ends are far apart with these offsets."""
        far: Bool = self._spread(offset) > ODD_SLACK * self.slack
        return far

    def within(self, offset: I64) -> I64:
        """Return the maximum error between the offsets of two members of each meeting.

        True offsets bring the ends of any meeting within its slack of each other; these offsets bring them within the
        remaining spread. So the two differ by no more than both together, in the best meeting of all members.
        """
        doubt = self._spread(offset) + self.slack
        most = np.zeros(int(self.group.max()) + 1, np.int64)
        np.maximum.at(most, self.group, self.members)
        complete = self.members == most[self.group]
        least = np.full(len(most), _FAR)
        np.minimum.at(least, self.group[complete], doubt[complete])
        return least[self.group]

    def _spread(self, offset: I64) -> I64:
        """Return the distance between the ends of each meeting with these offsets."""
        end = self.end - offset[self.rank]
        spread: I64 = np.maximum.reduceat(end, self.first) - np.minimum.reduceat(end, self.first)
        return spread

    def bounds(self, reference: I64) -> tuple[I64, I64]:
        """Return the smallest and the largest offset of each rank that all meetings allow.

        Each round narrows the bounds, and they are true after any number of rounds.
        """
        fixed = reference == np.arange(self.ranks)
        low, high = np.where(fixed, 0, -_FAR), np.where(fixed, 0, _FAR)
        slack, before = self.slack[self.meeting], None
        for _ in range(_ROUNDS):
            earliest = np.minimum.reduceat(self.end - low[self.rank], self.first)[self.meeting]
            latest = np.maximum.reduceat(self.end - high[self.rank], self.first)[self.meeting]
            lows = np.maximum.reduceat((self.end - slack - earliest)[self._by_rank], self._rank_first)
            highs = np.minimum.reduceat((self.end + slack - latest)[self._by_rank], self._rank_first)
            low[self._present] = np.maximum(low[self._present], lows)
            high[self._present] = np.minimum(high[self._present], highs)
            now = (low.tobytes(), high.tobytes())
            if now == before or (low > high).any():
                break
            before = now
        return low, high


def _medians(group: I64, values: I64) -> tuple[I64, I64]:
    """Return the median of the values of each group, and the groups. Between two middle values, half way."""
    order = np.lexsort((values, group))
    groups, first, counts = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    below, above = ordered[first + (counts - 1) // 2], ordered[first + counts // 2]
    return below + (above - below) // 2, groups

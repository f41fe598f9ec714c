"""Offsets between the ranks' clocks, from collectives in which every member waits for every other.

The kernel of such a collective ends on every member once the data has arrived, so that its ends relate the clocks. No
member can finish before the last one has arrived, and the transfer that follows takes about as long as the shortest of
the kernels, which is that of the last member. Bounds follow from these assumptions:

- The ends of a collective are no further apart than its shortest kernel is long. (In 485 collectives recorded on one
  machine: up to a quarter of it.) The median difference over five or more is no more than a 16th of it. (In 21 jobs
  recorded on one machine, whose clock is one: up to a 17th, and 5 us.)
- Except in an all-reduce, the last member may find some of the data it needs waiting, and finish before its own data
  has gone round the others. NCCL sends eight pieces ahead (`NCCL_STEPS`) and hands a piece on within 10 us, so the last
  member may finish that much earlier.
- Timestamps of two devices on one clock agree to 5 us.

With `offset` as a clock's lead over the reference, each meeting of `i` and `j` says

    |(end_i - offset_i) - (end_j - offset_j)| <= shortest + 5 us [+ 10 us * min(members - 1, 8)]

If the messages of an all-to-all differ between members, the longest of the kernels takes the place of the shortest. It
does so for ranges on the host, too, because their threads may have to wait for a core. All meetings together bound
every offset, including those of ranks that meet the reference only through others. The estimate is the median of the
differences of ends, moved into the bounds. It is subtracted even if it is small: one clock and two that agree can't be
told apart. Its error is the largest distance of a difference from it, plus what may be alike in all of them, or the
distance to the farther bound if that is less. A few meetings whose ends are unlike the others' (a lost or cut kernel)
are left out.

Clocks may drift or jump while they are recorded. So arrivals at a meeting are compared by the clocks as they were
then: their lead is a running median over meetings of the same group. The error of that lead is again how far ends
around it deviate, plus what may be alike in them, plus the lead's change since the group met before. If ends show that
a clock jumped, the steps between them are torn: nothing is compared in them, because a jump changes the lengths of
kernels and steps. Beyond it, the clock is followed anew. Before the first meeting of a group no ends show whether a
clock jumped in it, so its arrivals show nothing for sure.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import group_starts
from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.collectives import Meetings, goes_round, on_host

TIMESTAMP_ERROR_NS = 5_000
"""Maximum difference between timestamps of two devices of the same machine."""
HOP_NS = 10_000
"""Maximum time to hand a small message on to the next rank."""
MAX_PIECES_AHEAD = 8
"""Maximum number of pieces that can be waiting for a rank before it takes part."""
HALVINGS = 4
"""The ends of a collective may differ alike in all meetings. A single one may be off by its whole shortest kernel. Each
further meeting halves that, this many times at most: their ends are as likely to be early as late, and what is left is
consistent."""
LEAD_MEETINGS = 9
"""Number of meetings over which the lead of a clock is a median."""

ODD_SLACK = 3
"""A meeting is odd if its ends are further apart than this multiple of its slack."""
ODD_SHARE = 0.1
"""Odd meetings are left out unless they are more than this share of all: then something else is wrong."""

_UNBOUNDED_NS = np.int64(1) << 61
_MAX_ROUNDS = 64


class Offsets(Struct, frozen=True, eq=False):
    """Offsets of the clocks. Arrays of ranks go by the rank's place, arrays of meetings by the meetings given."""

    offset_ns: I64
    """Offset of each rank; 0 where unknown."""
    error_ns: I64
    """Maximum error of each rank's offset; -1 where the offset is unknown."""
    reference: I64
    """Place of the rank whose clock each rank is compared with, directly or through others; -1 where unknown."""
    lead_ns: I64
    """Lead of the clock of each entry of `Meetings.row` at the meeting, comparable within the meeting."""
    within_ns: I64
    """Maximum error of the difference between two leads of each meeting."""
    odd: Bool
    """Mask of the meetings whose ends are too far apart to be of one collective."""
    opening: Bool
    """Mask of the meetings that are the first of a member in their group. A jump inside them shows in no ends."""
    torn: tuple[int, ...]
    """Numbers of the steps in which a clock may have jumped; -1 if it did so outside of steps."""
    consistent: bool
    """False if no constant offsets fit: the clocks drifted or jumped, or unlike kernels were matched."""

    @property
    def status(self) -> Literal["shared", "estimated", "unknown"]:
        """`shared` if each offset is within its error, so that the clocks may be one."""
        if not (self.error_ns >= 0).any():
            return "unknown"
        near: Bool = np.abs(self.offset_ns) <= np.maximum(self.error_ns, 0)
        return "shared" if self.consistent and near.all() else "estimated"


def find_offsets(meetings: Meetings, ranks: int) -> Offsets:
    """Return the offsets of the ranks' clocks, from meetings that are all symmetric."""
    everything = _Ends(meetings, ranks)
    reference, first_offset, error = everything.estimate()
    if not len(meetings):
        zero, none = np.zeros(ranks, np.int64), np.zeros(0, np.int64)
        return Offsets(zero, reference, reference, none, none, none > 0, none > 0, (), True)
    ends, offset, unlike = everything, first_offset, everything.odd(first_offset)
    if 0 < unlike.mean() <= ODD_SHARE:
        ends = _Ends(meetings.take(~unlike), ranks)
        reference, offset, error = ends.estimate()
    connected = reference >= 0
    low, high = ends.bounds(reference)
    consistent = bool((low <= high)[connected].all())
    if consistent:
        bounded = np.where(connected, np.clip(offset, low, high), 0)
        moved = np.abs(bounded - offset)
        offset, error = bounded, np.minimum(error + moved, np.maximum(high - bounded, bounded - low))
    constant: dict[str, Any] = {"offset_ns": offset, "error_ns": np.where(connected, error, -1), "reference": reference}
    return Offsets(**constant, **everything.follow(first_offset), consistent=consistent)


def on_one_clock(offsets: Offsets) -> Offsets:
    """Return the offsets of ranks that were recorded into one file, and so by one clock."""
    known = offsets.reference >= 0
    return replace(
        offsets,
        offset_ns=np.zeros_like(offsets.offset_ns),
        error_ns=np.where(known, 0, -1),
        reference=np.where(known, np.flatnonzero(known)[0], -1),
        lead_ns=np.zeros_like(offsets.lead_ns),
        within_ns=np.full_like(offsets.within_ns, TIMESTAMP_ERROR_NS),
        opening=np.zeros_like(offsets.opening),
        torn=(),
    )


class _Ends:
    """Ends of the kernels of meetings.

    `meeting`, `rank` and `end` have one entry for each kernel, the entries of a meeting contiguous; `first`, `slack`,
    `group` and `step` one for each meeting.
    """

    def __init__(self, meetings: Meetings, ranks: int) -> None:
        self.ranks = ranks
        self.first: I64 = meetings.first[:-1]
        self.meeting: I64 = meetings.meeting
        self.rank: I64 = meetings.rank
        self.end: I64 = meetings.end_ns - meetings.end_ns.min(initial=_UNBOUNDED_NS)
        self.group: I64 = meetings.group
        self.step: I64 = meetings.kernels.step[meetings.row[self.first]]
        hops = np.minimum(np.maximum(meetings.group_size, meetings.members) - 1, MAX_PIECES_AHEAD) * meetings.of_kinds(
            goes_round
        )
        shortest, longest = meetings.extremes(meetings.kernels.end_ns - meetings.kernels.start_ns)
        together = np.where(meetings.alike() & ~meetings.of_kinds(on_host), shortest, longest)
        self.slack: I64 = together + TIMESTAMP_ERROR_NS + HOP_NS * hops
        """Maximum distance between the ends of each meeting, in nanoseconds, with true offsets."""
        self._transfer = together
        self._by_rank = np.argsort(self.rank, kind="stable")
        self._rank_first = group_starts(self.rank[self._by_rank])
        self._present = self.rank[self._by_rank][self._rank_first]

    def estimate(self) -> tuple[I64, I64, I64]:
        """Estimate offsets as medians of the differences of ends, from the references outwards.

        In each round, the ranks that meet a rank with an estimate get theirs: the median, over these meetings, of
        their end minus the median end of the members with an estimate.

        Returns:
            For each rank, its reference (-1 without meetings), its offset from it, and the maximum distance of a single
            difference of ends from the offset, plus what may be alike in all of them.
        """
        reference = components(self.rank[self.first][self.meeting], self.rank, self.ranks)
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
            count = np.bincount(rank, minlength=self.ranks)
            offset[shifted] = middle
            np.maximum.at(
                error,
                rank,
                np.abs(difference - offset[rank]) + doubt[meeting] + self._common_error(meeting, count[rank]),
            )
            estimated[shifted] = True
        return reference, offset, error

    def odd(self, offset: I64) -> Bool:
        """Select the meetings whose ends are far apart with these offsets."""
        far: Bool = self._range(self.end - offset[self.rank]) > ODD_SLACK * self.slack
        return far

    def follow(self, offset: I64) -> dict[str, Any]:
        """Return the fields of `Offsets` on each meeting, and the torn steps.

        Clocks are followed within each group, as its members may share no other meetings.

        Args:
            offset: Offset of each rank, about which its clock may drift.
        """
        end = self.end - offset[self.rank]
        apart = end - end[self.first][self.meeting]
        group, rank, slack = self.group[self.meeting], self.rank, self.slack[self.meeting]
        # A clock that jumps back takes nothing to an earlier step.
        by_group = np.lexsort((end[self.first], self.step, self.group))
        place = np.empty_like(by_group)
        place[by_group] = np.arange(len(place))
        order = np.lexsort((place[self.meeting], rank, group))
        first = group_starts(group[order], rank[order])
        opening = mask_of(self.meeting[order[first]], len(self.first))
        jumps = _jumps(apart[order], slack[order], first)
        first = np.unique(np.append(first, jumps))
        drift, count, change = (np.empty_like(apart) for _ in range(3))
        low, high = (
            sign * _running((sign * apart - slack)[order], first, LEAD_MEETINGS, largest=True) for sign in (1, -1)
        )
        drift[order] = _running(apart[order], first, LEAD_MEETINGS)
        drift[order] = np.where(low <= high, np.clip(drift[order], low, high), drift[order])
        count[order] = np.repeat(counts := np.diff(np.append(first, len(order))), counts)
        # Ends beyond their slack may show a jump that is too small or too close to an edge to tear steps.
        seen = np.where(np.abs(apart - drift) > slack, apart, drift)
        change[order] = _changes(seen[order], first)
        spread = self._range(apart - drift)
        odd = spread > ODD_SLACK * self.slack
        nearby = np.empty_like(spread)
        nearby[by_group] = _running(
            np.where(odd, 0, spread)[by_group], group_starts(self.group[by_group]), LEAD_MEETINGS, largest=True
        )
        fewest, changed = np.minimum.reduceat(count, self.first), np.maximum.reduceat(change, self.first)
        # The meeting's own slack is no limit, because a jump within a kernel may have shortened it.
        within = np.maximum(spread, nearby) + changed + self._common_error(np.arange(len(spread)), fewest)
        # Between the meeting before a jump and the one after it.
        step = self.step[self.meeting[order]].tolist()
        torn = {number for jump in jumps.tolist() for number in range(step[jump - 1], step[jump] + 1)}
        return {
            "lead_ns": offset[rank] + drift,
            "within_ns": within,
            "odd": odd,
            "opening": opening,
            "torn": tuple(sorted(torn)),
        }

    def _common_error(self, meeting: I64, count: I64) -> I64:
        """Return how far the ends of each meeting may be off, alike in all of `count` meetings."""
        alike: I64 = self.slack[meeting] - self._transfer[meeting]
        return alike + (self._transfer[meeting] >> np.clip(count - 1, 0, HALVINGS))

    def _range(self, values: I64) -> I64:
        """Return the distance between the largest and the smallest value of each meeting."""
        distance: I64 = np.maximum.reduceat(values, self.first) - np.minimum.reduceat(values, self.first)
        return distance

    def bounds(self, reference: I64) -> tuple[I64, I64]:
        """Return the smallest and the largest offset of each rank that all meetings allow.

        Each round narrows the bounds, and they are true after any number of rounds.
        """
        fixed = reference == np.arange(self.ranks)
        low, high = np.where(fixed, 0, -_UNBOUNDED_NS), np.where(fixed, 0, _UNBOUNDED_NS)
        slack, before = self.slack[self.meeting], None
        for _ in range(_MAX_ROUNDS):
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


def components(first: I64, second: I64, ranks: int) -> I64:
    """Return for each rank the lowest rank connected with it through pairs of ranks; -1 for ranks without pairs."""
    label = np.arange(ranks)
    while True:
        new = label.copy()
        np.minimum.at(new, first, label[second])
        np.minimum.at(new, second, label[first])
        if (new == label).all():
            break
        label = new
    return np.where(mask_of(np.concatenate([first, second]), ranks), label, -1)


def _medians(group: I64, values: I64) -> tuple[I64, I64]:
    """Return the median of the values of each group, and the groups. Between two middle values, half way."""
    order = np.lexsort((values, group))
    groups, first, counts = np.unique(group[order], return_index=True, return_counts=True)
    ordered = values[order]
    below, above = ordered[first + (counts - 1) // 2], ordered[first + counts // 2]
    return below + (above - below) // 2, groups


def _changes(values: I64, first: I64) -> I64:
    """Return the distance of each value from the one before, in sequences that start at `first`."""
    change: I64 = np.abs(np.diff(values, prepend=0))
    change[first] = 0
    return change


def _jumps(apart: I64, slack: I64, first: I64) -> I64:
    """Return the entries before which a clock has jumped, in sequences that start at `first`.

    A single meeting whose ends are far apart is odd, and no jump. The first and the last of a sequence may be far from
    the others by a jump.
    """
    steady, edges = _running(apart, first, 3), np.concatenate([first, first[1:] - 1, [len(apart) - 1]])
    steady[edges] = apart[edges]
    return np.flatnonzero(_changes(steady, first) > slack + np.roll(slack, 1))


def _running(values: I64, first: I64, width: int, *, largest: bool = False) -> I64:
    """Return the median, or the largest, of the values around each one, in sequences that start at `first`."""
    result = np.empty_like(values)
    for begin, end in zip(first.tolist(), [*first[1:].tolist(), len(values)], strict=True):
        most = min(width, end - begin)
        before = (most - 1) // 2
        windows = np.sort(np.lib.stride_tricks.sliding_window_view(values[begin:end], most), axis=1)
        at = most - 1 if largest else before
        result[begin:end] = np.pad(windows[:, at], (before, most - 1 - before), mode="edge")
    return result

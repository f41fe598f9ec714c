"""Who waited for whom, in which collective, once the clocks are known.

In a collective in which every member needs every other, a member waits from its own arrival (its kernel's start) until
the last arrival. That waiting is charged to the member that came last. Members that came last together, no further
apart than the clocks' error, share it: each is charged an equal part of that stretch of time; where that are more than
eight, or all, nobody is.

A rank can be late because another group had made it wait. The last part of a wait, as long as the late rank had itself
waited with nothing to compute since this group last met, is what it may only have passed on.

For lengths that must not count anything twice all ranks' windows are laid one behind another on one line of time, and
what is added up on it are unions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from overlapscope.base.columns import Columns
from overlapscope.base.intervals import I64, Bool, Intervals, covered, intersect, union
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.collectives import Meetings
from overlapscope.ranks.reduced import ReducedRank

TOGETHER = 8
"""Members that may come last together and still be named: the devices of one machine."""


class Arrivals(Struct, frozen=True, eq=False):
    """The judged meetings, and by entry of `meetings.row` who came when."""

    meetings: Meetings
    meeting: I64
    """Of each entry."""
    waited_ns: I64
    """Of each entry: until the last member came, at most the kernel's length."""
    exposed_ns: I64
    """The part of it during which the rank computed nothing."""
    late: I64
    """Of each meeting: the entry that came last."""
    late_ns: I64
    """Of each meeting: from the first arrival to the last."""
    together: I64
    """Of each meeting: how many came last together; 0 where nobody can be named."""


class Pairs(Columns, frozen=True):
    """What one rank waited for another, over all meetings; columns of equal length."""

    late: I64
    """Place of the rank that came last."""
    waiting: I64
    """Place of the one that waited."""
    waited_ns: I64
    exposed_ns: I64
    passed_on_ns: I64
    """The part of `exposed_ns` that the late rank may only have passed on."""


class Waits(Struct, frozen=True, eq=False):
    """Everything about waiting. `by rank` arrays go by the rank's place."""

    arrivals: Arrivals
    pairs: Pairs
    judged: I64
    """By rank: in how many judged meetings it was."""
    waited_ns: I64
    """By rank: the union of its waits."""
    exposed_ns: I64
    """By rank: the part of it during which it computed nothing."""
    made_wait_ns: I64
    """By rank: what all others waited for it."""
    last_in: I64
    """By rank: in how many meetings its coming last is charged to it."""


def find_waits(ranks: Sequence[ReducedRank], met: Meetings, offsets: Offsets) -> Waits:
    """Compare arrivals in the symmetric meetings that lie behind every member's lead-in. `offsets` were found from
    the same meetings.
    """
    judged_from = np.array([rank.judged_from_ns for rank in ranks], np.int64)
    judged = _judged(met, judged_from, offsets)
    meetings = met.take(judged)
    line = _Line(ranks)
    arrivals, charges = _arrivals(meetings, offsets, offsets.within_ns[judged], line)
    kernels, row = meetings.kernels, meetings.row
    waits = union(*line.put(kernels.rank[row], kernels.start_ns[row], kernels.start_ns[row] + arrivals.waited_ns))
    exposed_waits = intersect(waits, line.exposed)
    pairs = _pairs(arrivals, charges, line, exposed_waits)
    return Waits(
        arrivals=arrivals,
        pairs=pairs,
        judged=np.bincount(kernels.rank[row], minlength=len(ranks)),
        waited_ns=line.of_each_rank(waits),
        exposed_ns=line.of_each_rank(exposed_waits),
        made_wait_ns=sum_by(pairs.late, pairs.waited_ns, len(ranks)),
        last_in=np.bincount(kernels.rank[row[np.unique(charges.late)]], minlength=len(ranks)),
    )


def sum_by(place: I64, values: I64, count: int) -> I64:
    """The sum of the values of each place. Exact, which weights of `bincount` are not."""
    result = np.zeros(count, np.int64)
    np.add.at(result, place, values)
    return result


def _judged(met: Meetings, judged_from: I64, offsets: Offsets) -> Bool:
    if not len(met):
        return np.zeros(0, np.bool_)
    rank = met.kernels.rank[met.row]
    good = (met.kernels.start_ns[met.row] >= judged_from[rank]) & (offsets.error_ns[rank] >= 0)
    return np.logical_and.reduceat(good, met.first[:-1]) & ~offsets.odd


class _Line:
    """All ranks' windows one behind another."""

    def __init__(self, ranks: Sequence[ReducedRank]) -> None:
        spans = [rank.span_ns + 1 for rank in ranks]
        self.begin = np.append(0, np.cumsum(spans)).astype(np.int64)
        own = np.array([rank.end_ns - rank.span_ns for rank in ranks], np.int64)
        self.shift: I64 = self.begin[:-1] - own
        counts = [len(rank.exposed_comm.starts) for rank in ranks]
        shift = np.repeat(self.shift, counts)
        starts = np.concatenate([np.empty(0, np.int64), *(rank.exposed_comm.starts for rank in ranks)])
        ends = np.concatenate([np.empty(0, np.int64), *(rank.exposed_comm.ends for rank in ranks)])
        self.exposed = Intervals(starts + shift, ends + shift)

    def put(self, rank: I64, starts: I64, ends: I64) -> tuple[I64, I64]:
        """Times of ranks' own clocks on the line."""
        return starts + self.shift[rank], ends + self.shift[rank]

    def of_each_rank(self, times: Intervals) -> I64:
        """Length of a set on the line that falls to each rank."""
        return covered(times, self.begin[:-1], self.begin[1:])


class _Charges(Struct, frozen=True, eq=False):
    """Stretches of waiting, each charged to one member that came last. Columns of equal length."""

    late: I64
    """Entry of the member charged."""
    waiting: I64
    """Entry of the member that waited."""
    start_ns: I64
    """On the line, as the waiting rank's time."""
    end_ns: I64


def _arrivals(meetings: Meetings, offsets: Offsets, within: I64, line: _Line) -> tuple[Arrivals, _Charges]:
    kernels, row, meeting = meetings.kernels, meetings.row, meetings.meeting
    first = meetings.first[:-1]
    rank, start, end = kernels.rank[row], kernels.start_ns[row], kernels.end_ns[row]
    arrival = start - offsets.offset_ns[rank]
    if not len(row):
        none = np.empty(0, np.int64)
        return Arrivals(meetings, none, none, none, none, none, none), _Charges(none, none, none, none)
    latest = np.maximum.reduceat(arrival, first)
    waited = np.clip(latest[meeting] - arrival, 0, end - start)
    # Members by arrival; the last of each meeting is the late one.
    order = np.lexsort((rank, arrival, meeting))
    late = order[meetings.first[1:] - 1]
    doubt = np.minimum(np.maximum(offsets.error_ns[rank], offsets.error_ns[rank[late]][meeting]), within[meeting])
    last = latest[meeting] - arrival <= doubt
    together = np.add.reduceat(last.astype(np.int64), first)
    members = np.diff(meetings.first)
    together = np.where((together <= TOGETHER) & (together < members), together, 0)
    begin, _ = line.put(rank, start, start)
    exposed = covered(line.exposed, begin, begin + waited)
    # Each wait is cut into as many parts as members came last together, one for each of them.
    waiting = np.flatnonzero(~last & (waited > 0) & (together[meeting] > 0))
    parts = together[meeting[waiting]]
    which = np.repeat(waiting, parts)
    part = np.arange(len(which)) - np.repeat(np.cumsum(parts) - parts, parts)
    cut = waited[which]
    sharing = together[meeting[which]]
    by_lateness = np.lexsort((arrival, last, meeting))
    charges = _Charges(
        late=by_lateness[meetings.first[1:][meeting[which]] - sharing + part] if len(which) else which,
        waiting=which,
        start_ns=begin[which] + cut * part // sharing,
        end_ns=begin[which] + cut * (part + 1) // sharing,
    )
    spread = latest - np.minimum.reduceat(arrival, first)
    return Arrivals(meetings, meeting, waited, exposed, late, spread, together), charges


def _pairs(arrivals: Arrivals, charges: _Charges, line: _Line, exposed_waits: Intervals) -> Pairs:
    kernels, row = arrivals.meetings.kernels, arrivals.meetings.row
    rank = kernels.rank[row]
    ranks = len(line.shift)
    pair = rank[charges.late] * ranks + rank[charges.waiting]
    held = np.minimum(_held(arrivals, line, exposed_waits)[charges.late], charges.end_ns - charges.start_ns)
    pairs, number = np.unique(pair, return_inverse=True)
    waited, exposed = _lengths(number, len(pairs), charges.start_ns, charges.end_ns, line)
    _, own = _lengths(number, len(pairs), charges.start_ns, charges.end_ns - held, line)
    return Pairs(pairs // max(ranks, 1), pairs % max(ranks, 1), waited, exposed, exposed - own)


def _held(arrivals: Arrivals, line: _Line, exposed_waits: Intervals) -> I64:
    """For each entry, how long its rank had waited with nothing to compute since it last met with the same group."""
    meetings = arrivals.meetings
    kernels, row = meetings.kernels, meetings.row
    if not len(row):
        return np.empty(0, np.int64)
    rank, group = kernels.rank[row], meetings.group[arrivals.meeting]
    start, end = line.put(rank, kernels.start_ns[row], kernels.end_ns[row])
    order = np.lexsort((start, group, rank))
    same = np.append(False, (rank[order][1:] == rank[order][:-1]) & (group[order][1:] == group[order][:-1]))
    since = np.empty(len(row), np.int64)
    since[order] = np.where(same, np.append(0, end[order][:-1]), line.begin[rank[order]])
    return covered(exposed_waits, since, start)


def _lengths(number: I64, count: int, start: I64, end: I64, line: _Line) -> tuple[I64, I64]:
    """For each number the length of the union of its stretches, and the part of it that is exposed communication."""
    # Times are replaced by their places among all times, so that unions of many numbers fit on one line.
    times = np.sort(np.concatenate([start, end]))
    wide = len(times) + 1
    merged = union(np.searchsorted(times, start) + number * wide, np.searchsorted(times, end) + number * wide)
    which = merged.starts // wide
    begin, stop = times[merged.starts % wide], times[merged.ends % wide]
    exposed = covered(line.exposed, begin, stop)
    return sum_by(which, stop - begin, count), sum_by(which, exposed, count)

"""Waiting between ranks: who waited for whom, and in which collective, once the clocks are known.

A meeting is a collective with the kernels of all its members. If every member needs every other, a member waits from
its own arrival (the start of its kernel) until the last arrival. The waiting is charged to the member that arrived
last. If several members arrive last within the error of arrivals (`Offsets.within_ns`) of each other, each of them is
charged an equal part of that stretch of time. If more than `MAX_LAST_TOGETHER` of them do, or all members, no member
is charged. A charge is sure without the error, except in a group's first meeting (`Offsets.opening`).

A rank may be late because another group made it wait, or a message, as the first stage of a pipeline that drains. The
end of a wait counts as passed on, for as long as the late rank had itself waited without computing since this group
last met. For what is sure, all its exposed communication outside of judged meetings counts as such waiting.

So that unions count nothing twice, the windows of all ranks are laid end to end on one axis (`Axis`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.base.columns import Columns, mask_of
from overlapscope.base.grouping import among, distinct, group_starts, rows_by
from overlapscope.base.intervals import I64, Bool, Intervals, contains, covered, intersect, join, subtract, union
from overlapscope.base.marks import step_number
from overlapscope.ranks.clocks import Offsets
from overlapscope.ranks.collectives import Meetings, symmetric
from overlapscope.ranks.pairs import MessageWaits
from overlapscope.ranks.reduced import ComparedRank

# -- Common steps ------------------------------------------------------------------------------------


class CommonSteps(Struct, frozen=True, eq=False):
    """Steps that all of some ranks judge, with a window for each rank by its own clock."""

    names: tuple[str, ...]
    """Names in the order of the first rank; empty if there are none."""
    begin_ns: I64
    """Start of the first of them; without any, end of the lead-in."""
    end_ns: I64
    """End of the last of them; without them, end of the recording."""


def common_steps(ranks: Sequence[ComparedRank], torn: Collection[int] = ()) -> CommonSteps:
    """Return the steps that all ranks judge; if some are torn by jumps of clocks, the longest run of the others."""
    steps = [rank.steps.windows() for rank in ranks]
    names = tuple(name for name in steps[0] if all(name in each for each in steps)) if steps else ()
    if torn:
        names = _longest_run({step_number(name): name for name in names if step_number(name) not in torn})
    begin = [rank.judged_from_ns for rank in ranks]
    end = begin if torn else [rank.end_ns for rank in ranks]
    if names:
        begin, end = ([each[name][side] for each in steps] for side, name in enumerate((names[0], names[-1])))
    return CommonSteps(names, np.array(begin, np.int64), np.array(end, np.int64))


def _longest_run(names: Mapping[int, str]) -> tuple[str, ...]:
    """Return the names of the longest run of steps whose numbers follow each other."""
    by_run: defaultdict[int, list[str]] = defaultdict(list)
    for place, number in enumerate(sorted(names)):
        by_run[number - place].append(names[number])
    longest: list[str] = max(by_run.values(), key=len, default=[])
    return tuple(longest)


MAX_LAST_TOGETHER = 8
"""Maximum number of members that can arrive last together and still be named: the devices of the same machine."""
_UNBOUNDED_NS = np.int64(1) << 60
"""Error of arrivals of which nothing is sure."""


class Arrivals(Columns, frozen=True):
    """Arrivals at the judged meetings, one row for each member of each, in the order of `Meetings.row`."""

    meeting: I64
    rank: I64
    arrival_ns: I64
    """Start of the member's kernel, comparable within the meeting."""
    axis_ns: I64
    """Start of the member's kernel on the axis of all ranks (`Axis`)."""
    waited_ns: I64
    """Time until the last member arrived, at most the length of the kernel."""
    max_waited_ns: I64
    """`waited_ns` with the error of arrivals added, at most the length of the kernel."""
    exposed_ns: I64
    """Part of `waited_ns` during which the rank's compute waited for communication."""
    last: Bool
    """True if the member may have arrived last, as far as the clocks tell."""


class LastArrivals(Columns, frozen=True):
    """The last arrival at each judged meeting, one row each."""

    row: I64
    """Row of `Arrivals`."""
    spread_ns: I64
    """Time since the first arrival."""
    error_ns: I64
    """Maximum error of the time between two arrivals."""
    together: I64
    """Number of members that arrived last together; 0 where none of them can be named."""
    waited_ns: I64
    """Sum over all members."""
    exposed_ns: I64
    """Sum over all members."""
    opening: Bool
    """As in `Offsets`: no charge is sure."""


class Pairs(Columns, frozen=True):
    """Waiting of one rank for another in the windows of `RankWaits.steps`, one row for each pair."""

    late: I64
    """Place of the rank that arrived last."""
    waiting: I64
    """Place of the rank that waited."""
    waited_ns: I64
    exposed_ns: I64
    """Part of `waited_ns` during which the waiting rank's compute waited for communication."""
    passed_on_ns: I64
    """Part of `exposed_ns` that the late rank may only have passed on."""
    sure_ns: I64
    """Part of `exposed_ns` that is neither passed on nor within the error of arrivals."""


class WaitsByRank(Columns, frozen=True):
    """Waiting of each rank in the windows of `RankWaits.steps`, one row each."""

    judged: I64
    """Number of judged meetings at which it arrived there, or in which it is charged for waits there."""
    waited_ns: I64
    """Union of its waits."""
    exposed_ns: I64
    """Part of `waited_ns` during which its compute waited for communication."""
    others: I64
    """Number of ranks that it has meetings with."""
    lost_ns: I64
    """Time that each of them lost to it (`Straggler.lost_ns`)."""
    made_wait_ns: I64
    """Time that all other ranks waited for it."""
    last_in: I64
    """Number of meetings in which it is charged for arriving last."""
    max_made_wait_ns: I64
    """Maximum time without compute that all other ranks waited for it, within the error of arrivals."""
    unjudged_ns: I64
    """Its exposed communication after its lead-in, outside the kernels of judged meetings and messages."""


class RankWaits(Struct, frozen=True, eq=False):
    """Waiting by member, by meeting, by pair of ranks and by rank. Ranks are given by their places."""

    axis: Axis
    meetings: Meetings
    """The judged meetings."""
    steps: CommonSteps
    """Steps that all ranks judge. In their windows, waits count for pairs and ranks."""
    torn: bool
    """True if a clock jumped, so that some of these steps were left out."""
    counted: Bool
    """Mask of the meetings with such waits or arrivals."""
    arrivals: Arrivals
    latest: LastArrivals
    pairs: Pairs
    by_rank: WaitsByRank
    messages: MessageWaits
    """Waiting in sends and receives, which counts for no pair of ranks and for no rank."""
    in_messages: Intervals
    """The same as times on the axis of all ranks."""


def find_waits(ranks: Sequence[ComparedRank], met: Meetings, offsets: Offsets, messages: MessageWaits) -> RankWaits:
    """Return who waited for whom in the symmetric meetings after every member's lead-in.

    Args:
        ranks: The ranks compared.
        met: Symmetric meetings of these ranks.
        offsets: The clocks, found from the same meetings.
        messages: Waiting in the messages between these ranks.
    """
    judged_from = np.array([rank.judged_from_ns for rank in ranks], np.int64)
    known = (met.start_ns >= judged_from[met.rank]) & (offsets.error_ns[met.rank] >= 0)
    judged = np.logical_and.reduceat(known, met.first[:-1]) & ~offsets.odd
    meetings, axis = met.take(judged), Axis(ranks)
    within = offsets.within_ns[judged]
    entries = np.repeat(judged, met.members)
    lead, since = offsets.lead_ns[entries], _last_met(met, axis)[entries]
    arrivals, latest = _arrivals(meetings, axis, lead, within, offsets.opening[judged])
    of_messages = met.kernels.take(messages.kernel)
    message_start = of_messages.start_ns + axis.shift[of_messages.rank]
    in_meetings = union(arrivals.axis_ns, meetings.end_ns + axis.shift[arrivals.rank])
    judged_kernels = join(in_meetings, union(message_start, message_start + of_messages.end_ns - of_messages.start_ns))
    after_lead_in = union(np.clip(judged_from + axis.shift, axis.begin[:-1], axis.begin[1:]), axis.begin[1:])
    waits = union(arrivals.axis_ns, arrivals.axis_ns + arrivals.waited_ns)
    blocking_waits = intersect(waits, axis.blocking)
    in_messages = union(message_start, message_start + messages.waited_ns)
    waited_before = covered(join(blocking_waits, intersect(in_messages, axis.exposed)), since, arrivals.axis_ns)
    max_waits = intersect(union(arrivals.axis_ns, arrivals.axis_ns + arrivals.max_waited_ns), axis.blocking)
    # Communication whose waits are unknown may be all waiting.
    max_waited_before = covered(join(max_waits, subtract(axis.exposed, in_meetings)), since, arrivals.axis_ns)
    steps = common_steps(ranks, offsets.torn)
    windows = axis.windows(steps)
    inside = contains(windows, arrivals.axis_ns)
    if offsets.torn and _jumped_back(ranks, steps, meetings, inside):
        steps = replace(steps, names=(), end_ns=steps.begin_ns)
        windows = axis.windows(steps)
        inside = contains(windows, arrivals.axis_ns)
    counted = np.zeros(len(meetings), np.bool_)
    counted[arrivals.meeting[inside]] = True
    counted_waits = intersect(waits, windows)
    charges = _inside(_charges(meetings, arrivals, latest), windows, arrivals)
    max_unsure_ns = max_waited_before + np.where(latest.opening, _UNBOUNDED_NS, within)[arrivals.meeting]
    pairs = _pairs(arrivals, charges, axis, waited_before, max_unsure_ns)
    others = _others(arrivals, len(ranks), len(meetings))
    by_rank = WaitsByRank(
        others=others,
        lost_ns=sum_by(pairs.late, pairs.exposed_ns - pairs.passed_on_ns, len(ranks)) // np.maximum(others, 1),
        judged=np.bincount(arrivals.rank[inside | mask_of(charges.late, len(inside))], minlength=len(ranks)),
        waited_ns=axis.by_rank(counted_waits),
        exposed_ns=axis.by_rank(intersect(counted_waits, axis.blocking)),
        made_wait_ns=sum_by(pairs.late, pairs.waited_ns, len(ranks)),
        last_in=np.bincount(arrivals.rank[distinct(charges.late)], minlength=len(ranks)),
        max_made_wait_ns=_max_waits(arrivals, latest, axis, inside, len(ranks)),
        unjudged_ns=axis.by_rank(subtract(intersect(axis.exposed, after_lead_in), judged_kernels)),
    )
    return RankWaits(
        axis, meetings, steps, bool(offsets.torn), counted, arrivals, latest, pairs, by_rank, messages, in_messages
    )


def _others(arrivals: Arrivals, ranks: int, meetings: int) -> I64:
    """Return the number of ranks that each rank met."""
    others = np.zeros(ranks, np.int64)
    for rank, rows in rows_by(arrivals.rank):
        met = mask_of(arrivals.meeting[rows], meetings)
        others[rank] = len(distinct(arrivals.rank[met[arrivals.meeting]])) - 1
    return others


def _jumped_back(ranks: Sequence[ComparedRank], steps: CommonSteps, meetings: Meetings, inside: Bool) -> bool:
    """Return whether the clock of a rank jumped back over steps, so that kernels of others seem to run in these."""
    numbers = [[*map(step_number, rank.steps.windows())] for rank in ranks]
    jumped = np.array([each != sorted(each) for each in numbers], np.bool_)
    step = meetings.kernels.step[meetings.row]
    others = (step >= 0) & ~among(step, [step_number(name) for name in steps.names])
    return bool((inside & others & jumped[meetings.rank]).any())


def sum_by(place: I64, values: I64, count: int) -> I64:
    """Return the exact sum of the values of each place; `np.bincount` would round them to floats."""
    result = np.zeros(count, np.int64)
    np.add.at(result, place, values)
    return result


class Axis:
    """One time axis with the windows of all ranks end to end, so that no two ranks overlap on it."""

    def __init__(self, ranks: Sequence[ComparedRank]) -> None:
        spans = [rank.span_ns + 1 for rank in ranks]
        self.begin = np.append(0, np.cumsum(spans)).astype(np.int64)
        """Start of each rank's window on the axis, and end of the last window."""
        window_starts = np.array([rank.end_ns - rank.span_ns for rank in ranks], np.int64)
        self.shift: I64 = self.begin[:-1] - window_starts
        """Number to add to each rank's own times."""
        self.exposed = self.of([rank.exposed_comm for rank in ranks])
        """Exposed communication of all ranks."""
        self.blocking = self.of([rank.blocking_comm for rank in ranks])
        """The part of it in which compute waited (`ComparedRank.blocking_comm`)."""

    def of(self, times: Sequence[Intervals]) -> Intervals:
        """Return the times of all ranks, given each rank's by its own clock."""
        moved = [(each.starts + by, each.ends + by) for each, by in zip(times, self.shift, strict=True)]
        starts, ends = (np.concatenate([np.empty(0, np.int64), *(each[side] for each in moved)]) for side in (0, 1))
        return Intervals(starts, ends)

    def windows(self, steps: CommonSteps) -> Intervals:
        """Return the window of each rank, even an empty one."""
        begin, end = (
            np.clip(edge + self.shift, self.begin[:-1], self.begin[1:]) for edge in (steps.begin_ns, steps.end_ns)
        )
        return Intervals(begin, np.maximum(begin, end))

    def by_rank(self, times: Intervals) -> I64:
        """Return the length of each rank's part of a set on the axis."""
        return covered(times, self.begin[:-1], self.begin[1:])


def _arrivals(
    meetings: Meetings, axis: Axis, lead_ns: I64, within_ns: I64, opening: Bool
) -> tuple[Arrivals, LastArrivals]:
    """Compare the arrivals at each meeting, by columns of `Offsets`."""
    rank, meeting, first = meetings.rank, meetings.meeting, meetings.first[:-1]
    arrival = meetings.start_ns - lead_ns
    latest = np.lexsort((rank, arrival, meeting))[meetings.first[1:] - 1]
    ahead = arrival[latest][meeting] - arrival
    last = ahead <= within_ns[meeting]
    together = np.add.reduceat(last.astype(np.int64), first)
    start, length = meetings.start_ns + axis.shift[rank], meetings.end_ns - meetings.start_ns
    waited = np.clip(ahead, 0, length)
    arrivals = Arrivals(
        meeting=meeting,
        rank=rank,
        arrival_ns=arrival,
        axis_ns=start,
        waited_ns=waited,
        max_waited_ns=np.minimum(ahead + within_ns[meeting], length),
        exposed_ns=covered(axis.blocking, start, start + waited),
        last=last,
    )
    return arrivals, LastArrivals(
        row=latest,
        spread_ns=arrival[latest] - np.minimum.reduceat(arrival, first),
        error_ns=within_ns,
        waited_ns=np.add.reduceat(waited, first),
        exposed_ns=np.add.reduceat(arrivals.exposed_ns, first),
        together=np.where((together <= MAX_LAST_TOGETHER) & (together < meetings.members), together, 0),
        opening=opening,
    )


class _Charges(Columns, frozen=True):
    """Parts of waits, each charged to a member that arrived last."""

    late: I64
    """Row in `Arrivals` of the member charged."""
    waiting: I64
    """Row in `Arrivals` of the member that waited."""
    start_ns: I64
    """Start on the axis, as the waiting rank's time."""
    end_ns: I64


def _charges(meetings: Meetings, arrivals: Arrivals, latest: LastArrivals) -> _Charges:
    """Cut each wait into equal parts, one for each member that arrived last together, in order of arrival."""
    together = latest.together[arrivals.meeting]
    waits = np.flatnonzero(~arrivals.last & (arrivals.waited_ns > 0) & (together > 0))
    parts = together[waits]
    waiting, sharing = np.repeat(waits, parts), np.repeat(parts, parts)
    part = np.arange(len(waiting)) - np.repeat(np.cumsum(parts) - parts, parts)
    # Within a meeting, those that arrived last together come at the end.
    order = np.lexsort((arrivals.arrival_ns, arrivals.last, arrivals.meeting))
    late = order[meetings.first[1:][arrivals.meeting[waiting]] - sharing + part]
    begin, waited = arrivals.axis_ns[waiting], arrivals.waited_ns[waiting]
    return _Charges(late, waiting, begin + waited * part // sharing, begin + waited * (part + 1) // sharing)


def _inside(charges: _Charges, windows: Intervals, arrivals: Arrivals) -> _Charges:
    """Return the parts of charges inside the waiting rank's window."""
    rank = arrivals.rank[charges.waiting]
    start = np.maximum(charges.start_ns, windows.starts[rank])
    end = np.minimum(charges.end_ns, windows.ends[rank])
    # A member may be charged for no time, since those that arrived last together share even a nanosecond.
    nothing = charges.start_ns == charges.end_ns
    return replace(charges, start_ns=start, end_ns=end).take((start < end) | nothing & (start == end))


def _last_met(met: Meetings, axis: Axis) -> I64:
    """Return when each entry's rank last met with the same group, on the axis; if never, the start of its window.

    A rank's own kernel shows that they met, even if those of the others weren't matched with it.
    """
    kernels = met.kernels
    needs_all = kernels.of_kinds(lambda kind: kind.recorded and symmetric(kind))
    rows = np.flatnonzero(needs_all | mask_of(met.row, len(kernels)))
    rank, group = kernels.rank[rows], kernels.group[rows]
    start, end = (side[rows] + axis.shift[rank] for side in (kernels.start_ns, kernels.end_ns))
    order = np.lexsort((start, group, rank))
    since = np.empty(len(kernels), np.int64)
    since[rows[order]] = np.append(0, end[order])[:-1]
    first = order[group_starts(rank[order], group[order])]
    since[rows[first]] = axis.begin[rank[first]]
    return since[met.row]


def _max_waits(arrivals: Arrivals, latest: LastArrivals, axis: Axis, inside: Bool, ranks: int) -> I64:
    """Return the maximum time without compute that others wait for each rank where it may have come last."""
    start = arrivals.axis_ns
    exposed = np.where(inside, covered(axis.blocking, start, start + arrivals.max_waited_ns), 0)
    others = sum_by(arrivals.meeting, exposed, int(arrivals.meeting.max(initial=-1)) + 1)[arrivals.meeting] - exposed
    return sum_by(arrivals.rank, np.where(arrivals.last | latest.opening[arrivals.meeting], others, 0), ranks)


def _pairs(arrivals: Arrivals, charges: _Charges, axis: Axis, waited_before: I64, unsure_ns: I64) -> Pairs:
    """Return the sums of the charges of each pair of ranks.

    Args:
        arrivals: The arrivals.
        charges: Parts of waits.
        axis: Axis of all ranks.
        waited_before: How long each arrival's rank had waited, and may have passed on.
        unsure_ns: The maximum of that, with the error of the arrival itself.
    """
    ranks = max(len(axis.shift), 1)
    pairs, number = np.unique(arrivals.rank[charges.late] * ranks + arrivals.rank[charges.waiting], return_inverse=True)
    waited, exposed = _union_lengths(number, len(pairs), charges.start_ns, charges.end_ns, axis)
    begin, end = charges.start_ns, charges.end_ns
    caused_exposed, sure = (
        _union_lengths(number, len(pairs), begin, np.maximum(begin, end - less[charges.late]), axis)[1]
        for less in (waited_before, unsure_ns)
    )
    return Pairs(pairs // ranks, pairs % ranks, waited, exposed, exposed - caused_exposed, sure)


def _union_lengths(number: I64, count: int, start: I64, end: I64, axis: Axis) -> tuple[I64, I64]:
    """Return for each number the length of the union of its stretches, and of the exposed communication in it."""
    # Ranks among all times stand for the times, so that the unions of many numbers fit on one axis.
    times = np.sort(np.concatenate([start, end]))
    wide = len(times) + 1
    merged = union(np.searchsorted(times, start) + number * wide, np.searchsorted(times, end) + number * wide)
    which = merged.starts // wide
    begin, stop = times[merged.starts % wide], times[merged.ends % wide]
    exposed = covered(axis.blocking, begin, stop)
    return sum_by(which, stop - begin, count), sum_by(which, exposed, count)

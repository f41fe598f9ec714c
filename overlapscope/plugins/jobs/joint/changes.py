"""Changes to a whole job: its late rank, its collectives' launches, and the network between ranks.

Compute beside collectives is slower: they take multiprocessors and memory bandwidth from it. So a change that hides
communication makes compute longer. A recording shows by how much if the same kernels also run apart from collectives.
Compute lost 27 to 40% of its speed beside NCCL in recordings of two H100s. Lee et al. (arXiv:2507.03114) report that it
takes 18.9% longer on average, and 40% longer at most.

A collective of a rank is two items in a row, its arrival and its finish (`join`): item `finish - 1` is the arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import HIGH
from overlapscope.base.columns import F64, mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool, covered, union
from overlapscope.plugins.jobs.joint.join import (
    BY_EVENT,
    JobReplay,
    JoinedJob,
    RankNetwork,
    Ties,
    Unpredictable,
    replay_job,
)
from overlapscope.prediction.graph import OrderReason, Orders
from overlapscope.prediction.hardware import Stance
from overlapscope.ranks.waits import sum_by

_LATENCY_MULTIPLES = {Stance.BEST: 0, Stance.EXPECTED: 1, Stance.WORST: 2}
"""Multiples of a latency that was estimated from transfers of several sizes."""
_BASE_NS, _STEP_NS = 16_000, 18_000
"""Highest latency of a ring of n ranks by NCCL's model: once, and for each of 2 (n - 1) steps. Over a network these
are 8.4 and 9.6 us, and up to 1.9 times as much (src/graph/tuning.cc)."""
_NO_ROWS = np.empty(0, np.int64)
_MIN_COMPARED = 0.5
"""Minimum fraction of the late rank's work that must have counterparts on other ranks."""


def like_others(job: JoinedJob, parts: Sequence[RankNetwork], place: int, stance: Stance) -> RankNetwork:
    """Give a rank's work between two collectives the time that the others take.

    Returns:
        The rank. Its work takes the median time of the others, or that of the fastest or the slowest. If its host does
        the same in as many pieces as theirs, each piece does.

    Raises:
        Unpredictable: The others don't do the same work between the same collectives.
    """
    part = parts[place]
    segment_of, since, host_ns, device_ns = _segments(job, parts)
    host, device = np.ones((2, int(part.segment_of_call.max(initial=0)) + 2))
    pieces = [_HostPieces(each) for each in parts]
    lighter = _HostPieces(part)
    entries = np.flatnonzero((job.met.rank == place) & (segment_of >= 0))
    compared_ns = total_ns = 0
    for entry in entries.tolist():
        meeting, segment = int(job.met.meeting[entry]), int(segment_of[entry])
        members = np.arange(job.met.first[meeting], job.met.first[meeting + 1])
        alike = (members != entry) & (since[members] == since[entry])
        peers = members[alike & (segment_of[members] >= 0)]
        work_ns = int(host_ns[entry] + device_ns[entry])
        total_ns += work_ns
        if len(peers):
            compared_ns += work_ns
            others = [(pieces[job.met.rank[peer]], int(segment_of[peer])) for peer in peers.tolist()]
            host[segment] = _factor(host_ns, entry, peers, stance)
            lighter.shorten(segment, others, stance, host[segment])
            # Work of a GPU may have to be done by the others instead.
            shared = float(device_ns[members].mean()) if stance == Stance.WORST else 0.0
            device[segment] = _factor(device_ns, entry, peers, stance, shared)
    if compared_ns < _MIN_COMPARED * total_ns or not total_ns:
        raise Unpredictable(
            "No other rank does the same work between the same collectives, so no-straggler is unknown."
        )
    communicates = mask_of(np.concatenate([part.finish, part.finish - 1]), len(part.network.items))
    part = with_device_work(part, np.where(communicates, 1.0, device[part.segment_of_item]))
    network, items, calls = part.network, part.network.items, part.network.calls
    items = replace(items, launch_lag_ns=items.launch_lag_ns + lighter.launches_ns - part.work.launched_host_ns)
    before, length = np.split(np.append(np.maximum(calls.before_ns, 0), calls.length_ns) - lighter.calls_ns, 2)
    calls = replace(calls, before_ns=calls.before_ns - before, length_ns=calls.length_ns - length)
    work = replace(part.work, launched_host_ns=lighter.launches_ns)
    return replace(part, network=replace(network, items=items, calls=calls), work=work)


class _HostPieces:
    """Pieces of a rank's host work: those before and inside each call, and those before each item's launch."""

    def __init__(self, part: RankNetwork) -> None:
        calls = part.network.calls
        self.calls_ns = np.append(np.maximum(calls.before_ns, 0), calls.length_ns)
        self.launches_ns = part.work.launched_host_ns.copy()
        self._rows = (dict(rows_by(np.tile(part.segment_of_call, 2))), dict(rows_by(part.segment_of_item)))
        """Rows of the two by segment."""

    def shorten(self, segment: int, others: Sequence[tuple[_HostPieces, int]], stance: Stance, factor: float) -> None:
        """Shorten a segment by a factor below 1, or make each piece that of the others if they have as many."""
        if factor >= 1:
            return
        for which, values in enumerate((self.calls_ns, self.launches_ns)):
            rows = self._rows[which].get(segment, _NO_ROWS)
            of_others = [each.in_segment(number, which) for each, number in others]
            if all(len(each) == len(rows) for each in of_others):
                values[rows] = _typical(np.sort(np.stack(of_others), axis=0), stance)
            elif which == 0:
                values[rows] = _shortened(values[rows], factor)
            else:
                values[rows] = np.rint(values[rows] * factor).astype(np.int64)

    def in_segment(self, segment: int, which: int) -> I64:
        """Return the pieces of a segment: of calls (0) or of launches (1)."""
        return (self.calls_ns, self.launches_ns)[which][self._rows[which].get(segment, _NO_ROWS)]


def _typical(others: I64, stance: Stance) -> I64:
    """Return the least, the median or the most of sorted values."""
    if stance == Stance.EXPECTED:
        return _whole(np.median(others, axis=0))
    least_or_most: I64 = others[0 if stance == Stance.BEST else -1]
    return least_or_most


def _factor(work_ns: I64, entry: int, peers: I64, stance: Stance, least_ns: float = 0.0) -> float:
    typical = float(_typical(np.sort(work_ns[peers]), stance))
    return min(1.0, max(typical, least_ns) / max(1, int(work_ns[entry])))


def _segments(job: JoinedJob, parts: Sequence[RankNetwork]) -> tuple[I64, I64, I64, I64]:
    """Return the work before each arrival at a meeting, for each entry of `JoinedJob.met.row`.

    Returns:
        The segment of the rank that the arrival closes, -1 if unknown; the meeting that closed the segment before, -1
        for none; and the time of the host and of the device.
    """
    segment, since, host, device = np.full((4, len(job.met.row)), -1)
    for place, part in enumerate(parts):
        entries = np.flatnonzero(job.met.rank == place)
        closed = part.closed_by[job.collective[entries]]
        count = int(part.segment_of_call.max(initial=0)) + 2
        calls, items = part.network.calls, part.network.items
        hosts = sum_by(part.segment_of_call, np.maximum(calls.before_ns, 0) + calls.length_ns, count)
        communicates = mask_of(np.concatenate([part.finish, part.finish - 1]), len(items))
        devices = sum_by(part.segment_of_item, np.where(communicates, 0, part.work.work_ns), count)
        meeting_of = np.full(count + 1, -1)
        known = closed >= 0
        meeting_of[closed[known] + 1] = job.met.meeting[entries[known]]
        segment[entries], since[entries] = closed, np.where(known, meeting_of[closed], -1)
        host[entries], device[entries] = hosts[closed], devices[closed]
    return segment, since, host, device


def with_device_work(part: RankNetwork, factor: F64, *, compute_only: bool = False) -> RankNetwork:
    """Return the rank with the device's work in each item multiplied by a factor, which is 1 for collectives.

    With `compute_only`, compute is multiplied, but no copies are.
    """
    items, compute, launched_compute = part.network.items, part.work.compute_ns, part.work.launched_compute_ns
    work, launched = (compute, launched_compute) if compute_only else (part.work.work_ns, part.work.launched_work_ns)
    more, launched_more = _whole(work * (factor - 1)), _whole(launched * (factor - 1))
    in_gap = (part.work.work_ns > 0) & (items.duration_ns == 0)
    items = replace(
        items,
        duration_ns=items.duration_ns + np.where(in_gap, 0, more),
        queue_lag_ns=items.queue_lag_ns + np.where(in_gap, more, 0),
        launch_lag_ns=items.launch_lag_ns + launched_more,
    )
    more_work = replace(
        part.work,
        work_ns=part.work.work_ns + more,
        launched_work_ns=part.work.launched_work_ns + launched_more,
        compute_ns=_whole(compute * factor),
        launched_compute_ns=_whole(launched_compute * factor),
    )
    return replace(part, network=replace(part.network, items=items), work=more_work)


def _shortened(work_ns: I64, factor: float) -> I64:
    """Return pieces of the host's work whose sum is multiplied. The longest pieces are shortened first."""
    rows = np.argsort(-work_ns, kind="stable")
    result = work_ns.copy()
    excess = round(float(work_ns.sum()) * (1 - factor))
    result[rows] -= np.diff(np.minimum(np.cumsum(work_ns[rows]), excess), prepend=0)
    return result


def _whole(values: F64) -> I64:
    return np.rint(values).astype(np.int64)


def issued_earlier(part: RankNetwork, stance: Stance) -> tuple[RankNetwork, int]:
    """Let each collective start when its input is ready; return also how many the recording shows this for."""
    network, items, arrival = part.network, part.network.items, part.finish - 1
    orders = network.orders
    trusted = (orders.why == OrderReason.EVENT) & ((stance != Stance.WORST) | (orders.confidence >= HIGH))
    by_event: Bool = (part.ready == BY_EVENT) & mask_of(orders.then[trusted], len(items))[arrival]
    by_call = part.ready >= 0
    call, lag = items.call.copy(), items.launch_lag_ns.copy()
    call[arrival[by_call]] = part.ready[by_call]
    call[arrival[by_event]], lag[arrival[by_event]] = -1, 0
    after_call = items.after_call & (call >= 0)
    ahead = (part.ahead_call >= 0) & (stance != Stance.WORST)
    gathers = arrival[ahead]
    call[gathers], lag[gathers], after_call[gathers] = part.ahead_call[ahead], 0, True
    # Those that wait for a call wait for no op of another stream, even if they were seen to begin when one had ended.
    count, free = len(items), mask_of(arrival[by_call], len(items))
    dropped = mask_of(gathers, count)[orders.then] | (free[orders.then] & (orders.why == OrderReason.SEEN))
    orders = orders.take(~dropped | mask_of(part.finish, count)[orders.first])
    if stance != Stance.BEST:
        # Gathers of weights wait for the copies of the weights before. At best, they are several layers ahead.
        lag_ns = network.constants.handover_ns or 0
        orders = Orders.joined([orders, Orders.of(part.ahead_item[ahead], gathers, lag_ns, OrderReason.DATA)])
    items = replace(items, call=call, launch_lag_ns=lag, after_call=after_call)
    return replace(part, network=replace(network, items=items, orders=orders)), int((by_call | by_event | ahead).sum())


def faster_transfers(job: JoinedJob, transfer_ns: I64, times: float, stance: Stance) -> I64:
    """Return the transfers of a network that is `times` as fast, without its latency."""
    fixed = latencies(job, transfer_ns, stance)
    return np.where(transfer_ns > 0, _whole(fixed + (transfer_ns - fixed) / times), transfer_ns)


def latencies(job: JoinedJob, transfer_ns: I64, stance: Stance) -> I64:
    """Return the part of each transfer that doesn't depend on bandwidth.

    It follows from transfers of different sizes, and is between nothing and the usual transfer of the smallest size.
    """
    kinds = job.met.kernels.kinds
    result = np.zeros(len(kinds), np.int64)
    kind_of_entry, size = job.met.kind[job.met.meeting], job.met.kernels.bytes[job.met.row]
    for kind in distinct(kind_of_entry).tolist():
        of_kind = (kind_of_entry == kind) & (transfer_ns > 0)
        if not of_kind.any():
            continue
        sizes, number = np.unique(size[of_kind], return_inverse=True)
        usual = [float(np.median(transfer_ns[of_kind][number == each])) for each in range(len(sizes))]
        # If all have the same size, nothing to all of it is latency, as far as the model of NCCL allows.
        members = kinds[kind].group_size
        most = usual[0] if members < 2 else min(usual[0], _BASE_NS + _STEP_NS * 2 * (members - 1))
        latency = most if stance == Stance.WORST else 0.0
        if len(sizes) > 1 and sizes[0] >= 0:
            slope, at_0 = np.polyfit(sizes.astype(np.float64), usual, 1)
            latency = _LATENCY_MULTIPLES[stance] * float(at_0 if slope > 0 else usual[0])
        result[kind] = round(min(max(latency, 0), usual[0]))
    return np.minimum(result[kind_of_entry], np.maximum(transfer_ns, 0))


# -- Compute beside collectives ----------------------------------------------------------------------

LOST_SPEED: Final = (0.15, 0.3, 0.4)
"""Shares of its speed that compute loses beside collectives where no recording shows it: at least, usually, at most."""
_CORRECTIONS = 2
"""Number of corrections: longer compute is beside more or less of the collectives."""
_NEGLIGIBLE = 0.002
"""Maximum relative change of compute that needs no correction."""


def contended_replay(job: JoinedJob, parts: Sequence[RankNetwork], tied: Ties, stance: Stance) -> JobReplay:
    """Replay a job whose compute takes as long as it does beside the collectives that it is beside.

    Its recorded length is that beside the collectives that it was beside in the recording.

    Returns:
        The times of its ranks.

    Raises:
        Deadlock: Ranks wait for each other in a circle.
    """
    common = lost_speed(job)[:3]
    lost_speeds = [rank.lost_speed or common for rank in job.ranks]
    lost = [(usual,) if stance == Stance.EXPECTED else (least, most) for least, usual, most in lost_speeds]
    replayed = replay_job(job, parts, tied)
    if not any(map(any, lost)):
        return replayed
    were = [
        _shares(part, finish, part.work.recorded_start_ns, part.work.recorded_end_ns)
        for part, finish in zip(parts, replayed.finish, strict=True)
    ]
    for _ in range(_CORRECTIONS):
        slower, change = list[RankNetwork](), 0.0
        for place, (part, was) in enumerate(zip(parts, were, strict=True)):
            now = _shares(part, replayed.finish[place], replayed.start_ns[place], replayed.end_ns[place])
            factors = np.array([(1 - speed * was) / (1 - speed * now) for speed in lost[place]])
            factor = factors.max(axis=0) if stance == Stance.WORST else factors.min(axis=0)
            change = max(change, float(np.abs(factor - 1).max(initial=0)))
            slower.append(with_device_work(part, factor, compute_only=True))
        if change < _NEGLIGIBLE:
            break
        replayed = replay_job(job, slower, tied)
    return replayed


class LostSpeed(NamedTuple):
    """Share of its speed that compute loses beside collectives."""

    least: float
    usual: float
    most: float
    recorded: bool
    """True if a recording shows it."""


def lost_speed(job: JoinedJob) -> LostSpeed:
    """Return the loss of ranks whose recordings don't show it: the median of the others."""
    measured = [rank.lost_speed for rank in job.ranks if rank.lost_speed is not None]
    least, usual, most = (median(ends) for ends in zip(*measured, strict=True)) if measured else LOST_SPEED
    return LostSpeed(least, usual, most, bool(measured))


def _shares(part: RankNetwork, finish: I64, start: I64, end: I64) -> F64:
    """Return the share of its time that each item is beside collectives, given by their finishes."""
    begin, stop = _spans(part, mask_of(np.append(finish, finish - 1), len(start)), start, end)
    shares: F64 = covered(union(start[finish - 1], end[finish]), begin, stop) / np.maximum(stop - begin, 1)
    return shares


def _spans(part: RankNetwork, comm: Bool, start: I64, end: I64) -> tuple[I64, I64]:
    """Return the time in which the work of each item is done.

    Work of a stretch (`prediction.condense`) is done between the item of its lane that takes time before it and the end
    of its last item.
    """
    items = part.network.items
    solid = (items.duration_ns > 0) | comm
    begin, stop = start.copy(), end.copy()
    for _, rows in rows_by(items.lane):
        firm, ends = solid[rows], end[rows]
        since = np.maximum.accumulate(np.where(firm, ends, np.iinfo(np.int64).min))
        following = np.append(np.flatnonzero(firm), len(rows))
        last = following[np.searchsorted(following, np.arange(len(rows)))] - 1
        known = ~firm & (since > np.iinfo(np.int64).min)
        begin[rows[known]], stop[rows[~firm]] = since[known], ends[last[~firm]]
        unknown = rows[~firm & ~known]
        begin[unknown] = stop[unknown] - part.work.work_ns[unknown]
    return begin, stop

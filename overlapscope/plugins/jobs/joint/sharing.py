"""What collectives share: the network with each other, and the GPU with compute.

Collectives of a communicator run one after another, on one stream or by NCCL's own events. With communicators of their
own they run at once, and share the network.

Compute beside collectives is slower: they take multiprocessors and memory bandwidth from it. So a change that hides
communication makes compute longer. A recording shows by how much if the same kernels also run apart from collectives.
Compute lost 27 to 40% of its speed beside NCCL in recordings of two H100s. Lee et al. (arXiv:2507.03114) report that it
takes 18.9% longer on average, and 40% longer at most.

A collective of a rank is two items in a row, its arrival and its finish (`join`): item `finish - 1` is the arrival.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import F64, mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool, covered, union
from overlapscope.plugins.jobs.joint.changes import latencies, with_device_work
from overlapscope.plugins.jobs.joint.join import (
    BY_EVENT,
    NO_QUEUE_NS,
    JobTimes,
    JoinedJob,
    RankNetwork,
    Ties,
    replay_job,
    ties,
)
from overlapscope.prediction.graph import Orders, Waits, Why
from overlapscope.prediction.hardware import Stance

_ROUNDS = 3
"""Number of replays: transfers that share the network end later, so others start later."""


def on_own_communicators(
    job: JoinedJob, parts: Sequence[RankNetwork], transfer_ns: I64, stance: Stance
) -> tuple[list[RankNetwork], Ties, int]:
    """Let collectives start beside others of their process group.

    Returns:
        The ranks, their ties, and the number of collectives that no longer wait. At worst, all wait as recorded: the
        GPU may have no room for the later kernel, or run launches of all streams in order.
    """
    freed = [_freed(job, part, place, stance) for place, part in enumerate(parts)]
    count = sum(number for _, number in freed)
    if stance == Stance.WORST or not count:
        return list(parts), ties(job, parts, transfer_ns), count
    changed = [part for part, _ in freed]
    alone_ns = without_sharing(job, transfer_ns, np.ones(len(job.met), np.bool_))
    fixed_ns = latencies(job, alone_ns, stance)
    tied = ties(job, changed, alone_ns)
    for _ in range(_ROUNDS):
        replayed = replay_job(job, changed, tied)
        transfer = alone_ns.copy()
        for place in range(len(parts)):
            rows = np.flatnonzero((tied.rank == place) & (alone_ns > 0))
            begin = replayed.end_ns[place][tied.finish[rows]] - tied.transfer_ns[rows]
            shared = with_sharing(begin + fixed_ns[rows], alone_ns[rows] - fixed_ns[rows])
            transfer[rows] = fixed_ns[rows] + shared
        tied = ties(job, changed, transfer)
    return changed, tied, count


def _freed(job: JoinedJob, part: RankNetwork, place: int, stance: Stance) -> tuple[RankNetwork, int]:
    """Return a rank whose collectives don't wait for others of their group, and the number of those that waited.

    If only a finish let a later item begin, and the later collective no longer waits for it, it must still end before
    that item (`_copied_to_earlier`), or before the next step (`_within_steps`).
    """
    network = part.network
    items, orders, waits = network.items, network.orders, network.waits
    group = np.full(len(items), -1)
    finish = part.finish
    group[finish] = group[finish - 1] = _groups(job, place, len(finish))
    ends, arrives = mask_of(finish, len(items)), mask_of(finish - 1, len(items))
    queued = ends[orders.first] & arrives[orders.then] & (group[orders.first] >= 0)
    queued &= group[orders.first] == group[orders.then]
    freed, finishes = mask_of(orders.then[queued], len(items)), [distinct(orders.first[queued])]
    kept, gap = orders.take(~queued), items.queue_lag_ns.copy()
    ready = mask_of(finish[part.ready == BY_EVENT] - 1, len(items))
    for _, rows in rows_by(items.lane):
        if (ends | arrives)[rows].all():
            # The stream has nothing but collectives. Those that wait for an event have their input without it.
            arrivals = rows[arrives[rows]]
            alike = (group[arrivals[1:]] == group[arrivals[:-1]]) & (group[arrivals[1:]] >= 0)
            unqueued = arrivals[1:][alike & ready[arrivals[1:]]]
            gap[unqueued], freed[unqueued] = NO_QUEUE_NS, True
            copied = _copied_to_earlier(kept, waits, arrivals + 1)
            kept, waits = Orders.joined([kept, copied[0]]), Waits.joined([waits, copied[1]])
            finishes.append(arrivals + 1)
    if stance != Stance.BEST:
        kept = Orders.joined([kept, _within_steps(part, distinct(np.concatenate(finishes)), kept, waits)])
    network = replace(network, items=replace(items, queue_lag_ns=gap), orders=kept, waits=waits)
    return replace(part, network=network), int(freed.sum())


def _groups(job: JoinedJob, place: int, count: int) -> I64:
    """Return a number for the process group of each collective of a rank; -1 for those that aren't joined."""
    entries = np.flatnonzero(job.met.rank == place)
    result = np.full(count, -1)
    result[job.collective[entries]] = job.met.kernels.group[job.met.row[entries]]
    return result


def _copied_to_earlier(orders: Orders, waits: Waits, finish: I64) -> tuple[Orders, Waits]:
    """Return orders and waits by which whatever waits for a collective also waits for those before it on its stream.

    The recording states only the last of them, since the collectives of a stream ran in order.
    """
    awaited: Bool = np.isin(finish, np.append(orders.first, waits.item))
    following = np.append(np.flatnonzero(awaited), len(finish))
    place = following[np.searchsorted(following, np.arange(len(finish)))]
    early = np.flatnonzero((place < len(finish)) & ~awaited)
    copied_orders, copied_waits = [orders.take(orders.first < 0)], [waits.take(waits.item < 0)]
    by_first, by_item = dict(rows_by(orders.first)), dict(rows_by(waits.item))
    none = finish[:0]
    for before, later in zip(finish[early].tolist(), finish[place[early]].tolist(), strict=True):
        later_orders, later_waits = orders.take(by_first.get(later, none)), waits.take(by_item.get(later, none))
        copied_orders.append(replace(later_orders, first=np.full(len(later_orders), before)))
        copied_waits.append(replace(later_waits, item=np.full(len(later_waits), before)))
    return Orders.joined(copied_orders), Waits.joined(copied_waits)


def _within_steps(part: RankNetwork, finish: I64, orders: Orders, waits: Waits) -> Orders:
    """Return orders that keep collectives which nothing waits for before the steps that began after they had ended."""
    finish = finish[~np.isin(finish, np.append(orders.first, waits.item))]
    marks = part.marks[np.argsort(part.work.recorded_start_ns[part.marks], kind="stable")]
    following = np.searchsorted(part.work.recorded_start_ns[marks], part.work.recorded_end_ns[finish])
    within = following < len(marks)
    return Orders.of(finish[within], marks[following[within]], 0, Why.DATA)


def without_sharing(job: JoinedJob, transfer_ns: I64, chosen: Bool) -> I64:
    """Return how long the transfers of chosen meetings would take if no other of them ran at once on the rank.

    The recorded transfers show how they shared the network. Those given may be longer or shorter.
    """
    result = transfer_ns.copy()
    for place in range(len(job.ranks)):
        rows = np.flatnonzero((job.met.rank == place) & chosen[job.met.meeting] & (job.transfer_ns > 0))
        start = job.last_ns[job.met.meeting[rows]]
        recorded = job.transfer_ns[rows]
        end = start + recorded
        at = distinct(np.concatenate([start, end]))
        running = np.searchsorted(np.sort(start), at, side="right") - np.searchsorted(np.sort(end), at, side="right")
        progress = np.append(0.0, np.cumsum(np.diff(at) / np.maximum(running[:-1], 1)))
        alone = progress[np.searchsorted(at, end)] - progress[np.searchsorted(at, start)]
        result[rows] = np.rint(alone * transfer_ns[rows] / recorded)
    return result


def with_sharing(begin_ns: I64, alone_ns: I64) -> I64:
    """Return how long a rank's transfers take.

    Args:
        begin_ns: Their starts.
        alone_ns: Their lengths if nothing else runs.
    """
    result = np.zeros(len(begin_ns), np.int64)
    order = np.argsort(begin_ns, kind="stable").tolist()
    # All that run make the same progress, so each ends when a certain progress is reached.
    now, progress, running = 0.0, 0.0, list[tuple[float, int]]()
    starts, lengths = (begin_ns - begin_ns[order[:1]]).tolist(), alone_ns.tolist()

    def run_until(time: float) -> None:
        nonlocal now, progress
        while running and now + (running[0][0] - progress) * len(running) <= time:
            reached, row = running[0]
            now, progress = now + (reached - progress) * len(running), reached
            heapq.heappop(running)
            result[row] = round(now - starts[row])
        if running:
            progress += (time - now) / len(running)
        now = time

    for row in order:
        run_until(starts[row])
        heapq.heappush(running, (progress + lengths[row], row))
    run_until(np.inf)
    return result


# -- Compute beside collectives ----------------------------------------------------------------------

LOST_SPEED: Final = (0.15, 0.3, 0.4)
"""Shares of its speed that compute loses beside collectives where no recording shows it: at least, usually, at most."""
_CORRECTIONS = 2
"""Number of corrections: longer compute is beside more or less of the collectives."""
_NEGLIGIBLE = 0.002
"""Maximum relative change of compute that needs no correction."""


def contended_times(job: JoinedJob, parts: Sequence[RankNetwork], tied: Ties, stance: Stance) -> JobTimes:
    """Return the times of a job whose compute takes as long as it does beside the collectives that it is beside.

    Its recorded length is that beside the collectives that it was beside in the recording.

    Raises:
        Deadlock: Ranks wait for each other in a circle.
    """
    lost = _lost_speeds(job, stance)
    replayed = replay_job(job, parts, tied)
    if not any(map(any, lost)):
        return replayed.times
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
    return replayed.times


class LostSpeed(NamedTuple):
    """Share of its speed that compute loses beside collectives."""

    least: float
    usual: float
    most: float
    recorded: bool
    """True if a recording shows it."""


def lost_speed(job: JoinedJob) -> LostSpeed | None:
    """Return the loss of ranks whose recordings don't show it: the median of the others; None without a GPU."""
    on_gpus = [rank for rank in job.ranks if not rank.reduced.on_host]
    measured = [rank.lost_speed for rank in on_gpus if rank.lost_speed is not None]
    if not on_gpus:
        return None
    least, usual, most = (median(ends) for ends in zip(*measured, strict=True)) if measured else LOST_SPEED
    return LostSpeed(least, usual, most, bool(measured))


def _lost_speeds(job: JoinedJob, stance: Stance) -> list[tuple[float, ...]]:
    """Return the shares of its speed that each rank's compute may lose at a stance."""
    common, result = lost_speed(job), list[tuple[float, ...]]()
    for rank in job.ranks:
        least, usual, most = rank.lost_speed or (common[:3] if common is not None else (0.0, 0.0, 0.0))
        result.append((usual,) if stance == Stance.EXPECTED else (least, most))
    return result


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

"""Collectives on communicators of their own, so that none waits for the one launched before it.

Collectives of a communicator run one after another, on one stream or by NCCL's own events. With communicators of their
own they run at once, and share the network.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.plugins.jobs.joint.changes import latencies
from overlapscope.plugins.jobs.joint.join import NO_QUEUE_NS, JoinedJob, Ties, replay_job, ties
from overlapscope.plugins.jobs.joint.rank import BY_EVENT, Parts
from overlapscope.prediction.graph import Orders, Waits, Why
from overlapscope.prediction.hardware import Stance

_ROUNDS = 3
"""Number of replays: transfers that share the network end later, so others start later."""


def on_own_communicators(
    job: JoinedJob, parts: Sequence[Parts], transfer_ns: I64, stance: Stance
) -> tuple[list[Parts], Ties, int]:
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
            begin = replayed.end_ns[place][tied.rest[rows]] - tied.transfer_ns[rows]
            shared = with_sharing(begin + fixed_ns[rows], alone_ns[rows] - fixed_ns[rows])
            transfer[rows] = fixed_ns[rows] + shared
        tied = ties(job, changed, transfer)
    return changed, tied, count


def _freed(job: JoinedJob, part: Parts, place: int, stance: Stance) -> tuple[Parts, int]:
    """Return a rank whose collectives don't wait for others of their group, and the number of those that waited."""
    network = part.network
    items, orders, waits = network.items, network.orders, network.waits
    group = np.full(len(items), -1)
    rest = part.comm
    group[rest] = group[rest - 1] = _groups(job, place, len(rest))
    ends, arrives = mask_of(rest, len(items)), mask_of(rest - 1, len(items))
    queued = ends[orders.first] & arrives[orders.then] & (group[orders.first] >= 0)
    queued &= group[orders.first] == group[orders.then]
    freed, behind = mask_of(orders.then[queued], len(items)), [distinct(orders.first[queued])]
    kept, gap = orders.take(~queued), items.queue_lag_ns.copy()
    ready = mask_of(rest[part.ready == BY_EVENT] - 1, len(items))
    for _, rows in rows_by(items.lane):
        if (ends | arrives)[rows].all():
            # The stream has nothing but collectives. Those that wait for an event have their input without it.
            its = rows[arrives[rows]]
            alike = (group[its[1:]] == group[its[:-1]]) & (group[its[1:]] >= 0)
            own = its[1:][alike & ready[its[1:]]]
            gap[own], freed[own] = NO_QUEUE_NS, True
            more = _as_later_ones(kept, waits, its + 1)
            kept, waits = Orders.joined([kept, more[0]]), Waits.joined([waits, more[1]])
            behind.append(its + 1)
    if stance != Stance.BEST:
        kept = Orders.joined([kept, _within_steps(part, distinct(np.concatenate(behind)), kept, waits)])
    network = replace(network, items=replace(items, queue_lag_ns=gap), orders=kept, waits=waits)
    return replace(part, network=network), int(freed.sum())


def _groups(job: JoinedJob, place: int, count: int) -> I64:
    """Return a number for the process group of each collective of a rank; -1 for those that aren't joined."""
    numbers = dict[tuple[str, str], int]()
    of_kind = [numbers.setdefault((kind.group, kind.ranks), len(numbers)) for kind in job.met.kernels.kinds]
    entries = np.flatnonzero(job.met.rank == place)
    result = np.full(count, -1)
    result[job.comm[entries]] = np.array(of_kind, np.int64)[job.met.kind[job.met.meeting[entries]]]
    return result


def _as_later_ones(orders: Orders, waits: Waits, rest: I64) -> tuple[Orders, Waits]:
    """Return orders and waits so that anything that waits for a collective waits for those before it on its stream.

    A stream's last item stands for all of it, so the recording states only that one.
    """
    awaited: Bool = np.isin(rest, np.append(orders.first, waits.item))
    following = np.append(np.flatnonzero(awaited), len(rest))
    place = following[np.searchsorted(following, np.arange(len(rest)))]
    early = np.flatnonzero((place < len(rest)) & ~awaited)
    found_orders, found_waits = [orders.take(orders.first < 0)], [waits.take(waits.item < 0)]
    by_first, by_item = dict(rows_by(orders.first)), dict(rows_by(waits.item))
    none = rest[:0]
    for before, later in zip(rest[early].tolist(), rest[place[early]].tolist(), strict=True):
        its_orders, its_waits = orders.take(by_first.get(later, none)), waits.take(by_item.get(later, none))
        found_orders.append(replace(its_orders, first=np.full(len(its_orders), before)))
        found_waits.append(replace(its_waits, item=np.full(len(its_waits), before)))
    return Orders.joined(found_orders), Waits.joined(found_waits)


def _within_steps(part: Parts, rest: I64, orders: Orders, waits: Waits) -> Orders:
    """Return orders: a step that began after a collective had ended still does, if nothing else waits for it."""
    rest = rest[~np.isin(rest, np.append(orders.first, waits.item))]
    marks = part.marks[np.argsort(part.recorded_start_ns[part.marks], kind="stable")]
    following = np.searchsorted(part.recorded_start_ns[marks], part.recorded_end_ns[rest])
    within = following < len(marks)
    return Orders.of(rest[within], marks[following[within]], 0, Why.DATA)


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

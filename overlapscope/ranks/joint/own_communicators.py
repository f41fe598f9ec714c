"""Collectives on communicators of their own, so that none waits for the one launched before it.

Collectives of a communicator run one after another, on one stream or by NCCL's own events. With communicators of their
own they run at once, and share the network.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.grouping import distinct, rows_by
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import I64
from overlapscope.prediction.graph import Orders, Why
from overlapscope.prediction.hardware import Stance
from overlapscope.ranks.joint.changes import latencies
from overlapscope.ranks.joint.join import JoinedJob, Ties, replay_job, ties
from overlapscope.ranks.joint.rank import BY_EVENT, Parts
from overlapscope.ranks.joint.sharing import shared, without_sharing

_ROUNDS = 3
"""Number of replays: transfers that share the network end later, so others start later."""


def on_own_communicators(
    job: JoinedJob, parts: Sequence[Parts], transfer_ns: I64, stance: Stance
) -> tuple[list[Parts], Ties, int]:
    """Let collectives start beside those that they were queued behind.

    Returns:
        The ranks, their ties, and how many collectives no longer wait. At worst, all wait as recorded: the GPU may have
        no room for the later kernel, or run launches of all streams in order.
    """
    freed = [_freed(part, stance) for part in parts]
    count = sum(number for _, number in freed)
    if stance == Stance.WORST or not count:
        return list(parts), ties(job, parts, transfer_ns), count
    changed = [part for part, _ in freed]
    every = np.ones(len(job.met), np.bool_)
    own_ns = without_sharing(job, transfer_ns, every)
    fixed = np.minimum(latencies(job, own_ns, stance)[job.met.kind[job.met.meeting]], np.maximum(own_ns, 0))
    tied = ties(job, changed, own_ns)
    for _ in range(_ROUNDS):
        replayed = replay_job(job, changed, tied)
        transfer = own_ns.copy()
        for place in range(len(parts)):
            rows = np.flatnonzero((tied.rank == place) & (own_ns > 0))
            begin = replayed.end_ns[place][tied.rest[rows]] - tied.transfer_ns[rows]
            transfer[rows] = fixed[rows] + shared(begin + fixed[rows], own_ns[rows] - fixed[rows])
        tied = ties(job, changed, transfer)
    return changed, tied, count


def _freed(part: Parts, stance: Stance) -> tuple[Parts, int]:
    """Return a rank whose collectives don't wait for other collectives, and how many waited."""
    network = part.network
    items, orders = network.items, network.orders
    rest, arrives = (mask_of(rows, len(items)) for rows in (part.comm, part.comm - 1))
    queued = rest[orders.first] & arrives[orders.then]
    lane, waited = items.lane.copy(), mask_of(orders.then[queued], len(items))
    for _, rows in rows_by(items.lane):
        if not (rest | arrives)[rows].all():
            continue
        # The stream has nothing but collectives. Those that wait for an event have their input without it.
        own = part.comm[np.isin(part.comm, rows[2:]) & (part.ready == BY_EVENT)]
        lane[own - 1] = lane[own] = int(lane.max()) + 1 + np.arange(len(own))
        waited[own - 1] = True
    kept = orders.take(~queued)
    if stance != Stance.BEST:
        kept = Orders.joined([kept, _within_steps(part, distinct(orders.first[queued]), kept)])
    moved = replace(network, items=replace(items, lane=lane), orders=kept)
    return replace(part, network=moved), int(waited.sum())


def _within_steps(part: Parts, rest: I64, orders: Orders) -> Orders:
    """Return orders: a step that began after a collective had ended still does, if nothing else waits for it."""
    network = part.network
    if part.marks_are_calls:
        return orders.take(np.empty(0, np.int64))
    rest = rest[~np.isin(rest, np.append(orders.first, network.waits.item))]
    items = network.items
    marks = part.marks[np.argsort(items.start_ns[part.marks], kind="stable")]
    following = np.searchsorted(items.start_ns[marks], items.end_ns[rest])
    within = following < len(marks)
    return Orders.of(rest[within], marks[following[within]], 0, Why.DATA)

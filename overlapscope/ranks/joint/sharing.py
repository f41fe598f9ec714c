"""Transfers of a rank that run at once share the network: while n of them run, each gets 1/n of the bandwidth."""

from __future__ import annotations

import heapq

import numpy as np

from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.joint.join import JoinedJob


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

"""Transfers of a rank that run at once share the network: while n of them run, each gets 1/n of the bandwidth."""

from __future__ import annotations

import numpy as np

from overlapscope.base.intervals import I64, Bool
from overlapscope.ranks.joint.join import JoinedJob


def without_sharing(job: JoinedJob, transfer_ns: I64, chosen: Bool) -> I64:
    """Return how long the transfers of chosen meetings would take if no other of them ran at once on the rank."""
    result = transfer_ns.copy()
    for place in range(len(job.ranks)):
        own = np.flatnonzero((job.met.rank == place) & chosen[job.met.meeting] & (transfer_ns > 0))
        start = job.last_ns[job.met.meeting[own]]
        end = start + transfer_ns[own]
        at = np.unique(np.concatenate([start, end]))
        running = np.searchsorted(np.sort(start), at, side="right") - np.searchsorted(np.sort(end), at, side="right")
        shared = np.append(0.0, np.cumsum(np.diff(at) / np.maximum(running[:-1], 1)))
        result[own] = np.rint(shared[np.searchsorted(at, end)] - shared[np.searchsorted(at, start)])
    return result


def shared(begin_ns: I64, own_ns: I64) -> I64:
    """Return how long a rank's transfers take.

    Args:
        begin_ns: Their starts.
        own_ns: Their lengths if nothing else runs.
    """
    result, now = np.zeros(len(begin_ns), np.int64), 0.0
    left: dict[int, float] = {}
    order = np.argsort(begin_ns, kind="stable").tolist()
    while left or order:
        upcoming = float(begin_ns[order[0]]) if order else np.inf
        if not left:
            now = upcoming
        first = min(left, key=lambda row: left[row]) if left else -1
        ends = now + left[first] * len(left) if left else np.inf
        until = min(ends, upcoming)
        passed = (until - now) / len(left) if left else 0.0
        left = {row: rest - passed for row, rest in left.items()}
        now = until
        if ends <= upcoming:
            result[first] = round(now - float(begin_ns[first]))
            del left[first]
        else:
            left[order[0]] = float(own_ns[order[0]])
            order.pop(0)
    return result

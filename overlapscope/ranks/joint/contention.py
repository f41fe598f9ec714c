"""Compute beside collectives is slower: they take multiprocessors and memory bandwidth from it.

So a change that hides communication makes compute longer. A recording shows by how much if the same kernels also run
apart from collectives. Compute lost 27 to 40% of its speed beside NCCL in recordings of
two H100s. Lee et al. (arXiv:2507.03114) report that it takes 18.9% longer on average, and 40% longer at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.grouping import groups_of, rows_by
from overlapscope.base.columns import F64, mask_of, quantile
from overlapscope.base.intervals import I64, Bool, covered, union
from overlapscope.prediction.hardware import Stance
from overlapscope.ranks.joint.changes import with_device_work
from overlapscope.ranks.joint.join import JobReplay, JoinedJob, Ties, replay_job, ties
from overlapscope.ranks.joint.rank import Parts
from overlapscope.trace.model import Kind, Trace

LOST_SPEED: Final = {Stance.BEST: 0.15, Stance.EXPECTED: 0.3, Stance.WORST: 0.4}
"""Shares of its speed that compute loses beside collectives, where the recording doesn't show it."""
_MOST_LOST = 0.6
_ALONE, _BESIDE = 0.05, 0.5
"""Maximum share beside collectives of a run that counts as apart from them, and minimum of a run beside them."""
_STEADY = 0.1
"""Maximum spread of a kernel's runs apart from collectives, as a share of their median."""
_FEWEST, _SHORTEST_NS = 10, 10_000
"""Minimum number of runs beside collectives, and length of a run, to measure the loss."""
_ROUNDS = 2
"""Number of corrections: longer compute is beside more or less of the collectives."""


def lost_speed(trace: Trace, device: int) -> float | None:
    """Return the share of its speed that a device's compute loses beside collectives.

    It is the median over the runs beside collectives, weighted by their lengths; None if there are too few that can be
    compared to runs of the same kernel and grid apart from collectives.
    """
    ops = trace.gpu_ops
    own = ops.device == device
    comm = own & (ops.kind == Kind.COMM)
    rows = np.flatnonzero(own & (ops.kind == Kind.COMPUTE) & (ops.end_ns - ops.start_ns >= _SHORTEST_NS))
    if not len(rows) or not comm.any():
        return None
    length = ops.end_ns[rows] - ops.start_ns[rows]
    share = covered(union(ops.start_ns[comm], ops.end_ns[comm]), ops.start_ns[rows], ops.end_ns[rows]) / length
    losses, weights = [np.empty(0)], [np.empty(0)]
    for _, alike in rows_by(groups_of([ops.name_id[rows], ops.blocks[rows], ops.block_threads[rows]])):
        alone, beside = alike[share[alike] <= _ALONE], alike[share[alike] >= _BESIDE]
        if len(alone) and len(beside):
            usual, spread = (quantile(length[alone], 0.5), quantile(length[alone], 0.9) - quantile(length[alone], 0.1))
            if spread <= _STEADY * usual:
                losses.append((1 - usual / length[beside]) / share[beside])
                weights.append(length[beside])
    loss, weight = np.concatenate(losses), np.concatenate(weights)
    if len(loss) < _FEWEST:
        return None
    order = np.argsort(loss)
    middle = np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)
    return min(max(float(loss[order][middle]), 0.0), _MOST_LOST)


def contended(
    job: JoinedJob, unchanged: Sequence[Parts], parts: Sequence[Parts], tied: Ties, stance: Stance
) -> list[Parts]:
    """Return changed ranks whose compute takes as long as it would beside the collectives that it is beside then.

    Args:
        job: The job.
        unchanged: The ranks without the job's changes. They have the same items, but collectives may be divided.
        parts: The ranks with the changes.
        tied: Their ties.
        stance: The stance.
    """
    lost = [_lost(rank.lost_speed, stance) for rank in job.ranks]
    result = list(parts)
    if not any(lost):
        return result
    were = _shares(replay_job(job, unchanged, ties(job, unchanged, job.transfer_ns)))
    for _ in range(_ROUNDS):
        replayed = replay_job(job, result, tied)
        now, result = _shares(replayed), []
        for part, rest, speed, was, share in zip(parts, replayed.rest, lost, were, now, strict=True):
            factor = np.ones(len(part.network.items))
            factor[~_collectives(part, rest)] = (1 - speed * was) / (1 - speed * share)
            result.append(with_device_work(part, factor))
    return result


def _lost(measured: float | None, stance: Stance) -> float:
    if measured is None:
        return LOST_SPEED[stance]
    if not measured or stance == Stance.EXPECTED:
        return measured
    return (min if stance == Stance.BEST else max)(measured, LOST_SPEED[stance])


def _shares(replayed: JobReplay) -> list[F64]:
    """Return the share of its time that each item is beside collectives, for each rank, without the collectives."""
    result = []
    for part, rest, start, end in zip(replayed.parts, replayed.rest, replayed.start_ns, replayed.end_ns, strict=True):
        comm = _collectives(part, rest)
        begin, stop = _spans(part, comm, start, end)
        busy = union(start[rest - 1], end[rest])
        result.append((covered(busy, begin, stop) / np.maximum(stop - begin, 1))[~comm])
    return result


def _spans(part: Parts, comm: Bool, start: I64, end: I64) -> tuple[I64, I64]:
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
        begin[unknown] = stop[unknown] - part.work_ns[unknown]
    return begin, stop


def _collectives(part: Parts, rest: I64) -> Bool:
    return mask_of(np.concatenate([rest, rest - 1]), len(part.network.items))

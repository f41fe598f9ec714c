"""Compute beside collectives, which is slower: they take multiprocessors and memory bandwidth from it.

So a change that hides communication makes compute longer. A recording shows by how much if the same kernels also run
apart from collectives. Compute lost 27 to 40% of its speed beside NCCL in recordings of two H100s. Lee et al.
(arXiv:2507.03114) report that it takes 18.9% longer on average, and 40% longer at most.

A collective of a rank is two items in a row, its arrival and its finish (`join`): item `finish - 1` is the arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from overlapscope.base.columns import F64, mask_of
from overlapscope.base.grouping import rows_by
from overlapscope.base.intervals import I64, Bool, covered, union
from overlapscope.plugins.jobs.joint.changes import with_device_work
from overlapscope.plugins.jobs.joint.join import JobReplay, JoinedJob, RankNetwork, Ties, replay_job
from overlapscope.prediction.hardware import Stance

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
    every = [rank.lost_speed or common for rank in job.ranks]
    lost = [(usual,) if stance == Stance.EXPECTED else (least, most) for least, usual, most in every]
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

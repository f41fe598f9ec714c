"""Times in which an inference server waits for requests: no loss, and no part of a step."""

from __future__ import annotations

import re

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.periods import Periods, is_step, phases_of
from overlapscope.analysis.pieces import IdleTime
from overlapscope.analysis.steps import step_at
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import Bool, contains, union
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import IDLE_RANK, IdleCause
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.servers import WAITS


@kept()
def request_waits(trace: Trace) -> HostEvents:
    """Return the times in which threads of a server had no request, from the first wait after a mark to the last.

    A server may wait in a call, or look for requests again and again. Empty for other programs.
    """
    frames = trace.python_frames
    if not phases_of(trace):
        return frames.take(np.zeros(0, np.int64))
    found = []
    marks = trace.annotations.start_ns[is_step(trace.annotations)]
    for outer, inner in WAITS:
        looks = _named(frames, outer)
        waits = looks if inner is None else _named(frames, inner)
        for thread, rows in rows_by(frames.thread[waits]):
            rows = np.flatnonzero(waits)[rows]
            around = looks & (frames.thread == thread)
            rows = rows[contains(union(frames.start_ns[around], frames.end_ns[around]), frames.start_ns[rows])]
            after = np.searchsorted(marks, frames.start_ns[rows], side="right")
            first = np.flatnonzero(np.diff(after, prepend=-1))
            if len(rows):
                found.append(replace(frames.take(rows[first]), end_ns=np.maximum.reduceat(frames.end_ns[rows], first)))
    return HostEvents.joined(found) if found else frames.take(np.zeros(0, np.int64))


def _named(frames: HostEvents, pattern: re.Pattern[str]) -> Bool:
    return frames.named(lambda name: pattern.search(name) is not None)


def without_request_waits(steps: Periods, idle: IdleTime) -> Periods:
    """Return the steps without the idle time in which the server waited for requests.

    A step ends where such time begins, and the next one begins where it ends, before its first op.
    """
    waits = idle.take(idle.cause == IDLE_RANK[IdleCause.AWAITING_REQUESTS])
    starts, ends = steps.start_ns.copy(), steps.end_ns.copy()
    number = step_at(steps, waits.start_ns)
    for step in distinct(number[number >= 0]).tolist():
        of_step = number == step
        ends[step] = waits.start_ns[of_step].min()
        starts[step + 1 : step + 2] = waits.end_ns[of_step].max()
    return replace(steps, start_ns=starts, end_ns=ends)

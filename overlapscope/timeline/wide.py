"""The ops that are wide enough to be drawn one by one, and the one a person points at."""

from __future__ import annotations

import numpy as np

from overlapscope.timeline.lane import Lane, least_level
from overlapscope.trace.model import I32


def at_least(lane: Lane, start_ns: int, end_ns: int, length_ns: int, most: int) -> I32:
    """Rows of the ops inside `[start_ns, end_ns)` that last at least `length_ns` (above 0), by start; of more than
    `most` the longest."""
    parts = []
    for level in range(least_level(length_ns), len(lane.brackets.bounds) - 1):
        rows = lane.brackets.reaching(lane.start_ns, level, start_ns, end_ns)
        if len(rows):
            ends = lane.end_ns[rows]
            parts.append(rows[(ends > start_ns) & (ends - lane.start_ns[rows] >= length_ns)])
    if not parts:
        return np.empty(0, np.int32)
    found = np.concatenate(parts)
    if len(found) > most:
        length = lane.end_ns[found] - lane.start_ns[found]
        found = found[np.argsort(-length, kind="stable")[:most]]
    found.sort()
    return found


def at(lane: Lane, start_ns: int, end_ns: int) -> int | None:
    """Row of the op of the lane nearest the middle of `[start_ns, end_ns)`: the shortest around it, else one that lies
    next to it; None where that does not touch the span. An op of no length counts as 1 ns."""
    end_ns = max(end_ns, start_ns + 1)
    middle = (start_ns + end_ns) // 2
    candidates: list[tuple[int, int, int]] = []
    for level in range(len(lane.brackets.bounds) - 1):
        rows = lane.brackets.around(lane.start_ns, level, middle)
        begin = lane.start_ns[rows]
        stop = np.maximum(lane.end_ns[rows], begin + 1)
        away = np.maximum(np.maximum(begin - middle, middle - stop + 1), 0)
        touches = (begin < end_ns) & (stop > start_ns)
        # Of equally near ones the shortest, and of those the last, which is drawn on top.
        columns = (away[touches], (stop - begin)[touches], -rows[touches].astype(np.int64))
        candidates += zip(*(column.tolist() for column in columns), strict=True)
    return -min(candidates)[2] if candidates else None

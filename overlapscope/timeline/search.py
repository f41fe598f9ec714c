"""Ways to an op: search by name, and the places where most time is lost."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from overlapscope.base.kept import kept
from overlapscope.base.words import clean
from overlapscope.catalog.causes import COPY_CAUSES, COPY_RANK, IDLE_CAUSES, CopyCause
from overlapscope.timeline.details import duration
from overlapscope.timeline.lane import LaneRow, Lanes, idle_caused, row_of_call, row_of_gpu_op, row_of_piece, rows_on
from overlapscope.trace.host import find_blocking
from overlapscope.trace.model import I32, I64, Bool

_CACHED_QUERIES = 4
"""Number of cached queries; users step through the matches of a query."""


def search(lanes: Lanes, text: str, after: int | LaneRow, direction: int) -> dict[str, Any]:
    """Return the next op (`direction` 1) or the previous op (-1) whose name contains the text in any case.

    The search wraps around. `after` is the op to continue from, a match or not, or an instant. After an instant, the
    next match starts after it, and the previous match before it. Matches are ordered by start, then by lane as drawn,
    then by row.

    Returns:
        `{"count", "number", "match"}`: the number of matches, the position of this match from 1, and the match as
        `{"lane", "row", "start", "end", "title"}`. Without matches the position is 0 and the match None.

    Raises:
        KeyError: There is no such op.
    """
    lane_of, row_of = _matches(lanes, text.lower())
    count = len(lane_of)

    def place(match: int) -> tuple[int, int, int]:
        lane, row = int(lane_of[match]), int(row_of[match])
        return int(lanes.lanes[lane].start_ns[row]), lane, row

    here = (after, len(lanes.lanes) if direction > 0 else -1, 0)
    if isinstance(after, LaneRow):
        if not 0 <= after.row < len(lanes.lane(after.lane)):
            raise KeyError(f"row {after.row} of lane {after.lane}")
        here = (int(lanes.lane(after.lane).start_ns[after.row]), after.lane, after.row)
    if not count:
        return {"count": 0, "number": 0, "match": None}
    next_one, previous = bisect_right(range(count), here, key=place), bisect_left(range(count), here, key=place) - 1
    number = (next_one if direction > 0 else previous) % count
    start, lane_id, row = place(number)
    lane = lanes.lanes[lane_id]
    match = {"lane": lane_id, "row": row, "start": start, "end": int(lane.end_ns[row]), "title": clean(lane.name(row))}
    return {"count": count, "number": number + 1, "match": match}


@kept(most=_CACHED_QUERIES)
def _matches(lanes: Lanes, text: str) -> tuple[I32, I32]:
    """Return the lane and row of each match, in the order of `search`."""
    judged: dict[int, Bool] = {}
    rows: list[I32] = []
    for lane in lanes.lanes:
        if id(lane.names) not in judged:
            judged[id(lane.names)] = np.array([bool(text) and text in name.lower() for name in lane.names], np.bool_)
        rows.append(np.flatnonzero(judged[id(lane.names)][lane.name_id]).astype(np.int32))
    nothing = np.empty(0, np.int32)
    starts = (lane.start_ns[of_lane] for lane, of_lane in zip(lanes.lanes, rows, strict=True))
    order = np.argsort(np.concatenate([nothing, *starts]), kind="stable")
    lane_of = np.repeat(np.arange(len(rows), dtype=np.int32), [len(of_lane) for of_lane in rows])
    return lane_of[order], np.concatenate([nothing, *rows])[order]


# -- Where most time is lost -----------------------------------------------------------------------

Subject = Literal["exposed-copy", "idle", "stall"]
SUBJECTS: tuple[Subject, ...] = ("exposed-copy", "idle", "stall")
MAX_CASES = 1_000
"""Number of cases of each kind."""


class _Case(NamedTuple):
    device: int
    """Ordinal of the device; -1 for a stall."""
    row: int
    """The copy (of `Trace.gpu_ops`), the gap (of `Timeline.idle`) or the call (of `Trace.runtime_calls`)."""
    start_ns: int
    end_ns: int
    cost_ns: int
    wait_ns: int
    """Tie-breaker."""


def worst(lanes: Lanes, kind: Subject, number: int) -> dict[str, Any]:
    """Return the case of that rank, from 0, as `{"count", "ranked", "match"}`.

    `count` is the number of cases, `ranked` how many of them can be requested (at most `MAX_CASES`), and `match` is
    `{"lane", "row", "start", "end", "title"}`, None if there are fewer cases. The lead-in is left out, because it can't
    be judged.
    """
    count, cases = _ranking(lanes, kind)
    match = _match(lanes, kind, cases[number]) if 0 <= number < len(cases) else None
    return {"count": count, "ranked": len(cases), "match": match}


@kept()
def _ranking(lanes: Lanes, kind: Subject) -> tuple[int, list[_Case]]:
    """Return the number of cases on all devices, and the worst of them."""
    found = [np.broadcast_arrays(*columns) for columns in _FINDERS[kind](lanes)]
    columns = np.concatenate([np.empty((6, 0), np.int64), *map(np.stack, found)], axis=1)
    count = columns.shape[1]
    if count > MAX_CASES:
        cost = columns[4]
        columns = columns[:, cost >= np.partition(cost, -MAX_CASES)[-MAX_CASES]]
    device, _, start, _, cost, wait = columns
    order = np.lexsort((device, start, -wait, -cost))[:MAX_CASES]
    return count, [_Case(*case) for case in columns[:, order].T.tolist()]


def _match(lanes: Lanes, kind: Subject, case: _Case) -> dict[str, Any]:
    start, end = case.start_ns - lanes.origin_ns, case.end_ns - lanes.origin_ns
    if kind == "stall":
        place = row_of_call(lanes, case.row)
        name = clean(lanes.analysis.trace.runtime_calls.name(case.row))
        cost = f"caused {duration(case.cost_ns)} of idle" if case.cost_ns else f"waited {duration(case.wait_ns)}"
        title = f"{name}: {cost}"
    elif kind == "idle":
        idle = lanes.device(case.device).idle
        first, last = (int(idle.start_ns.searchsorted(at)) for at in (case.start_ns, case.end_ns))
        longest = first + int(np.argmax(idle.end_ns[first:last] - idle.start_ns[first:last]))
        place = row_of_piece(lanes, case.device, int(idle.start_ns[longest]) - lanes.origin_ns)
        title = f"idle gap of {duration(case.cost_ns)}, mostly {IDLE_CAUSES[idle.cause[longest]]}"
    else:
        place = row_of_gpu_op(lanes, case.row)
        exposed = lanes.device(case.device).exposed
        cause = COPY_CAUSES[exposed.cause[exposed.start_ns.searchsorted(case.start_ns)]]
        name = clean(lanes.analysis.trace.gpu_ops.name(case.row))
        title = f"{name}: {duration(case.cost_ns)} exposed, {cause}"
    return {"lane": place.lane, "row": place.row, "start": start, "end": end, "title": title}


_Columns = tuple[int, I64, I64, I64, I64, I64 | int]
"""Cases of a kind: the fields of `_Case`, as columns."""


def _exposed_copies(lanes: Lanes) -> Iterator[_Columns]:
    """Yield the exposed copies; successive pieces of a copy are a single case."""
    for analysis in lanes.analysis.devices:
        exposed = analysis.exposed
        rows = np.flatnonzero(exposed.cause != COPY_RANK[CopyCause.LEAD_IN])
        start, end = exposed.start_ns[rows], exposed.end_ns[rows]
        copy = rows_on(lanes, analysis.result.device)[exposed.op[rows]]
        opens = np.ones(len(rows), np.bool_)
        opens[1:] = (copy[1:] != copy[:-1]) | (start[1:] != end[:-1])
        first, last = np.flatnonzero(opens), np.flatnonzero(np.roll(opens, -1))
        yield analysis.result.device, copy[first], start[first], end[last], end[last] - start[first], 0


def _idle_gaps(lanes: Lanes) -> Iterator[_Columns]:
    for analysis in lanes.analysis.devices:
        gaps = analysis.timeline.idle
        rows = np.flatnonzero(gaps.ends > analysis.timeline.judged_from_ns)
        start, end = np.maximum(gaps.starts[rows], analysis.timeline.judged_from_ns), gaps.ends[rows]
        yield analysis.result.device, rows, start, end, end - start, 0


def _stalls(lanes: Lanes) -> Iterator[_Columns]:
    """Yield the blocking calls; those that cost nothing only if they reach beyond the lead-in."""
    calls, caused = lanes.analysis.trace.runtime_calls, idle_caused(lanes)
    judged = min((analysis.timeline.judged_from_ns for analysis in lanes.analysis.devices), default=None)
    rows = find_blocking(lanes.analysis.trace).row
    if judged is not None:
        rows = rows[(caused[rows] > 0) | (calls.end_ns[rows] > judged)]
    start, end = calls.start_ns[rows], calls.end_ns[rows]
    yield -1, rows, start, end, caused[rows], end - start


_FINDERS: Final = {"exposed-copy": _exposed_copies, "idle": _idle_gaps, "stall": _stalls}

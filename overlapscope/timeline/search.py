"""Search for ops by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from overlapscope.base.kept import kept
from overlapscope.base.words import clean
from overlapscope.timeline.lane import Lanes, TimelineLane
from overlapscope.timeline.links import LaneRow
from overlapscope.trace.model import I32, Bool

_KEPT = 4
"""Number of cached queries; users step through the matches of a query."""


class _Matches(Struct, frozen=True, eq=False):
    """Matching rows of each lane, by start."""

    rows: tuple[I32, ...]
    count: int


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
    matches = _matches(lanes, text.lower())
    here = _position(lanes, after, direction)
    if not matches.count:
        return {"count": 0, "number": 0, "match": None}
    pairs = list(zip(lanes.lanes, matches.rows, strict=True))
    passed = [_passed(lane, rows, here) for lane, rows in pairs]
    number = sum(passed) + (1 if direction > 0 else 0)
    if not 1 <= number <= matches.count:
        passed = [0 if direction > 0 else len(rows) for rows in matches.rows]
        number = 1 if direction > 0 else matches.count
    # The first of the next matches of all lanes, or the last of those passed.
    step, choose = (0, min) if direction > 0 else (-1, max)
    starts = [
        (int(lane.start_ns[rows[place + step]]), lane.id, int(rows[place + step]))
        for (lane, rows), place in zip(pairs, passed, strict=True)
        if 0 <= place + step < len(rows)
    ]
    start, lane_id, row = choose(starts)
    lane = lanes.lanes[lane_id]
    match = {"lane": lane_id, "row": row, "start": start, "end": int(lane.end_ns[row]), "title": clean(lane.name(row))}
    return {"count": matches.count, "number": number, "match": match}


class _Position(NamedTuple):
    """A position between two ops in the order of search.

    It is after all ops that start earlier. Among those that start at `start_ns`, it is after all lanes before `lane`
    and, in that lane, after all rows before `row`.
    """

    start_ns: int
    lane: int
    row: int


def _position(lanes: Lanes, after: int | LaneRow, direction: int) -> _Position:
    """Return the position right after or right before the place to continue from."""
    if not isinstance(after, LaneRow):
        return _Position(after, len(lanes.lanes) if direction > 0 else -1, 0)
    lane = lanes.lane(after.lane)
    if not 0 <= after.row < len(lane):
        raise KeyError(f"row {after.row} of lane {after.lane}")
    return _Position(int(lane.start_ns[after.row]), after.lane, after.row + (1 if direction > 0 else 0))


def _passed(lane: TimelineLane, rows: I32, here: _Position) -> int:
    """Return how many of a lane's matching rows are before a position."""
    if lane.id == here.lane:
        row = here.row
    else:
        row = int(lane.start_ns.searchsorted(here.start_ns, side="right" if lane.id < here.lane else "left"))
    # With a key of another type, numpy would convert the whole array.
    return int(rows.searchsorted(np.int32(row)))


@kept(most=_KEPT)
def _matches(lanes: Lanes, text: str) -> _Matches:
    judged: dict[int, Bool] = {}
    for lane in lanes.lanes:
        if id(lane.names) not in judged:
            judged[id(lane.names)] = np.array([bool(text) and text in name.lower() for name in lane.names], np.bool_)
    rows = tuple(np.flatnonzero(judged[id(lane.names)][lane.name_id]).astype(np.int32) for lane in lanes.lanes)
    return _Matches(rows, sum(map(len, rows)))

"""Finding ops by their names."""

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
"""Queries kept: a person steps through the matches of one."""


class _Matches(Struct, frozen=True, eq=False):
    """The matching rows of each lane, by start."""

    rows: tuple[I32, ...]
    count: int


def search(lanes: Lanes, text: str, after: int | LaneRow, direction: int) -> dict[str, Any]:
    """The next op (`direction` 1) whose name contains the text in any case, or the one before (-1); past the last comes
    the first again. `after` is the op to go on from, a match or not, or an instant: then the first that begins behind
    it, or the last that begins before it.

    `{"count", "number", "match"}`: of how many it is which, counted from 1, and the match as `{"lane", "row", "start",
    "end", "title"}`; 0 and None where nothing matches. The order is that of starts; of those that begin at once, lane
    by lane as drawn, and row by row.

    Raises KeyError where there is no such op.
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
    # The first of all lanes' next ones, or the last of those passed.
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
    """Between two ops in the order of search: behind all that begin earlier, and of those that begin at `start_ns`
    behind all of the lanes before `lane`, and of that lane's behind all rows before `row`."""

    start_ns: int
    lane: int
    row: int


def _position(lanes: Lanes, after: int | LaneRow, direction: int) -> _Position:
    """Right behind what is to be gone on from, or right before it."""
    if not isinstance(after, LaneRow):
        return _Position(after, len(lanes.lanes) if direction > 0 else -1, 0)
    lane = lanes.lane(after.lane)
    if not 0 <= after.row < len(lane):
        raise KeyError(f"row {after.row} of lane {after.lane}")
    return _Position(int(lane.start_ns[after.row]), after.lane, after.row + (1 if direction > 0 else 0))


def _passed(lane: TimelineLane, rows: I32, here: _Position) -> int:
    """How many of a lane's matching rows stand before a position."""
    if lane.id == here.lane:
        row = here.row
    else:
        row = int(lane.start_ns.searchsorted(here.start_ns, side="right" if lane.id < here.lane else "left"))
    # A key of the array's own type: any other would have the whole array converted.
    return int(rows.searchsorted(np.int32(row)))


@kept(most=_KEPT)
def _matches(lanes: Lanes, text: str) -> _Matches:
    judged: dict[int, Bool] = {}
    for lane in lanes.lanes:
        if id(lane.names) not in judged:
            judged[id(lane.names)] = np.array([bool(text) and text in name.lower() for name in lane.names], np.bool_)
    rows = tuple(np.flatnonzero(judged[id(lane.names)][lane.name_id]).astype(np.int32) for lane in lanes.lanes)
    return _Matches(rows, sum(map(len, rows)))

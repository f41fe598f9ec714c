"""Finding ops by their names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np

from overlapscope.lanes.lane import Lane, Lanes
from overlapscope.trace import I32, Bool
from overlapscope.views.words import clean

_KEPT = 4
"""Queries kept: a person steps through the matches of one."""


@dataclass(frozen=True, slots=True, eq=False)
class _Matches:
    """The matching rows of each lane, by start."""

    rows: tuple[I32, ...]
    count: int


_FOUND: WeakKeyDictionary[Lanes, dict[str, _Matches]] = WeakKeyDictionary()


def search(lanes: Lanes, text: str, after_ns: int, direction: int) -> dict[str, Any]:
    """The next op (`direction` 1) that begins after an instant, or the last (-1) that begins before it, whose name
    contains the text in any case; past the last comes the first again.

    `{"count", "number", "match"}`: of how many it is which, counted from 1, and the match as `{"lane", "row", "start",
    "end", "title"}`; 0 and None where nothing matches. The order is that of starts; of those that begin at once, lane
    by lane as drawn.
    """
    found = _matches(lanes, text.lower())
    if not found.count:
        return {"count": 0, "number": 0, "match": None}
    pairs = list(zip(lanes.lanes, found.rows, strict=True))
    lane, which = _following(pairs, after_ns) if direction > 0 else _preceding(pairs, after_ns)
    row = int(found.rows[lane.id][which])
    start, end = int(lane.start_ns[row]), int(lane.end_ns[row])
    earlier = sum(_begun(*pair, start, "right") for pair in pairs[: lane.id])
    earlier += sum(_begun(*pair, start, "left") for pair in pairs[lane.id + 1 :])
    match = {"lane": lane.id, "row": row, "start": start, "end": end, "title": clean(lane.name(row))}
    return {"count": found.count, "number": earlier + which + 1, "match": match}


def _following(pairs: list[tuple[Lane, I32]], after_ns: int) -> tuple[Lane, int]:
    """The first match that begins after an instant, or the first of all: its lane, and its place among that lane's."""
    for begun in ([_begun(*pair, after_ns, "right") for pair in pairs], [0] * len(pairs)):
        ahead = [
            (int(lane.start_ns[rows[place]]), lane.id, place)
            for (lane, rows), place in zip(pairs, begun, strict=True)
            if place < len(rows)
        ]
        if ahead:
            break
    _, lane_id, place = min(ahead)
    return pairs[lane_id][0], place


def _preceding(pairs: list[tuple[Lane, I32]], before_ns: int) -> tuple[Lane, int]:
    """The last match that begins before an instant, or the last of all."""
    for begun in ([_begun(*pair, before_ns, "left") for pair in pairs], [len(rows) for _, rows in pairs]):
        behind = [
            (int(lane.start_ns[rows[place - 1]]), lane.id, place - 1)
            for (lane, rows), place in zip(pairs, begun, strict=True)
            if place
        ]
        if behind:
            break
    _, lane_id, place = max(behind)
    return pairs[lane_id][0], place


def _matches(lanes: Lanes, text: str) -> _Matches:
    known = _FOUND.setdefault(lanes, {})
    found = known.get(text)
    if found is None:
        judged: dict[int, Bool] = {}
        for lane in lanes.lanes:
            if id(lane.names) not in judged:
                judged[id(lane.names)] = np.array(
                    [bool(text) and text in name.lower() for name in lane.names], np.bool_
                )
        rows = tuple(np.flatnonzero(judged[id(lane.names)][lane.name_id]).astype(np.int32) for lane in lanes.lanes)
        while len(known) >= _KEPT:
            known.pop(next(iter(known)), None)
        found = known[text] = _Matches(rows, sum(map(len, rows)))
    return found


def _begun(lane: Lane, rows: I32, at_ns: int, side: Literal["left", "right"]) -> int:
    """How many of a lane's rows begin before an instant; on its right side also those that begin in it."""
    # A key of the array's own type: any other would have the whole array converted.
    return int(rows.searchsorted(np.int32(lane.start_ns.searchsorted(at_ns, side=side))))

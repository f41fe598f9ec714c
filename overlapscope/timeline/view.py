"""The view of some lanes that a browser shows, in the browser's binary form.

    u32 (little-endian) length of the header, which is padded so that the payload begins at a multiple of 4
    header, JSON: {"start", "end", "columns", "names": [...],
                   "lanes": [{"lane", "fill": [{"category", "at"}], "ops": {"count", "at"}}]}
    payload; every "at" is an offset from its beginning and a multiple of 4

A fill is `Uint8[columns]`, as in `fill.share`; categories that cover nothing in view have no fill. The ops are
those at least `WIDE` columns wide, at most `MOST` of a lane (the longest), by start, so that a parent comes before its
children: `Float32 start[count]`, `Float32 length[count]` (ns from the view's start, cut off one span before it and one
span behind it, so that they are exact to a thousandth of a column), `Uint32 row[count]`, `Int32 name[count]` (place in
`names`; -1 where the op is narrower than `NAMED` columns), `Uint8 category[count]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlapscope.base.words import clean
from overlapscope.documents.colors import PATTERNS
from overlapscope.timeline.fill import columns_of, share
from overlapscope.timeline.lane import CATEGORIES, Lanes, TimelineLane
from overlapscope.trace.model import I32


def model(lanes: Lanes) -> dict[str, Any]:
    """Return the lanes and their span as JSON.

    `window` is that of the GPU work of all devices, None without a device. Host times may be far off if the clocks
    disagree.
    """
    windows = [(device.timeline.start_ns, device.timeline.end_ns) for device in lanes.analysis.devices]
    origin = lanes.origin_ns
    return {
        "origin_ns": str(origin),
        "start": lanes.start_ns,
        "end": lanes.end_ns,
        "window": [min(w[0] for w in windows) - origin, max(w[1] for w in windows) - origin] if windows else None,
        "categories": list(CATEGORIES),
        "patterns": [PATTERNS.get(category, "") for category in CATEGORIES],
        "lanes": [
            {
                "id": lane.id,
                "group": clean(lane.group),
                "label": clean(lane.label),
                "kind": lane.kind,
                "depth": lane.depth,
                "device": lane.device,
            }
            for lane in lanes.lanes
        ],
    }


def _at_least(lane: TimelineLane, start_ns: int, end_ns: int, length_ns: int, most: int) -> I32:
    """Return the rows of ops within `[start_ns, end_ns)` that last at least `length_ns` (above 0), by start.

    If there are more than `most`, the longest are returned.
    """
    near, long = lane.reaching(start_ns, end_ns), lane.lasting(length_ns)
    # Over a long span, few ops are long enough; over a short one, few are near.
    rows = long if len(long) < near.stop - near.start else np.arange(near.start, near.stop, dtype=np.int32)
    begin, end = lane.start_ns[rows], lane.end_ns[rows]
    rows = rows[(begin < end_ns) & (end > start_ns) & (end - begin >= length_ns)]
    if len(rows) > most:
        length = lane.end_ns[rows] - lane.start_ns[rows]
        rows = rows[np.argsort(-length, kind="stable")[:most]]
    rows.sort()
    return rows


def at(lanes: Lanes, lane_id: int, start_ns: int, end_ns: int) -> int | None:
    """Return the row of the op nearest to the middle of `[start_ns, end_ns)`.

    The shortest op around the middle wins, or else the nearest op that touches the span; None if none does. An op
    without length counts as 1 ns.

    Raises:
        KeyError: There is no such lane.
    """
    lane = lanes.lane(lane_id)
    end_ns = max(end_ns, start_ns + 1)
    middle = (start_ns + end_ns) // 2
    near = lane.reaching(start_ns, end_ns)
    begin = lane.start_ns[near]
    stop = np.maximum(lane.end_ns[near], begin + 1)
    away = np.maximum(np.maximum(begin - middle, middle - stop + 1), 0)
    touches = np.flatnonzero((begin < end_ns) & (stop > start_ns))
    # Among equally near ops, take the shortest, and among those the last, which is drawn on top.
    order = np.lexsort((-touches, (stop - begin)[touches], away[touches]))
    return near.start + int(touches[order[0]]) if len(order) else None


WIDE, NAMED = 3, 24
MOST = 4_000
_LONGEST_NAME = 120
_NO_OPS = {"count": 0, "at": 0}


def view(lanes: Lanes, start_ns: int, end_ns: int, columns: int, lane_ids: Sequence[int]) -> bytes:
    """Return the view of the given lanes in `[start_ns, end_ns)` at a number of pixel columns.

    Raises:
        KeyError: There is no such lane.
        ValueError: The span or the columns are empty.
    """
    if end_ns <= start_ns or columns < 1:
        raise ValueError("A view is at least 1 ns long and one column wide.")
    grid = columns_of(start_ns, end_ns, columns)
    payload = _Payload()
    names: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    wide_ns = -(-WIDE * (end_ns - start_ns) // columns)
    for lane in map(lanes.lane, lane_ids):
        near = lane.reaching(start_ns, end_ns)
        if near.start >= near.stop:
            shown.append({"lane": lane.id, "fill": (), "ops": _NO_OPS})
            continue
        shares = ((fill.category, share(fill, grid)) for fill in lane.fills)
        fill = [{"category": category, "at": payload.add(part)} for category, part in shares if part is not None]
        rows = _at_least(lane, start_ns, end_ns, wide_ns, MOST)
        at = _add_ops(payload, names, lane, rows, start_ns, end_ns, columns) if len(rows) else 0
        shown.append({"lane": lane.id, "fill": fill, "ops": {"count": len(rows), "at": at}})
    header = msgspec.json.encode(
        {"start": start_ns, "end": end_ns, "columns": columns, "names": list(names), "lanes": shown}
    )
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, *payload.parts])


class _Payload:
    """Concatenated arrays, each at a multiple of 4."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._length = 0

    def add(self, values: NDArray[Any]) -> int:
        """Append the array and return its offset."""
        at, data = self._length, values.tobytes()
        data += bytes(-len(data) % 4)
        self.parts.append(data)
        self._length += len(data)
        return at


@lru_cache(maxsize=4096)
def _label(name: str) -> str:
    return clean(name, _LONGEST_NAME)


def _add_ops(
    payload: _Payload,
    names: dict[str, int],
    lane: TimelineLane,
    rows: NDArray[np.int32],
    start_ns: int,
    end_ns: int,
    columns: int,
) -> int:
    span = end_ns - start_ns
    start, end = lane.start_ns[rows], lane.end_ns[rows]
    begin, stop = (np.minimum(np.maximum(at - start_ns, -span), 2 * span) for at in (start, end))
    at = payload.add(begin.astype("<f4"))
    payload.add((stop - begin).astype("<f4"))
    payload.add(rows.astype("<u4"))
    named = np.flatnonzero(end - start >= -(-NAMED * span // columns))
    place = np.full(len(rows), -1, "<i4")
    place[named] = [
        names.setdefault(_label(lane.names[name]), len(names)) for name in lane.name_id[rows[named]].tolist()
    ]
    payload.add(place)
    payload.add(lane.category[rows])
    return at

"""The view of some lanes that a browser shows, in the browser's binary form.

    u32 (little-endian) length of the header, which is padded so that the payload begins at a multiple of 4
    header, JSON: {"start", "end", "columns", "names": [...],
                   "lanes": [{"lane", "fill": [{"category", "at"}], "ops": {"count", "at"}}]}
    payload; every "at" is an offset from its beginning and a multiple of 4

A fill is `Uint8[columns]`, as in `share`; categories that cover nothing in view have no fill. The ops are those at
least `MIN_OP_COLUMNS` wide, at most the longest `MAX_OPS` of a lane, by start, so that a parent comes before its
children: `Float32 start[count]`, `Float32 length[count]` (ns from the view's start, cut off one span before and one
span after the view, so that they are exact to a thousandth of a column), `Uint32 row[count]`, `Int32 name[count]`
(place in `names`; -1 where the op is narrower than `MIN_NAMED_COLUMNS`), `Uint8 category[count]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from overlapscope.base.columns import U8
from overlapscope.base.words import clean
from overlapscope.documents.colors import PATTERNS
from overlapscope.timeline.lane import CATEGORIES, Fill, Lanes, TimelineLane
from overlapscope.trace.model import I32, I64


def model(lanes: Lanes, *, devices_only: bool = False) -> dict[str, Any]:
    """Return the lanes, or only those of devices, and their span as JSON.

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
            for lane in (lanes.of_devices if devices_only else lanes.lanes)
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


def nearest_op(lanes: Lanes, lane_id: int, start_ns: int, end_ns: int) -> int | None:
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


FULL_SHARE = 255
"""Value of a column that a fill covers as a whole."""


def columns_of(start_ns: int, end_ns: int, columns: int) -> tuple[I64, I64]:
    """Return the edges of the pixel columns of a view, `start + span*k//columns`, and their lengths, at least 1 ns."""
    width_ns, rest = divmod(end_ns - start_ns, columns)
    # span*k//columns, without a product that could overflow.
    at = np.arange(columns + 1, dtype=np.int64)
    cuts = start_ns + width_ns * at + rest * at // columns
    return cuts, np.maximum(np.diff(cuts), 1)


def share(fill: Fill, cuts: I64, length: I64) -> U8 | None:
    """Return how much of each column a set covers: 0 nothing, 255 all of it, otherwise 254ths, rounded up.

    None for a set that covers no part of any column.
    """
    if not fill.touches(int(cuts[0]), int(cuts[-1])):
        return None
    passed = fill.before(cuts)
    # With more columns than nanoseconds, columns overlap.
    ran = np.diff(passed) if cuts[1] > cuts[0] else fill.before(cuts[:-1] + length) - passed[:-1]
    shares: U8 = np.where(ran == length, FULL_SHARE, ((FULL_SHARE - 1) * ran + length - 1) // length).astype(np.uint8)
    return shares if shares.any() else None


MIN_OP_COLUMNS, MIN_NAMED_COLUMNS = 3, 24
"""Minimum widths, in pixel columns, of an op that is sent singly, and of one whose name is sent."""
MAX_OPS = 4_000
"""Maximum number of ops of a lane to send."""
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
    cuts, length = columns_of(start_ns, end_ns, columns)
    payload = bytearray()
    names: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    wide_ns = -(-MIN_OP_COLUMNS * (end_ns - start_ns) // columns)
    for lane in map(lanes.lane, lane_ids):
        near = lane.reaching(start_ns, end_ns)
        if near.start >= near.stop:
            shown.append({"lane": lane.id, "fill": (), "ops": _NO_OPS})
            continue
        shares = ((fill.category, share(fill, cuts, length)) for fill in lane.fills)
        fill = [{"category": category, "at": _add(payload, part)} for category, part in shares if part is not None]
        rows = _at_least(lane, start_ns, end_ns, wide_ns, MAX_OPS)
        at = _add_ops(payload, names, lane, rows, start_ns, end_ns, columns) if len(rows) else 0
        shown.append({"lane": lane.id, "fill": fill, "ops": {"count": len(rows), "at": at}})
    header = msgspec.json.encode(
        {"start": start_ns, "end": end_ns, "columns": columns, "names": list(names), "lanes": shown}
    )
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, payload])


def _add(payload: bytearray, values: NDArray[Any]) -> int:
    """Append an array at a multiple of 4, and return its offset."""
    at = len(payload)
    payload += values.tobytes()
    payload += bytes(-len(payload) % 4)
    return at


@lru_cache(maxsize=4096)
def _label(name: str) -> str:
    return clean(name, _LONGEST_NAME)


def _add_ops(
    payload: bytearray,
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
    at = _add(payload, begin.astype("<f4"))
    _add(payload, (stop - begin).astype("<f4"))
    _add(payload, rows.astype("<u4"))
    named = np.flatnonzero(end - start >= -(-MIN_NAMED_COLUMNS * span // columns))
    place = np.full(len(rows), -1, "<i4")
    place[named] = [
        names.setdefault(_label(lane.names[name]), len(names)) for name in lane.name_id[rows[named]].tolist()
    ]
    _add(payload, place)
    _add(payload, lane.category[rows])
    return at

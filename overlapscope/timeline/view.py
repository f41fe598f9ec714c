"""The part of some lanes that a browser shows, in the binary form it reads.

    u32 (little-endian) length of the header, which is padded so that the payload begins at a multiple of 4
    header, JSON: {"start", "end", "columns", "names": [...],
                   "lanes": [{"lane", "fill": [{"category", "at"}], "ops": {"count", "at"}}]}
    payload; every "at" is an offset from its beginning and a multiple of 4

A fill is `Uint8[columns]`, as `columns.shares` says; categories that cover nothing in view have none. The ops are
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
from overlapscope.timeline.columns import columns_of, shares
from overlapscope.timeline.lane import Lane, Lanes
from overlapscope.timeline.wide import at_least

WIDE, NAMED = 3, 24
MOST = 4_000
_LONGEST_NAME = 120
_NO_OPS = {"count": 0, "at": 0}


def view(lanes: Lanes, start_ns: int, end_ns: int, columns: int, lane_ids: Sequence[int]) -> bytes:
    """What the given lanes show of `[start_ns, end_ns)` on so many pixel columns.

    Raises KeyError where there is no such lane, ValueError where the span or the columns are empty.
    """
    if end_ns <= start_ns or columns < 1:
        raise ValueError("A view is at least 1 ns long and one column wide.")
    grid = columns_of(start_ns, end_ns, columns)
    payload = _Payload()
    names: dict[str, int] = {}
    shown: list[dict[str, Any]] = []
    wide_ns = -(-WIDE * (end_ns - start_ns) // columns)
    for lane in map(lanes.lane, lane_ids):
        first_ns, last_ns = lane.reach_ns
        if first_ns >= end_ns or last_ns <= start_ns:
            shown.append({"lane": lane.id, "fill": (), "ops": _NO_OPS})
            continue
        fill = [
            {"category": one.category, "at": payload.add(share)}
            for one in lane.fills
            if (share := shares(one, grid)) is not None
        ]
        rows = at_least(lane, start_ns, end_ns, wide_ns, MOST)
        at = _add_ops(payload, names, lane, rows, start_ns, end_ns, columns) if len(rows) else 0
        shown.append({"lane": lane.id, "fill": fill, "ops": {"count": len(rows), "at": at}})
    header = msgspec.json.encode(
        {"start": start_ns, "end": end_ns, "columns": columns, "names": list(names), "lanes": shown}
    )
    header += b" " * (-len(header) % 4)
    return b"".join([len(header).to_bytes(4, "little"), header, *payload.parts])


class _Payload:
    """Arrays one after another, each at a multiple of 4."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._length = 0

    def add(self, values: NDArray[Any]) -> int:
        """Append the array; its offset."""
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
    lane: Lane,
    rows: NDArray[np.int32],
    start_ns: int,
    end_ns: int,
    columns: int,
) -> int:
    span = end_ns - start_ns
    start, end = lane.start_ns[rows], lane.end_ns[rows]
    begin = np.clip(start - start_ns, -span, 2 * span)
    stop = np.clip(end - start_ns, -span, 2 * span)
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

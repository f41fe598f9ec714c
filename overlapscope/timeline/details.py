"""Everything known of one op, event or piece of a lane."""

from __future__ import annotations

from typing import Any

from overlapscope.base.words import clean
from overlapscope.timeline import details_gpu, details_host
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.lane import Lanes


def op(lanes: Lanes, lane_id: int, row: int) -> dict[str, Any]:
    """One row of a lane, as JSON: `{"lane", "row", "start", "end", "title", "category", "facts", "arrows"}`.

    `facts` are pairs of plain texts; a copy that is exposed has `causes` too: the ns of each cause.

    Raises KeyError where there is no such lane or row.
    """
    lane = lanes.lane(lane_id)
    if not 0 <= row < len(lane):
        raise KeyError(f"row {row} of lane {lane_id}")
    about = {
        "stream": details_gpu.of_op,
        "overlap": details_gpu.of_piece,
        "steps": details_gpu.of_period,
        "ranges": details_gpu.of_period,
        "host": details_host.of_event,
    }[lane.kind](lanes, lane, row)
    return {
        "lane": lane.id,
        "row": row,
        "start": int(lane.start_ns[row]),
        "end": int(lane.end_ns[row]),
        "title": clean(lane.name(row)),
        "category": CATEGORIES[lane.category[row]],
    } | about

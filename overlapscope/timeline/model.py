"""What a browser must know of a trace before it asks for any view."""

from __future__ import annotations

from typing import Any

from overlapscope.base.words import clean
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.lane import Lanes


def model(lanes: Lanes) -> dict[str, Any]:
    """The lanes and their span, as JSON. `window` is that of the GPU work of all devices: host times may lie far off it
    where the clocks disagree. None without a device."""
    windows = [(one.timeline.start_ns, one.timeline.end_ns) for one in lanes.analysis.devices]
    origin = lanes.origin_ns
    return {
        "origin_ns": str(origin),
        "start": lanes.start_ns,
        "end": lanes.end_ns,
        "window": [min(w[0] for w in windows) - origin, max(w[1] for w in windows) - origin] if windows else None,
        "categories": list(CATEGORIES),
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

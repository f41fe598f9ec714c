"""Figures of any span of a device, found by a look-up in each set, however long the span."""

from __future__ import annotations

from collections import Counter

import numpy as np

from overlapscope.analysis.device import period
from overlapscope.analysis.figures import Period
from overlapscope.base.kept import kept
from overlapscope.catalog.causes import COMM_RANK, COPY_CAUSES, IDLE_CAUSES, OTHER_RANK
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.fill import Fill, fill_of
from overlapscope.timeline.lane import Lanes

_SETS = ("comm", "h2d", "d2h", "p2p", "other", "exposed_comm", "exposed_h2d", "exposed_d2h", "exposed_p2p")
"""Sets of a `Timeline` that the overlap lane does not include."""


def span(lanes: Lanes, device: int, start_ns: int, end_ns: int) -> Period:
    """Return exact buckets, engines, overlap and causes of a span, cut off at the device's window.

    The given times are relative to the origin of the lanes. The window of the result is absolute, as in a report.

    Raises:
        KeyError: The trace has no such device.
    """
    analysis = lanes.device(device)
    first, last = (at - lanes.origin_ns for at in (analysis.timeline.start_ns, analysis.timeline.end_ns))
    start = min(max(start_ns, first), last)
    end = min(max(end_ns, start), last)
    bounds = np.array([start, end])
    ran: Counter[str] = Counter()
    for name, fill in _fills(lanes, device).items():
        before, behind = fill.before(bounds).tolist()
        ran[name] = behind - before

    # The overlap lane partitions the window, as `build._overlap` describes.
    exposed_copy = sum(ran[f"exposed-copy:{cause}"] for cause in COPY_CAUSES)
    copy = ran["hidden-copy"] + exposed_copy
    sm = ran["compute"] + ran["hidden-copy"] + ran["exposed-comm"]
    lengths = Counter(
        {
            **ran,
            "compute": sm - ran["exposed_comm"],
            "sm": sm,
            "copy": copy,
            "busy": sm + exposed_copy,
            "both": ran["h2d"] + ran["d2h"] - copy,
            "comm_hidden": ran["comm"] - ran["exposed_comm"],
            "exposed_copy": exposed_copy,
            "exposed_other": ran["exposed-other"],
            "idle": sum(ran[f"idle:{cause}"] for cause in IDLE_CAUSES),
        }
    )
    return period("", start + lanes.origin_ns, end + lanes.origin_ns, lengths)


@kept()
def _fills(lanes: Lanes, device: int) -> dict[str, Fill]:
    """Return the nonempty categories of a device's overlap lane, causes that it doesn't show, and `_SETS`."""
    (overlap,) = (lane for lane in lanes.lanes if lane.kind == "overlap" and lane.device == device)
    fills = {CATEGORIES[fill.category]: fill for fill in overlap.fills}
    for name in _SETS:
        ran = getattr(lanes.device(device).timeline, name)
        if len(ran.starts):
            fills[name] = fill_of(-1, ran.starts - lanes.origin_ns, ran.ends - lanes.origin_ns)
    comm, other = lanes.device(device).exposed_comm, lanes.device(device).exposed_other
    for subject, pieces, ranks in (("exposed-comm", comm, COMM_RANK), ("exposed-other", other, OTHER_RANK)):
        for cause, rank in ranks.items():
            ran = pieces.of_cause(rank)
            if len(ran.starts):
                fills[f"{subject}:{cause}"] = fill_of(-1, ran.starts - lanes.origin_ns, ran.ends - lanes.origin_ns)
    return fills

"""The figures of any span of a device."""

from __future__ import annotations

from overlapscope.analysis.device import measure
from overlapscope.analysis.results import Period
from overlapscope.lanes.lane import Lanes


def span(lanes: Lanes, device: int, start_ns: int, end_ns: int) -> Period:
    """Buckets, engines, overlap and causes of a span, exact, cut off at the device's window.

    The times given are relative to the origin of the lanes; the window of the answer is absolute, as in a report.

    Raises KeyError where the trace has no such device.
    """
    return measure(lanes.device(device), start_ns + lanes.origin_ns, end_ns + lanes.origin_ns)

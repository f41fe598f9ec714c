"""The page Idle and stalls: why the GPU was idle, and which calls kept the host from launching work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dash.development.base_component import Component

from overlapscope.analysis.results import Device
from overlapscope.catalog.causes import Subject
from overlapscope.dashboard import parts
from overlapscope.dashboard.context import PageContext
from overlapscope.report import lists
from overlapscope.report.tables import causes_of

LEAD = "When the GPU had nothing to compute, why, and which calls kept the host from launching."

_OTHERS: Final[tuple[Subject, ...]] = ("exposed-comm", "exposed-other")
"""Further kinds of time in which nothing computes, shown if there is any."""
_STALLS = (
    "Calls in which the host waited. They cost the GPU idle time that follows, because the host could launch nothing "
    "meanwhile. Waiting while the GPU is busy costs nothing."
)
_NO_LINES = " To see the line of code of each, record with overlapscope run --stacks."


def layout(context: PageContext, device: Device) -> Iterator[Component]:
    """Yield the parts of the page."""
    yield parts.causes(context, device, "idle")
    yield from (parts.causes(context, device, other) for other in _OTHERS if causes_of(device, other))
    lined, stalls = any(stall.where for stall in device.host_stalls), lists.stalls(context.section, device)
    note = parts.frame_note(context, _STALLS if lined else f"{_STALLS}{_NO_LINES}")
    yield parts.grid_panel(context, stalls, "idle-stalls", note=note, nothing="No blocking call was recorded.")
    yield from parts.host(context)

"""The page Kernels and ops: how long each kernel takes, how much of it nothing hides, and who launches it."""

from __future__ import annotations

from dash.development.base_component import Component

from overlapscope.analysis.results import Device
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks
from overlapscope.dashboard.context import PageContext
from overlapscope.report import lists

_MOST = 2_000
"""Rows of the table of kernels."""


def layout(context: PageContext, device: Device) -> Component:
    """Return the page."""
    lead = parts.lead(context, "What the GPU computes, the longest first. A row leads to its longest kernel.")
    if not device.kernels:
        return parts.page("Kernels and ops", parts.panel("Kernels", parts.empty("No kernel was recorded.")), lead=lead)
    kernels = lists.kernels(context.section, device, _MOST)
    return parts.page(
        "Kernels and ops",
        parts.grid_panel(context, kernels, "kernels-table", note=kernels.note),
        parts.grid_panel(context, lists.ops(context.section, device), "ops-table"),
        lead=lead,
    )


callbacks = Callbacks()
callbacks.grids("kernels-table", "ops-table")

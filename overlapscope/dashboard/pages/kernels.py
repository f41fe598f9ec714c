"""The page Kernels and ops: how long each kernel takes, how much of it nothing hides, and who launches it."""

from __future__ import annotations

from collections.abc import Iterator

from dash.development.base_component import Component

from overlapscope.analysis.results import Device
from overlapscope.dashboard import parts
from overlapscope.dashboard.context import PageContext
from overlapscope.report import lists

LEAD = "What the GPU computes, the longest first. A row leads to its longest kernel."

_MAX_ROWS = 2_000
"""Rows of the table of kernels."""


def layout(context: PageContext, device: Device) -> Iterator[Component]:
    """Yield the parts of the page."""
    kernels, nothing = lists.kernels(context.section, device, _MAX_ROWS), "No kernel was recorded."
    note = parts.frame_note(context, kernels.note)
    yield parts.grid_panel(context, kernels, "kernels-table", note=note, nothing=nothing)
    yield parts.grid_panel(context, lists.ops(context.section, device), "ops-table", nothing=nothing)

"""The page Copies: how fast they are, which are exposed, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dash
from dash import Input
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import EachCopy, issuers, list_copies
from overlapscope.analysis.figures import Window
from overlapscope.analysis.results import Device
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.report import charts, lists

LEAD = "What is copied between host and device, how fast, and how much of it no kernel hides."

_MAX_ROWS = 200
"""Rows of the table of exposed copies."""


def layout(context: PageContext, device: Device) -> Iterator[Component]:
    """Yield the parts of the page."""
    yield parts.causes(context, device, "exposed-copy")
    analysis = context.device_analysis
    copies = None if analysis is None else list_copies(analysis)
    if analysis is not None and copies is not None and len(copies):
        yield _bandwidth(context, copies)
        yield from _worst(context, analysis, copies)
    groups = replace(lists.copies(context.section, device), title="Copies by direction, memory and stream")
    note, nothing = parts.frame_note(context), "Nothing is copied in this recording."
    yield parts.grid_panel(context, groups, "copies-groups", note=note, nothing=nothing)


def _bandwidth(context: PageContext, copies: EachCopy) -> Component:
    drawn, sized = len(charts.choose(copies)), int((copies.bytes > 0).sum())
    note = "Each copy by size and speed. A click shows it in the timeline. Open markers are pageable memory. "
    note += charts.link_note(copies)
    if drawn < sized:
        note += f" {drawn:,} of {sized:,} copies are drawn, those with the most exposed time among them."
    if sized < len(copies):
        note += f" {len(copies) - sized:,} copies without a recorded size are not drawn."
    return render.panel(
        "Bandwidth against size",
        render.graph(charts.bandwidth(context.section, copies, context.dark), "copies-bandwidth", name="bandwidth"),
        note=note,
    )


def _worst(context: PageContext, analysis: DeviceAnalysis, copies: EachCopy) -> Iterator[Component]:
    numbers = lists.most_exposed(copies, _MAX_ROWS)
    if len(numbers):
        issued = issuers(context.opened.analysis.trace, analysis, copies.row[numbers])
        table = lists.worst_copies(context.section, copies, numbers, issued)
        exposed = int((copies.exposed_ns > 0).sum())
        listed = f"The {len(numbers)} worst of {exposed:,}. " if len(numbers) < exposed else ""
        note = f"{listed}Where several copies ran at once, the time counts for the one that decided its cause."
        yield parts.grid_panel(context, table, "copies-worst", note=note)


callbacks = Callbacks()


@callbacks.leads(Input("copies-bandwidth", "clickData"))
def show_copy(context: PageContext, click: Click | None) -> Any:
    """Return the address of the copy in the timeline."""
    row, analysis = click.first(int) if click else None, context.device_analysis
    if row is None or analysis is None or not 0 <= row < len(analysis.timeline.ops):
        return dash.no_update
    ops = analysis.timeline.ops
    return context.timeline_href(Window(start_ns=int(ops.start_ns[row]), end_ns=int(ops.end_ns[row])))

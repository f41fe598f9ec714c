"""The page Copies: how fast they are, which are exposed, and why."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input
from dash.development.base_component import Component
from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import EachCopy, issuers, list_copies
from overlapscope.analysis.figures import Window
from overlapscope.analysis.results import Device
from overlapscope.base.words import duration, part_of
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.render import graph
from overlapscope.report import copy_chart, lists

_LISTED = 200
"""Rows of the table of exposed copies."""


def layout(context: PageContext, device: Device) -> Component:
    """Return the page."""
    analysis = context.device_analysis
    if analysis is None:
        return parts.unusable(context)
    copies = list_copies(analysis)
    title = "Copies"
    lead = parts.lead(context, "What is copied between host and device, how fast, and how much of it no kernel hides.")
    groups = replace(lists.copies(context.section, device), title="Copies by direction, memory and stream")
    if not len(copies):
        nothing = parts.empty("None took any time in this recording, so no copy can be exposed.")
        # Peer copies, and copies of a time rounded to nothing, are listed all the same.
        listed = [parts.grid_panel(context, groups, "copies-groups")] if groups.rows else []
        return parts.page(title, parts.panel("Copies between host and device", nothing), *listed, lead=lead)
    return parts.page(
        title,
        _exposed(context, device),
        _bandwidth(context, copies),
        *_worst(context, analysis, copies),
        parts.grid_panel(context, groups, "copies-groups"),
        lead=lead,
    )


def _exposed(context: PageContext, device: Device) -> Component:
    copied, exposed = device.overlap.copy_ns, device.buckets.exposed_copy_ns
    title = "Exposed copy by cause"
    if not exposed:
        return parts.panel(
            title,
            parts.empty(f"All {duration(copied)} of copies are hidden under kernels."),
        )
    when = "In each step no" if context.section.steps else "No"
    note = f"{when} kernel runs beside {part_of(exposed, copied)} of copies."
    return parts.panel(title, *parts.causes(context, device, "exposed-copy", "copies"), note=note)


def _bandwidth(context: PageContext, copies: EachCopy) -> Component:
    drawn = copy_chart.choose(copies)
    note = "Each copy by size and speed. A click shows it in the timeline. Open markers are pageable memory. "
    note += copy_chart.link_note(copies)
    if len(drawn.row) < drawn.of:
        note += (
            f" {len(drawn.row):,} of {drawn.of:,} copies are drawn; the others lie next to copies of their kind. "
            "The smallest, largest, slowest and fastest are all drawn."
        )
    if drawn.of < len(copies):
        note += f" {len(copies) - drawn.of:,} copies without a recorded size are not drawn."
    return parts.panel(
        "Bandwidth against size",
        graph(copy_chart.bandwidth(context.section, copies, context.dark), "copies-bandwidth", name="bandwidth"),
        note=note,
    )


def _worst(context: PageContext, analysis: DeviceAnalysis, copies: EachCopy) -> list[Component]:
    numbers = lists.most_exposed(copies, _LISTED)
    if not len(numbers):
        return []
    issued = issuers(context.opened.analysis.trace, analysis, copies.row[numbers])
    table = lists.worst_copies(context.section, copies, numbers, issued)
    exposed = int((copies.exposed_ns > 0).sum())
    listed = f"The {len(numbers)} worst of {exposed:,}. " if len(numbers) < exposed else ""
    note = f"{listed}Where several copies ran at once, the time counts for the one that decided its cause."
    return [parts.grid_panel(context, table, "copies-worst", note=note)]


callbacks = Callbacks()
callbacks.grids("copies-evidence", "copies-worst", "copies-groups")


@callbacks.leads(Input("copies-bandwidth", "clickData"))
def show_copy(context: PageContext, click: Click | None) -> Any:
    """Return the address of the copy in the timeline."""
    row, analysis = click.number if click else None, context.device_analysis
    if row is None or analysis is None or not 0 <= row < len(analysis.timeline.ops):
        return dash.no_update
    ops = analysis.timeline.ops
    return context.timeline_href(Window(start_ns=int(ops.start_ns[row]), end_ns=int(ops.end_ns[row])))

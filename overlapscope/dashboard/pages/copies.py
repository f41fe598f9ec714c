"""Copies: how fast they are, which are exposed, and why."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State
from dash.development.base_component import Component

from overlapscope.analysis.each_copy import EachCopy, issuers, list_copies, peak_gb_per_s
from overlapscope.analysis.results import Device, Window
from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.posts import Click
from overlapscope.dashboard.shown import Shown
from overlapscope.report import grids
from overlapscope.report.scale import unit_of
from overlapscope.trace.model import Kind
from overlapscope.views import charts
from overlapscope.views.charts.bandwidth import choose

_LISTED = 200
"""Rows of the table of exposed copies."""


def layout(shown: Shown) -> Component:
    """The page."""
    device = parts.device_of(shown)
    if device is None or not shown.section.usable:
        return parts.unusable(shown)
    copies = list_copies(device)
    title = "Copies"
    lead = parts.lead(shown, "What moves between host and device, how fast, and what of it no kernel hides.")
    if not len(copies):
        nothing = "Nothing was copied between host and device in this recording, so no copy can be exposed."
        return parts.page(title, parts.panel("No copies", parts.empty(nothing)), lead=lead)
    return parts.page(
        title,
        _exposed(shown, device.result),
        _bandwidth(shown, copies),
        *_worst(shown, copies),
        parts.panel(
            "Copies by direction, memory and stream",
            parts.grid(shown, grids.copy_groups(shown.section, device.result), "copies-groups"),
            beside=parts.csv_button("copies-groups"),
        ),
        lead=lead,
    )


def _exposed(shown: Shown, device: Device) -> Component:
    unit, exposed = unit_of(shown.section, device.overlap.copy_ns), device.buckets.exposed_copy_ns
    title = "Exposed copy by cause"
    if not exposed:
        return parts.panel(
            title,
            parts.empty(f"All {unit.text(device.overlap.copy_ns)} of copies ran beside kernels: nothing is exposed."),
        )
    return parts.panel(
        title,
        parts.causes(shown, "exposed-copy", "copies-causes"),
        dmc.Group(
            [dmc.Text("Where it comes from", fw=600), parts.csv_button("copies-evidence")],
            justify="space-between",
            my="xs",
        ),
        parts.grid(shown, grids.evidence(shown.section, device, "exposed-copy"), "copies-evidence"),
        note=f"{unit.of(exposed, device.overlap.copy_ns)} of copies had no kernel beside them.",
    )


def _bandwidth(shown: Shown, copies: EachCopy) -> Component:
    drawn = choose(copies)
    note = "Each copy by size and speed; a click shows it in the timeline. Open markers are pageable memory. "
    if any(peak_gb_per_s(copies, direction) is not None for direction in (Kind.H2D, Kind.D2H)):
        note += (
            "A dashed line is the best rate that pinned memory reached in this recording, not the link's data sheet."
        )
    else:
        note += "No pinned memory was copied, so this recording does not show what the link can give."
    if len(drawn.row) < drawn.of:
        note += (
            f" {len(drawn.row):,} of {drawn.of:,} copies are drawn; each of the others lies next to one of its kind. "
            "The smallest, largest, slowest and fastest are all there."
        )
    if drawn.of < len(copies):
        note += f" {len(copies) - drawn.of:,} without a recorded size are not drawn."
    return parts.panel(
        "Bandwidth against size",
        parts.graph(charts.bandwidth(shown.section, copies, shown.dark), "copies-bandwidth", name="bandwidth"),
        note=note,
    )


def _worst(shown: Shown, copies: EachCopy) -> list[Component]:
    device = parts.device_of(shown)
    numbers = grids.most_exposed(copies, _LISTED)
    if device is None or not len(numbers):
        return []
    issued = issuers(shown.opened.analysis.trace, device, copies.row[numbers])
    table = grids.worst_copies(shown.section, copies, numbers, issued)
    exposed = int((copies.exposed_ns > 0).sum())
    listed = f"The {len(numbers)} worst of {exposed:,}. " if len(numbers) < exposed else ""
    return [
        parts.panel(
            "Copies with the most exposed time",
            parts.grid(shown, table, "copies-worst"),
            beside=parts.csv_button("copies-worst"),
            note=f"{listed}Where several copies ran at once, the time is counted to the one that decided its cause.",
        )
    ]


def register(app: dash.Dash, library: Library) -> None:
    """The page's callbacks."""
    parts.register_csv(app, "copies-evidence", "copies-worst", "copies-groups")

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("copies-bandwidth", "clickData"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def show_copy(click: Click | None, pathname: str | None, search: str | None) -> Any:
        clicked = parts.clicked_number(click)
        shown = parts.shown_at(app, library, pathname, search)
        device = parts.device_of(shown) if shown else None
        if clicked is None or shown is None or device is None or not 0 <= clicked < len(device.timeline.ops):
            return dash.no_update
        ops = device.timeline.ops
        window = Window(start_ns=int(ops.start_ns[clicked]), end_ns=int(ops.end_ns[clicked]))
        return parts.timeline_href(shown, window)

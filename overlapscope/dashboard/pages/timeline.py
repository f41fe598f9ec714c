"""The page Timeline: every stream and host thread at any zoom, and the figures of a selected span.

This is the frame; drawing and interaction are in `overlapscope/timeline/browser`.
"""

from __future__ import annotations

import dash_mantine_components as dmc
import msgspec
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope import timeline as lanes
from overlapscope.analysis.strip import most_informative
from overlapscope.base.words import clean, unit_for
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Number, Whole
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.model import Span, Text, columns
from overlapscope.errors import OverlapscopeError
from overlapscope.report.tables import bar, cause_tables, overlap_lines, overlap_table, partition_table
from overlapscope.timeline import Lanes

_MARGIN_DIVISOR = 50
"""Part of the first view that is shown on either side of it."""
_MOUNT = "function(config) { window.overlapscope.mountDashTimeline(config); return window.dash_clientside.no_update; }"


def layout(context: PageContext) -> Component:
    """Return the page."""
    drawn = context.opened.lanes
    if not drawn.lanes:
        return parts.page("Timeline", render.panel("Nothing to draw", parts.empty("This trace holds no event at all.")))
    device = context.section.device
    config = {
        "trace": context.opened.id,
        "of": context.url.of,
        "base": context.url.base,
        "device": device.device if device else None,
        "model": lanes.model(drawn),
        "palette": context.colors,
        "view": _first_view(context),
    }
    return dmc.Stack(
        [
            dmc.Group(
                [
                    dmc.Title("Timeline", order=2),
                    dmc.Text(parts.which_program(context), c="dimmed", size="sm", id="timeline-program"),
                ],
                className="timeline-heading",
            ),
            html.Div(id="timeline", className="timeline-page"),
            html.Div(
                [
                    dmc.Paper(html.Div(id="timeline-details"), withBorder=True, p="md"),
                    dmc.Paper(html.Div(_hint(), id="timeline-span"), withBorder=True, p="md"),
                ],
                className="timeline-panels",
            ),
            dcc.Store(id="timeline-selection"),
            dcc.Store(id="timeline-config", data=config),
            html.Div(id="timeline-mounted", hidden=True),
        ],
        gap="sm",
    )


def _first_view(context: PageContext) -> dict[str, int] | None:
    """Return the median step with a margin, relative to the lanes' origin; None without a device."""
    analysis, origin = context.device_analysis, context.opened.lanes.origin_ns
    if analysis is None:
        return None
    window = most_informative(analysis.result).window
    margin = (window.end_ns - window.start_ns) // _MARGIN_DIVISOR
    return {"start": window.start_ns - margin - origin, "end": window.end_ns + margin - origin}


class _Config(msgspec.Struct, frozen=True):
    """The timeline that a browser shows."""

    trace: str
    of: str | None = None
    device: Whole | None = None


class _Selection(msgspec.Struct, frozen=True):
    """The selected span, in nanoseconds since `Lanes.origin_ns`."""

    trace: str
    start: Number
    end: Number
    device: Whole | None = None


callbacks = Callbacks()
callbacks.in_browser(_MOUNT, Output("timeline-mounted", "children"), Input("timeline-config", "data"))


@callbacks.add(
    Output("timeline-span", "children"),
    Input("timeline-selection", "data"),
    State("timeline-config", "data"),
    prevent_initial_call=True,
)
def show_span(context: PageContext, selection: _Selection | None, config: _Config | None) -> Component:
    """Return the figures of the selected span."""
    if selection is None or config is None or selection.trace != config.trace:
        return _hint()
    try:
        drawn = context.library.wait(config.trace).of(config.of).lanes
    except OverlapscopeError as error:
        return parts.empty(clean(str(error), 500))
    device = config.device if selection.device is None else selection.device
    try:
        return _span(context, drawn, -1 if device is None else device, int(selection.start), int(selection.end))
    except KeyError:
        return parts.empty("Nothing ran on a GPU in this trace, so a selected time has no figures.")


def _hint() -> Component:
    hint = "Drag over the lanes to select a stretch of time: what ran in it, its overlap and its causes are shown here."
    return html.P(hint, className="tl-hint")


def _span(context: PageContext, drawn: Lanes, device: int, start_ns: int, end_ns: int) -> Component:
    """Return a device's activity in a span. Raises KeyError if there is no such device."""
    period = lanes.span(drawn, device, start_ns, end_ns)
    if not period.span_ns:
        return parts.empty(f"The GPU work of device {device} lies outside of the selected time.")
    unit = unit_for(period.span_ns)
    cut = period.span_ns < end_ns - start_ns
    of = f"{unit.text(period.span_ns)} on device {device}"
    note = f"{of}: the part of the selection in which it was recorded" if cut else of
    where_time_goes, figures = partition_table("Where the time goes", "all", unit, period), overlap_lines(period, unit)
    title = Text((Span("Selected time ", strong=True), Span(note, "muted")))
    shown = (where_time_goes, *cause_tables(period, unit), overlap_table(figures))
    return html.Div(render.draw([title, bar(period, unit), *columns(shown)], context.dark))

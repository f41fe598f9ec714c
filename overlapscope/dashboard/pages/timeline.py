"""The page Timeline: every stream and host thread at any zoom, and the figures of a selected span.

This is the frame; drawing and interaction are in `overlapscope/timeline/browser`.
"""

from __future__ import annotations

from collections.abc import Sequence

import dash_mantine_components as dmc
import msgspec
from dash import Input, Output, State, dcc, html
from dash.development.base_component import Component

from overlapscope import timeline as lanes
from overlapscope.analysis.figures import Period, efficiency_shown, hidden_copy_shown
from overlapscope.analysis.results import by_subject, partition
from overlapscope.analysis.strip import most_informative
from overlapscope.base.words import Unit, clean, percent, share, unit_for
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Number, Whole
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.model import Bar, Part
from overlapscope.errors import OverlapscopeError
from overlapscope.report.charts import CAUSE_TITLES
from overlapscope.timeline import Lanes

_MARGIN = 50
"""Part of the first view that is shown on either side of it."""
_MOUNT = "function(config) { window.overlapscope.mountDashTimeline(config); return window.dash_clientside.no_update; }"


def layout(context: PageContext) -> Component:
    """Return the page."""
    drawn = context.opened.lanes
    if not drawn.lanes:
        return parts.page("Timeline", parts.panel("Nothing to draw", parts.empty("This trace holds no event at all.")))
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
    margin = (window.end_ns - window.start_ns) // _MARGIN
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
    unit, overlap = unit_for(period.span_ns), period.overlap
    cut = period.span_ns < end_ns - start_ns
    of = f"{unit.text(period.span_ns)} on device {device}"
    note = f"{of}: the part of the selection in which it was recorded" if cut else of
    facts = [
        ("overlap efficiency", percent(efficiency_shown(period))),
        ("hidden copy", percent(hidden_copy_shown(period))),
        ("copies", unit.text(overlap.copy_ns)),
        ("both directions at once", unit.text(overlap.h2d_d2h_ns)),
    ]
    if overlap.comm_compute_pct is not None:
        facts.append(("comm under compute", percent(overlap.comm_compute_pct)))
    buckets = [_part(name, ns, period, unit, BUCKETS[name].id) for name, ns in partition(period).items()]
    tables = [_amounts("Where the time goes", buckets, unit, context.dark)]
    for subject, by_cause in by_subject(period).items():
        causes = sorted(((cause, ns) for cause, ns in by_cause.items() if ns), key=lambda pair: -pair[1])
        if causes:
            amounts = [_part(cause, ns, period, unit, f"{subject}:{cause}") for cause, ns in causes]
            tables.append(_amounts(CAUSE_TITLES[subject], amounts, unit, context.dark))
    children: list[Component] = [
        html.Div([html.Strong("Selected time"), html.Span(note, className="timeline-note")]),
        *render.draw([Bar(tuple(buckets))], context.dark),
        html.Div(tables, className="timeline-tables"),
        html.Dl([html.Div([html.Dt(name), html.Dd(value)]) for name, value in facts], className="tl-facts"),
    ]
    return html.Div(children, className="timeline-figures")


def _part(name: str, ns: int, period: Period, unit: Unit, color: str) -> Part:
    return Part(name, ns, unit.text(ns), share(ns, period.span_ns), color)


def _amounts(title: str, amounts: Sequence[Part], unit: Unit, dark: bool) -> Component:
    rows = [
        html.Tr(
            [
                html.Td(render.dotted(part.name, part.color, dark)),
                html.Td(unit.number(part.amount)),
                html.Td(part.share),
            ]
        )
        for part in amounts
    ]
    head = html.Thead(html.Tr([html.Th(title), html.Th(unit.name), html.Th("of the time")]))
    return html.Table([head, html.Tbody(rows)], className="timeline-amounts")

"""Steps: each step's buckets and efficiency, the unusual ones marked; and the ranges."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input, Output, State
from dash.development.base_component import Component

from overlapscope.analysis.outliers import DEVIATIONS, FEWEST, LEAST_SHARE, find_outliers
from overlapscope.analysis.results import Device
from overlapscope.base.words import plural
from overlapscope.dashboard import parts
from overlapscope.dashboard.library import Library
from overlapscope.dashboard.posts import Click
from overlapscope.dashboard.shown import Shown
from overlapscope.report import grids
from overlapscope.views import charts
from overlapscope.views.charts.steps import chosen


def layout(shown: Shown) -> Component:
    """The page."""
    device = shown.section.device
    if device is None or not shown.section.usable:
        return parts.unusable(shown)
    return parts.page(
        "Steps",
        *(_steps(shown, device) if device.steps else [_no_steps()]),
        _ranges(shown, device),
        lead=parts.lead(shown, "Whether every step is like the others, and where the time of each goes."),
    )


def _steps(shown: Shown, device: Device) -> list[Component]:
    drawn = chosen(device)
    left = f" {len(drawn):,} of {len(device.steps):,} are drawn, all outliers among them." * (
        len(drawn) < len(device.steps)
    )
    return [
        parts.panel(
            "Each step",
            parts.graph(charts.steps(shown.section, shown.dark), "steps-chart", name="steps"),
            note=f"{_outliers(device)} A click on a bar shows the step in the timeline.{left}",
        ),
        parts.panel(
            "Steps",
            parts.grid(shown, grids.each_step(shown.section, device), "steps-table"),
            beside=parts.csv_button("steps-table"),
        ),
    ]


def _outliers(device: Device) -> str:
    count = len(device.steps)
    if count < FEWEST:
        return f"{plural(count, 'step')}: too few to call one unusual."
    unusual = int(find_outliers(device.steps).sum())
    rule = f"more than {DEVIATIONS:g} scaled median absolute deviations and {LEAST_SHARE:.0%} from the median span"
    if not unusual:
        return f"{plural(count, 'step')}, none unusual (none is {rule})."
    return f"{plural(unusual, 'outlier')} of {plural(count, 'step')}, marked with a triangle: {rule}."


def _no_steps() -> Component:
    return parts.panel(
        "No steps",
        parts.empty(
            "No step is marked in this recording, so figures are of the whole window.",
            [
                "To mark them, call ",
                dmc.Code("prof.step()"),
                " (torch.profiler) or ",
                dmc.Code("overlapscope.step()"),
                " (overlapscope run) at the end of each iteration.",
            ],
        ),
    )


def _ranges(shown: Shown, device: Device) -> Component:
    if not device.ranges:
        return parts.panel(
            "Ranges",
            parts.empty(
                [
                    "No range is marked. To see forward, backward and the like by themselves: ",
                    dmc.Code('with torch.profiler.record_function("forward"): ...'),
                ]
            ),
        )
    return parts.panel(
        "Ranges",
        parts.grid(shown, grids.ranges(shown.section, device), "steps-ranges"),
        beside=parts.csv_button("steps-ranges"),
        note="What record_function marked, by name: all occurrences added up. Ranges nest, so their times overlap.",
    )


def register(app: dash.Dash, library: Library) -> None:
    """The page's callbacks."""
    parts.register_csv(app, "steps-table", "steps-ranges")

    @app.callback(
        Output("url", "href", allow_duplicate=True),
        Input("steps-chart", "clickData"),
        State("url", "pathname"),
        State("url", "search"),
        prevent_initial_call=True,
    )
    def show_step(click: Click | None, pathname: str | None, search: str | None) -> Any:
        clicked = parts.clicked_number(click)
        shown = parts.shown_at(app, library, pathname, search)
        device = shown.section.device if shown else None
        if clicked is None or shown is None or device is None or not 0 <= clicked < len(device.steps):
            return dash.no_update
        return parts.timeline_href(shown, device.steps[clicked].window)

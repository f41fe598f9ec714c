"""The page Steps: buckets and efficiency of each step, outliers, and ranges."""

from __future__ import annotations

from typing import Any

import dash
import dash_mantine_components as dmc
from dash import Input
from dash.development.base_component import Component

from overlapscope.analysis.results import Device
from overlapscope.analysis.steps import DEVIATIONS, FEWEST, LEAST_SHARE, find_outliers
from overlapscope.base.words import plural
from overlapscope.dashboard import parts
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.dashboard.render import graph
from overlapscope.report import charts, lists
from overlapscope.report.charts import drawn_steps
from overlapscope.report.sentences import none_whole


def layout(context: PageContext, device: Device) -> Component:
    """Return the page."""
    return parts.page(
        "Steps",
        *(_steps(context, device) if device.steps else [_no_steps()]),
        _ranges(context, device),
        lead=parts.lead(context, "Whether every step is like the others, and where the time of each goes."),
    )


def _steps(context: PageContext, device: Device) -> list[Component]:
    drawn = drawn_steps(device)
    undrawn = f" {len(drawn):,} of {len(device.steps):,} are drawn, all outliers among them." * (
        len(drawn) < len(device.steps)
    )
    return [
        parts.panel(
            "Where each step goes",
            graph(charts.steps(context.section, context.dark), "steps-chart", name="steps"),
            note=f"{_outliers(device)}{_left_out(context, device)} A click shows a step in the timeline.{undrawn}",
        ),
        parts.grid_panel(context, lists.each_step(context.section, device), "steps-table"),
    ]


def _left_out(context: PageContext, device: Device) -> str:
    """Return how many steps the averages leave out."""
    if not context.section.steps:
        return f" {none_whole(device)}"
    left_out = len(device.steps) - context.section.steps
    return f" Averages leave out {left_out:,} of them: warm-up, cut off, or last." if left_out else ""


def _outliers(device: Device) -> str:
    count = len(device.steps)
    if count < FEWEST:
        return f"{plural(count, 'step')}: too few to call one unusual."
    unusual = int(find_outliers(device.steps).sum())
    rule = f"more than {LEAST_SHARE:.0%}, and {DEVIATIONS:g} scaled median absolute deviations, from the median step"
    if not unusual:
        return f"{plural(count, 'step')}, none of which is unusual ({rule})."
    return f"{plural(unusual, 'outlier')} of {plural(count, 'step')}, marked with a triangle ({rule})."


def _no_steps() -> Component:
    return parts.panel(
        "No steps",
        parts.empty(
            "No step is marked in this recording, so figures are of all that was recorded.",
            [
                "To mark them, call ",
                dmc.Code("prof.step()"),
                " (torch.profiler) or ",
                dmc.Code("overlapscope.step()"),
                " (overlapscope run) at the end of each iteration.",
            ],
        ),
    )


def _ranges(context: PageContext, device: Device) -> Component:
    if not device.ranges:
        return parts.panel(
            "Ranges",
            parts.empty(
                [
                    "No range is marked. To see forward and backward separately: ",
                    dmc.Code('with torch.profiler.record_function("forward"): ...'),
                ]
            ),
        )
    return parts.grid_panel(
        context,
        lists.ranges(context.section, device),
        "steps-ranges",
        note="Each name that record_function marked, with all its occurrences added up"
        f"{', in an average step' * bool(context.section.steps)}. Ranges nest, so times overlap.",
    )


callbacks = Callbacks()
callbacks.grids("steps-table", "steps-ranges")


@callbacks.leads(Input("steps-chart", "clickData"))
def show_step(context: PageContext, click: Click | None) -> Any:
    """Return the address of the step in the timeline."""
    number, device = click.number if click else None, context.device
    if number is None or device is None or not 0 <= number < len(device.steps):
        return dash.no_update
    return context.timeline_href(device.steps[number].window)

"""The page Steps: buckets and efficiency of each step, outliers, and ranges."""

from __future__ import annotations

from typing import Any

import dash
from dash import Input
from dash.development.base_component import Component

from overlapscope.analysis.results import Device
from overlapscope.analysis.steps import DEVIATIONS, FEWEST, LEAST_SHARE, find_outliers
from overlapscope.base.words import plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.report import charts, lists
from overlapscope.report.charts import drawn_steps
from overlapscope.report.verdict import judge


def layout(context: PageContext, device: Device) -> Component:
    """Return the page."""
    ranges = lists.ranges(context.section, device)
    return parts.page(
        "Steps",
        *(_steps(context, device) if device.steps else [render.panel("No steps", parts.empty(*_NO_STEPS))]),
        parts.grid_panel(context, ranges, "steps-ranges", note=_RANGES, nothing=_NO_RANGES),
        lead="Whether every step is like the others, and where the time of each goes.",
        context=context,
    )


def _steps(context: PageContext, device: Device) -> list[Component]:
    drawn = drawn_steps(device)
    steps = judge(context.section).steps
    undrawn = f"{len(drawn):,} of {len(device.steps):,} are drawn, all outliers among them." * (
        len(drawn) < len(device.steps)
    )
    return [
        render.panel(
            "Where each step goes",
            render.graph(charts.steps(context.section, context.dark), "steps-chart", name="steps"),
            note=" ".join(filter(None, (_outliers(device), steps, "A click shows a step in the timeline.", undrawn))),
        ),
        parts.grid_panel(context, lists.each_step(context.section, device), "steps-table"),
    ]


def _outliers(device: Device) -> str:
    count = len(device.steps)
    if count < FEWEST:
        return f"{plural(count, 'step')}: too few to call one unusual."
    unusual = int(find_outliers(device.steps).sum())
    rule = f"more than {LEAST_SHARE:.0%}, and {DEVIATIONS:g} scaled median absolute deviations, from the median step"
    if not unusual:
        return f"{plural(count, 'step')}, none of which is unusual ({rule})."
    return f"{plural(unusual, 'outlier')} of {plural(count, 'step')}, marked with a triangle ({rule})."


_NO_STEPS = (
    "No step is marked in this recording, so figures are of all that was recorded.",
    "To mark them, call `prof.step()` (torch.profiler) or `overlapscope.step()` (overlapscope run) at the end of each "
    "iteration.",
)
_NO_RANGES = (
    'No range is marked. To see forward and backward separately: `with torch.profiler.record_function("forward"): ...`'
)
_RANGES = "Each name that record_function marked, with all its occurrences added up. Ranges nest, so times overlap."


callbacks = Callbacks()
callbacks.grids("steps-table", "steps-ranges")


@callbacks.leads(Input("steps-chart", "clickData"))
def show_step(context: PageContext, click: Click | None) -> Any:
    """Return the address of the step in the timeline."""
    number, device = click.number if click else None, context.device
    if number is None or device is None or not 0 <= number < len(device.steps):
        return dash.no_update
    return context.timeline_href(device.steps[number].window)

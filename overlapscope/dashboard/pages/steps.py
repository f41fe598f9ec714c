"""The page Steps: buckets and efficiency of each step, outliers, and ranges."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dash
from dash import Input
from dash.development.base_component import Component

from overlapscope.analysis.average import DEVIATIONS, MIN_SHARE, MIN_STEPS_FOR_OUTLIERS, find_outliers
from overlapscope.analysis.results import Device
from overlapscope.base.words import plural
from overlapscope.dashboard import parts, render
from overlapscope.dashboard.callbacks import Callbacks, Click
from overlapscope.dashboard.context import PageContext
from overlapscope.documents.model import Chart
from overlapscope.report import charts, lists
from overlapscope.report.charts import drawn_steps
from overlapscope.report.verdict import judge

LEAD = "Whether every step is like the others, and where the time of each goes."


def layout(context: PageContext, device: Device) -> Iterator[Component]:
    """Yield the parts of the page."""
    section, drawn, count = context.section, drawn_steps(device), len(device.steps)
    if count:
        undrawn = f"{len(drawn):,} of {count:,} are drawn, all outliers among them." if len(drawn) < count else ""
        notes = (_outliers(device), judge(section).steps, "A click shows a step in the timeline.", undrawn)
        chart = Chart("steps-chart", "", partial(charts.steps, section, device))
        yield parts.drawn(context, "Where each step goes", chart, note=" ".join(filter(None, notes)))
        yield parts.grid_panel(context, lists.each_step(section, device), "steps-table")
    else:
        yield render.panel("No steps", parts.empty(*_NO_STEPS))
    ranges = lists.ranges(section, device)
    note = parts.frame_note(context, _RANGES)
    yield parts.grid_panel(context, ranges, "steps-ranges", note=note, nothing=_NO_RANGES)


def _outliers(device: Device) -> str:
    count = len(device.steps)
    if count < MIN_STEPS_FOR_OUTLIERS:
        return f"{plural(count, 'step')}: too few to call one unusual."
    unusual = int(find_outliers(device.steps).sum())
    rule = f"more than {MIN_SHARE:.0%}, and {DEVIATIONS:g} scaled median absolute deviations, from the median step"
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
_RANGES = "Each name that record_function marked. Ranges nest, so times overlap."


callbacks = Callbacks()


@callbacks.leads(Input("steps-chart", "clickData"))
def show_step(context: PageContext, click: Click | None) -> Any:
    """Return the address of the step in the timeline."""
    number, device = click.first(int) if click else None, context.device
    if number is None or device is None or not 0 <= number < len(device.steps):
        return dash.no_update
    return context.timeline_href(device.steps[number].window)

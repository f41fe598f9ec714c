"""Charts of a report as Plotly figures for a light or dark background."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.figures import efficiency_shown
from overlapscope.analysis.host_lines import FlamePart, flame, place
from overlapscope.analysis.results import Device, partition
from overlapscope.analysis.steps import find_outliers
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.base.words import (
    Unit,
    percent,
    share,
    unit_for,
)
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, escape, figure, legible, stacked_bars
from overlapscope.report.page import DeviceReport, SampledHost

# -- Steps -----------------------------------------------------------------------------------------

MOST_STEPS = 1000
_FEW = 4


def drawn_steps(device: Device) -> I64:
    """Return the numbers of the steps to draw.

    They are all steps, or up to `MOST_STEPS` at even distances and as many outliers.
    """
    count = len(device.steps)
    if count <= MOST_STEPS:
        return np.arange(count)
    spaced = np.linspace(0, count - 1, MOST_STEPS).astype(np.int64)
    return np.union1d(spaced, np.flatnonzero(find_outliers(device.steps))[:MOST_STEPS])


def steps(section: DeviceReport, device: Device, dark: bool) -> Figure:
    """Return a stacked bar for each step with its efficiency below. Each bar's `customdata[0]` is the step's number."""
    unit, colors, every, rows = section.unit, palette(dark), device.steps, drawn_steps(device).tolist()
    names = {row: escape(every[row].name) for row in rows}
    efficiency = [efficiency_shown(every[row]) for row in rows]
    outliers = find_outliers(every)
    unusual = [row for row in rows if outliers[row]]
    # A dozen labels at most, without the prefix that all share.
    labelled = distinct(np.linspace(0, len(every) - 1, min(12, len(every))).astype(int)).tolist()
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "outlier",
        "x": unusual,
        "y": [every[row].span_ns / unit.ns for row in unusual],
        "marker": {"symbol": "star-triangle-down", "size": 13, "color": colors["poor"]},
        "customdata": [[row, names[row]] for row in unusual],
        "hovertemplate": f"%{{customdata[1]}}: an outlier, %{{y:.4~g}} {unit.name}<extra></extra>",
        # Above its bar, not on it.
        "cliponaxis": False,
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(rows) <= 200 else "lines",
        "name": "efficiency",
        "yaxis": "y2",
        "x": rows,
        "y": efficiency,
        "line": {"color": colors["accent"], "width": 2},
        "marker": {"size": 6},
        "customdata": [[row, names[row], percent(value)] for row, value in zip(rows, efficiency, strict=True)],
        "hovertemplate": "%{customdata[1]}<br>efficiency %{customdata[2]}<extra></extra>",
    }
    bars = stacked_bars([partition(every[row]) for row in rows], [*names.values()], unit, dark, positions=rows)
    ticks = {"tickvals": labelled, "ticktext": [f"#{step_number(every[row].name)}" for row in labelled]}
    return figure(
        [*bars, *([marks] if unusual else []), line],
        dark,
        height=440,
        barmode="stack",
        # A few steps would otherwise get bars as wide as they are high.
        bargap=0.15 if len(every) > _FEW else 0.6,
        hovermode="closest",
        xaxis=axis(dark, anchor="y2", showgrid=False, **ticks),
        yaxis=axis(dark, f"step, {unit.name}", domain=[0.32, 1]),
        yaxis2=axis(dark, "efficiency, %", domain=[0, 0.22], range=[-8, 108], tickvals=[0, 50, 100]),
    )


# -- Calls of the host -------------------------------------------------------------------------------

_LEVELS = 24
"""Maximum number of rows of a flame graph. A click on a part shows those below."""
_ROW_PX = 24


def flame_graph(host: SampledHost, dark: bool, *, wrappers: bool = False) -> Figure:
    """Return the calls of the main thread in an average step, each below its caller.

    Functions that only call another one, such as `_call_impl`, are left out unless `wrappers` are wanted.
    """
    parts = flame(host.activity, wrappers=wrappers)
    colors = palette(dark)
    running = sum(part.running for part in parts if part.caller < 0)
    unit = unit_for(host.step_ns)
    step = FlamePart(-1, "", 0, "step", False, host.samples, running)
    every = (step, *parts)
    fills = [colors["panel"], *(colors["accent" if part.is_own else "cpu-op"] for part in parts)]
    drawn = {
        "type": "icicle",
        "ids": [str(number) for number in range(len(every))],
        "parents": ["", *(str(part.caller + 1) for part in parts)],
        "labels": ["step", *map(_flame_label, parts)],
        "values": [part.samples for part in every],
        "branchvalues": "total",
        "maxdepth": _LEVELS,
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": False},
        # By default, parts that call nothing are paler, and their text is hard to read.
        "leaf": {"opacity": 1},
        "marker": {
            "colors": fills,
            "line": {"color": colors["panel"], "width": 1},
            "pattern": {
                "shape": ["/" if part is not step and 2 * part.running < part.samples else "" for part in every],
                # With the mode `overlay`, Plotly would warn in the console of the list of colors.
                "bgcolor": fills,
                "fgcolor": "#ffffff",
                "size": 6,
                "fgopacity": 0.25,
            },
        },
        "textinfo": "label",
        "textfont": {"color": [legible(fill) for fill in fills]},
        "customdata": [_flame_hover(part, host, unit) for part in every],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    height = _ROW_PX * (min(_flame_depth(parts), _LEVELS - 1) + 1) + 16
    # Texts that do not fit are left out rather than drawn in small.
    return figure([drawn], dark, height=height, showlegend=False, uniformtext={"minsize": 11, "mode": "hide"})


def _flame_depth(parts: tuple[FlamePart, ...]) -> int:
    """Return the number of functions above one another."""
    depths: list[int] = []
    for part in parts:
        depths.append(1 if part.caller < 0 else depths[part.caller] + 1)
    return max(depths, default=0)


def _flame_label(part: FlamePart) -> str:
    if not part.function:
        return "other"
    return escape(f"{part.function} ({place(part.file, part.line)})" if part.is_own else part.function)


def _flame_hover(part: FlamePart, host: SampledHost, unit: Unit) -> str:
    where = f"<br>{escape(place(part.file, part.line), 120)}" if part.file else ""
    return (
        f"{escape(part.function or 'other parts, each below 0.5%', 120)}{where}"
        f"<br>{unit.text(host.time_ns(part.samples))} a step ({share(part.samples, host.samples)}), "
        f"{unit.text(host.time_ns(part.samples - part.running))} of it asleep"
    )

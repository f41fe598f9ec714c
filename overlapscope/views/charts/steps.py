"""Each step's buckets and efficiency."""

from __future__ import annotations

from typing import Any

import numpy as np

from overlapscope.analysis.outliers import find_outliers
from overlapscope.analysis.results import Device, efficiency_shown, partition
from overlapscope.base.intervals import I64
from overlapscope.base.words import percent, share
from overlapscope.documents.colors import bucket_color, palette
from overlapscope.documents.figure import Figure, axis, escape, figure
from overlapscope.report.page import Section
from overlapscope.views.charts.buckets import MEANING

MOST_BARS = 1000
_FEW = 4


def chosen(device: Device) -> I64:
    """Numbers of the steps that are drawn: all, or where there are too many evenly spaced ones and all outliers, up to
    `MOST_BARS` of each."""
    count = len(device.steps)
    if count <= MOST_BARS:
        return np.arange(count)
    spaced = np.linspace(0, count - 1, MOST_BARS).astype(np.int64)
    return np.union1d(spaced, np.flatnonzero(find_outliers(device.steps))[:MOST_BARS])


def steps(section: Section, dark: bool) -> Figure:
    """A stacked bar for each step with its efficiency below. Each bar's `customdata[0]` is the step's number."""
    device, unit, colors = section.device, section.unit, palette(dark)
    data: list[dict[str, Any]] = []
    if device is not None:
        rows = chosen(device).tolist()
        periods = [device.steps[row] for row in rows]
        unusual = find_outliers(device.steps)[rows].tolist() if rows else []
        names = [escape(period.name) for period in periods]
        buckets = [partition(period) for period in periods]
        spans = [period.span_ns / unit.ns for period in periods]
        for name in MEANING:
            times = [lengths.get(name, 0) for lengths in buckets]
            if any(times):
                data.append(
                    {
                        "type": "bar",
                        "name": name,
                        "x": rows,
                        "y": [ns / unit.ns for ns in times],
                        "marker": {"color": colors[bucket_color(name)]},
                        "customdata": [
                            [row, step, unit.text(ns), share(ns, period.span_ns)]
                            for row, step, ns, period in zip(rows, names, times, periods, strict=True)
                        ],
                        "hovertemplate": f"%{{customdata[1]}}<br>{name}: %{{customdata[2]}} (%{{customdata[3]}})"
                        "<extra></extra>",
                    }
                )
        if any(unusual):
            data.append(_marks(rows, names, spans, unusual, unit.name, colors))
        data.append(_efficiency(rows, names, [efficiency_shown(period) for period in periods], colors))
    return figure(
        data,
        dark,
        height=440,
        barmode="stack",
        # A handful of steps would make bars as wide as they are high.
        bargap=0.15 if device is not None and len(device.steps) > _FEW else 0.6,
        hovermode="closest",
        xaxis=axis(dark, anchor="y2", showgrid=False, **_ticks(device)),
        yaxis=axis(dark, f"span, {unit.name}", domain=[0.32, 1]),
        yaxis2=axis(dark, "efficiency, %", domain=[0, 0.22], range=[-8, 108], tickvals=[0, 50, 100]),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )


def _marks(
    rows: list[int], names: list[str], spans: list[float], unusual: list[bool], unit: str, colors: dict[str, str]
) -> dict[str, Any]:
    marked = [number for number, odd in enumerate(unusual) if odd]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "outlier",
        "x": [rows[number] for number in marked],
        "y": [spans[number] for number in marked],
        "marker": {"symbol": "star-triangle-down", "size": 13, "color": colors["poor"]},
        "customdata": [[rows[number], names[number]] for number in marked],
        "hovertemplate": f"%{{customdata[1]}}: an outlier, %{{y:.4~g}} {unit}<extra></extra>",
        # Above its bar, not on it.
        "cliponaxis": False,
    }


def _efficiency(
    rows: list[int], names: list[str], values: list[float | None], colors: dict[str, str]
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if len(rows) <= 200 else "lines",
        "name": "efficiency",
        "yaxis": "y2",
        "x": rows,
        "y": values,
        "line": {"color": colors["accent"], "width": 2},
        "marker": {"size": 6},
        "customdata": [[row, name, percent(value)] for row, name, value in zip(rows, names, values, strict=True)],
        "hovertemplate": "%{customdata[1]}<br>efficiency %{customdata[2]}<extra></extra>",
    }


def _ticks(device: Device | None) -> dict[str, Any]:
    """A dozen steps at most by name, without what they all begin with."""
    if device is None or not device.steps:
        return {}
    rows = np.unique(np.linspace(0, len(device.steps) - 1, min(12, len(device.steps))).astype(int)).tolist()
    labels = [escape(device.steps[row].name.removeprefix("ProfilerStep")) for row in rows]
    return {"tickvals": rows, "ticktext": labels}

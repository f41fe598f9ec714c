"""Charts of a report as Plotly figures, made from a device's report for a light or dark background."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, Final

import numpy as np

from overlapscope.analysis.figures import efficiency_shown
from overlapscope.analysis.results import Device, by_subject, partition
from overlapscope.analysis.steps import find_outliers
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.base.words import bare_shares, percent, shares_by_name, unit_for
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.catalog.causes import CAUSES, WORK_UNKNOWN, Subject
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, escape, figure, legible, stacked_bars
from overlapscope.report.page import DeviceReport


def bucket_bar(section: DeviceReport, dark: bool) -> Figure:
    """Return a horizontal bar of a device's buckets; the shares add up to 100."""
    colors = palette(dark)
    device, unit = section.device, section.unit
    parts = partition(device) if device else {}
    span = device.span_ns if device else 0
    data = []
    for (name, ns), part in zip(parts.items(), bare_shares(list(parts.values()), span), strict=True):
        if not ns:
            continue
        color = colors[BUCKETS[name].id]
        wide = ns >= 0.14 * span
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"{name} {part}%",
                "x": [ns / unit.ns],
                "y": [""],
                "marker": {"color": color, "line": {"color": colors["panel"], "width": 1}},
                "text": [f"{name} {part}%" if wide else f"{part}%" if ns >= 0.06 * span else ""],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "insidetextfont": {"color": legible(color)},
                "hovertemplate": f"{name}: {unit.text(ns)} ({part}%)<br>{BUCKETS[name].meaning}<extra></extra>",
            }
        )
    return figure(
        data,
        dark,
        height=136,
        barmode="stack",
        bargap=0,
        xaxis=axis(dark, f"time on the device, {unit.name}", range=[0, max(span, 1) / unit.ns], showgrid=False),
        yaxis=axis(dark, showticklabels=False, fixedrange=True),
    )


def each_device(sections: Sequence[DeviceReport], dark: bool) -> Figure:
    """Return a bar for each device of each rank, below one another in the same unit."""
    shown = [(section, section.device) for section in sections if section.device is not None]
    unit = unit_for(max((device.span_ns for _, device in shown), default=0))
    labels = _labels([section for section, _ in shown])
    return figure(
        stacked_bars([partition(device) for _, device in shown], labels, unit, dark),
        dark,
        height=90 + 30 * max(1, len(shown)),
        barmode="stack",
        bargap=0.25,
        xaxis=axis(dark, f"time on the device, {unit.name}"),
        yaxis=axis(dark, autorange="reversed", type="category"),
    )


def _labels(sections: Sequence[DeviceReport]) -> list[str]:
    """Return the rank of each, or else its file; with the device if several have that name."""
    names = [
        f"rank {section.trace.rank}" if section.trace.rank is not None else PurePath(section.trace.source).name
        for section in sections
    ]
    return [
        escape(name) if names.count(name) == 1 else f"{escape(name)}, device {section.device.device}"
        for name, section in zip(names, sections, strict=True)
        if section.device is not None
    ]


# -- Causes ----------------------------------------------------------------------------------------


CAUSE_TITLES: Final[Mapping[Subject, str]] = {
    "exposed-copy": "Exposed copy by cause",
    "exposed-comm": "Exposed communication by cause",
    "exposed-other": "Other memory work by kind",
    "idle": "Idle by cause",
}


def by_cause(section: DeviceReport, subject: Subject) -> dict[str, int]:
    """Return the causes that took time, largest first. Idle time is without that of `WORK_UNKNOWN`."""
    causes = {} if section.device is None else by_subject(section.device)[subject]
    lost = ((cause, ns) for cause, ns in causes.items() if ns and cause not in WORK_UNKNOWN)
    return dict(sorted(lost, key=lambda item: (-item[1], item[0])))


def causes(section: DeviceReport, subject: Subject, dark: bool) -> Figure:
    """Return a bar for each cause, largest first; shares are of the bucket."""
    colors = palette(dark)
    descriptions = CAUSES[subject]
    lengths = by_cause(section, subject)
    bucket_ns = sum(lengths.values())
    unit = section.unit_of(bucket_ns)
    shares = shares_by_name(lengths, bucket_ns)
    texts = [f"{unit.text(ns)} ({shares[cause]}%)" for cause, ns in lengths.items()]
    most = max(lengths.values(), default=0) / unit.ns
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [ns / unit.ns for ns in lengths.values()],
        "y": [escape(cause) for cause in lengths],
        "marker": {"color": [colors.get(f"{subject}:{cause}", colors["muted"]) for cause in lengths]},
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "customdata": [
            escape(descriptions[cause].words.meaning, 200) if cause in descriptions else "" for cause in lengths
        ],
        "hovertemplate": "%{y}: %{text}<br>%{customdata}<extra></extra>",
        "showlegend": False,
    }
    return figure(
        [bars],
        dark,
        height=20 + 34 * max(1, len(lengths)),
        bargap=0.35,
        # Every bar shows its number, so the axis needs none. The range leaves room for the longest bar's text.
        xaxis=axis(dark, visible=False, range=[0, 1.45 * most or 1], fixedrange=True),
        yaxis=axis(
            dark, autorange="reversed", type="category", fixedrange=True, ticksuffix="  ", showgrid=False, showline=True
        ),
    )


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


def steps(section: DeviceReport, dark: bool) -> Figure:
    """Return a stacked bar for each step with its efficiency below. Each bar's `customdata[0]` is the step's number."""
    device, unit, colors = section.device, section.unit, palette(dark)
    data: list[dict[str, Any]] = []
    if device is not None:
        rows = drawn_steps(device).tolist()
        periods = [device.steps[row] for row in rows]
        unusual = find_outliers(device.steps)[rows].tolist() if rows else []
        names = [escape(period.name) for period in periods]
        data = stacked_bars([partition(period) for period in periods], names, unit, dark, positions=rows)
        spans = [period.span_ns / unit.ns for period in periods]
        if any(unusual):
            data.append(_marks(rows, names, spans, unusual, unit.name, colors))
        data.append(_efficiency(rows, names, [efficiency_shown(period) for period in periods], colors))
    return figure(
        data,
        dark,
        height=440,
        barmode="stack",
        # A few steps would otherwise get bars as wide as they are high.
        bargap=0.15 if device is not None and len(device.steps) > _FEW else 0.6,
        hovermode="closest",
        xaxis=axis(dark, anchor="y2", showgrid=False, **_ticks(device)),
        yaxis=axis(dark, f"step, {unit.name}", domain=[0.32, 1]),
        yaxis2=axis(dark, "efficiency, %", domain=[0, 0.22], range=[-8, 108], tickvals=[0, 50, 100]),
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
    """Return labels for at most a dozen steps, without the prefix that all share."""
    if device is None or not device.steps:
        return {}
    rows = distinct(np.linspace(0, len(device.steps) - 1, min(12, len(device.steps))).astype(int)).tolist()
    labels = [f"#{step_number(device.steps[row].name)}" for row in rows]
    return {"tickvals": rows, "ticktext": labels}

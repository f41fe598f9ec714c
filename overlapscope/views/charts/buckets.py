"""The buckets of a device, and of several, as stacked bars."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final

from overlapscope.analysis.results import partition
from overlapscope.base.words import bare_shares, unit_for
from overlapscope.documents.colors import bucket_color, palette
from overlapscope.documents.figure import Figure, axis, escape, figure, legible
from overlapscope.report.page import Section

MEANING: Final[dict[str, str]] = {
    "compute": "kernels ran",
    "exposed comm": "communication ran and no kernel beside it",
    "exposed copy": "a copy ran and no kernel beside it",
    "exposed other": "only memsets and copies within the device ran",
    "idle": "nothing ran",
    "missing ops": "the host waited for GPU ops that were not recorded",
}


def bucket_bar(section: Section, dark: bool) -> Figure:
    """One horizontal bar: where the time of a device goes. The shares add up to 100."""
    colors = palette(dark)
    device, unit = section.device, section.unit
    parts = partition(device) if device else {}
    span = device.span_ns if device else 0
    data = []
    for (name, ns), part in zip(parts.items(), bare_shares(list(parts.values()), span), strict=True):
        if not ns:
            continue
        color = colors[bucket_color(name)]
        wide = ns >= 0.14 * span
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": f"{name} {part} %",
                "x": [ns / unit.ns],
                "y": [""],
                "marker": {"color": color, "line": {"color": colors["panel"], "width": 1}},
                "text": [f"{name} {part} %" if wide else f"{part} %" if ns >= 0.06 * span else ""],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "textangle": 0,
                "constraintext": "none",
                "insidetextfont": {"color": legible(color)},
                "hovertemplate": f"{name}: {unit.text(ns)} ({part} %)<br>{MEANING[name]}<extra></extra>",
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
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )


def ranks(sections: Sequence[Section], dark: bool) -> Figure:
    """One bar for each device of each rank, under one another in one unit."""
    colors = palette(dark)
    shown = [(section, section.device) for section in sections if section.device is not None]
    unit = unit_for(max((device.span_ns for _, device in shown), default=0))
    labels = _labels([section for section, _ in shown])
    buckets = [partition(device) for _, device in shown]
    shares = [dict(zip(one, bare_shares(list(one.values()), sum(one.values())), strict=True)) for one in buckets]
    data: list[dict[str, Any]] = []
    for name in MEANING:
        times = [one.get(name, 0) for one in buckets]
        if not any(times):
            continue
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": name,
                "x": [ns / unit.ns for ns in times],
                "y": labels,
                "marker": {"color": colors[bucket_color(name)]},
                "customdata": [[unit.text(ns), part.get(name, "0")] for ns, part in zip(times, shares, strict=True)],
                "hovertemplate": f"%{{y}}<br>{name}: %{{customdata[0]}} (%{{customdata[1]}} %)<extra></extra>",
            }
        )
    return figure(
        data,
        dark,
        height=90 + 30 * max(1, len(shown)),
        barmode="stack",
        bargap=0.25,
        xaxis=axis(dark, f"time on the device, {unit.name}"),
        yaxis=axis(dark, autorange="reversed", type="category"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )


def _labels(sections: Sequence[Section]) -> list[str]:
    """The rank, or else the file; with the device where that alone names several."""
    names = [
        f"rank {section.trace.rank}" if section.trace.rank is not None else PurePath(section.trace.source).name
        for section in sections
    ]
    return [
        escape(name) if names.count(name) == 1 else f"{escape(name)}, device {section.device.device}"
        for name, section in zip(names, sections, strict=True)
        if section.device is not None
    ]

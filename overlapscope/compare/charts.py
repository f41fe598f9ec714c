"""The buckets of a device before and after, under one another."""

from __future__ import annotations

from typing import Any

from overlapscope.base.words import bare_shares, unit_for
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.compare.difference import Figures
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, figure


def before_after(figures: Figures, dark: bool) -> Figure:
    """Two stacked bars in one unit, before above after."""
    colors = palette(dark)
    spans = [round(value or 0) for value in (figures.span.before, figures.span.after)]
    sides = [
        [round(value or 0) for value in one]
        for one in zip(*((b.before, b.after) for b in figures.buckets), strict=True)
    ]
    unit = unit_for(max(spans))
    shares = [bare_shares(parts, span) for parts, span in zip(sides, spans, strict=True)]
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": bucket.name,
            "x": [parts[number] / unit.ns for parts in sides],
            "y": ["before", "after"],
            "marker": {"color": colors[BUCKETS[bucket.name].id], "line": {"color": colors["panel"], "width": 1}},
            "customdata": [[unit.text(parts[number]), of[number]] for parts, of in zip(sides, shares, strict=True)],
            "hovertemplate": f"%{{y}}<br>{bucket.name}: %{{customdata[0]}} (%{{customdata[1]}}%)<extra></extra>",
        }
        for number, bucket in enumerate(figures.buckets)
        if bucket.before or bucket.after
    ]
    return figure(
        data,
        dark,
        height=190,
        barmode="stack",
        bargap=0.25,
        xaxis=axis(dark, f"time on the device, {unit.name}"),
        yaxis=axis(dark, autorange="reversed", type="category"),
    )

"""The buckets of two devices under one another."""

from __future__ import annotations

from typing import Any

from overlapscope.views.charts._figure import Figure, axis, figure
from overlapscope.views.colors import bucket_color, palette
from overlapscope.views.side_by_side import SideBySide
from overlapscope.words import bare_shares, unit_for


def before_after(compared: SideBySide, dark: bool) -> Figure:
    """Two stacked bars in one unit, before above after."""
    colors = palette(dark)
    spans = (compared.spans.before_ns, compared.spans.after_ns)
    unit = unit_for(max(spans))
    before = bare_shares([part.before_ns for part in compared.parts], spans[0])
    after = bare_shares([part.after_ns for part in compared.parts], spans[1])
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "orientation": "h",
            "name": part.name,
            "x": [part.before_ns / unit.ns, part.after_ns / unit.ns],
            "y": ["before", "after"],
            "marker": {"color": colors[bucket_color(part.name)], "line": {"color": colors["panel"], "width": 1}},
            "customdata": [[unit.text(part.before_ns), shares[0]], [unit.text(part.after_ns), shares[1]]],
            "hovertemplate": f"%{{y}}<br>{part.name}: %{{customdata[0]}} (%{{customdata[1]}} %)<extra></extra>",
        }
        for part, *shares in zip(compared.parts, before, after, strict=True)
        if part.before_ns or part.after_ns
    ]
    return figure(
        data,
        dark,
        height=190,
        barmode="stack",
        bargap=0.25,
        xaxis=axis(dark, f"time on the device, {unit.name}"),
        yaxis=axis(dark, autorange="reversed", type="category"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )

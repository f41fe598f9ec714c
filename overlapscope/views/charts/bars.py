"""A figure that was measured here beside the published one, for each variant of an experiment."""

from __future__ import annotations

from typing import Any

from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, escape, figure
from overlapscope.views.laboratory.content import Bars

HEIGHT = 300


def bars(shown: Bars, dark: bool) -> Figure:
    """Two bars for each variant; ours has the spread between the quartiles as its error bar."""
    colors = palette(dark)
    labels = [escape(variant) for variant in shown.variants]
    half = [None if one is None else one / 2 for one in shown.spread]
    error = {"type": "data", "array": half, "visible": any(half), "thickness": 1, "color": colors["text"]}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "here",
            "x": labels,
            "y": list(shown.ours),
            "marker": {"color": colors["accent"]},
            "error_y": error,
        }
    ]
    if any(one is not None for one in shown.published):
        marker = {"color": colors["idle"]}
        data.append({"type": "bar", "name": "published", "x": labels, "y": list(shown.published), "marker": marker})
    return figure(
        data,
        dark,
        height=HEIGHT,
        title={
            "text": escape(shown.title, 80),
            "font": {"size": 14},
            "x": 0,
            "xref": "container",
            "y": 0.98,
            "yanchor": "top",
        },
        margin={"l": 8, "r": 8, "t": 56, "b": 8},
        xaxis=axis(dark, type="category"),
        yaxis=axis(dark, rangemode="tozero"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=True,
    )

"""A figure that was measured here beside the published one, for each variant of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from overlapscope.documents.colors import palette
from overlapscope.views.charts._figure import Figure, axis, escape, figure

HEIGHT = 300


def bars(
    variants: Sequence[str],
    ours: Sequence[float | None],
    spread: Sequence[float | None],
    published: Sequence[float | None],
    dark: bool,
) -> Figure:
    """Two bars for each variant; ours has the spread between the quartiles as its error bar."""
    colors = palette(dark)
    labels = [escape(variant) for variant in variants]
    half = [None if between is None else between / 2 for between in spread]
    error = {"type": "data", "array": half, "visible": any(half), "thickness": 1, "color": colors["text"]}
    data: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": "here",
            "x": labels,
            "y": list(ours),
            "marker": {"color": colors["accent"]},
            "error_y": error,
        }
    ]
    if any(value is not None for value in published):
        marker = {"color": colors["idle"]}
        data.append({"type": "bar", "name": "published", "x": labels, "y": list(published), "marker": marker})
    return figure(
        data,
        dark,
        height=HEIGHT,
        margin={"l": 8, "r": 8, "t": 32, "b": 8},
        xaxis=axis(dark, type="category"),
        yaxis=axis(dark, rangemode="tozero"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        showlegend=True,
    )

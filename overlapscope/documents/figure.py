"""Parts that all charts share: a Plotly figure is a plain dict with a transparent background and the page's font."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from overlapscope.base.columns import F64, I64
from overlapscope.base.words import Unit, clean, shares_of
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.documents.colors import palette
from overlapscope.documents.model import Figure

FONT = "system-ui, sans-serif"
"""The font of the pages. Not `inherit`, because a chart saved as PNG has no page to inherit from."""

NAME_LIMIT = 60


def escape(text: str, limit: int = NAME_LIMIT) -> str:
    """Escape text from a trace for a figure: Plotly interprets HTML tags and entities in its texts."""
    import html

    return html.escape(clean(text, limit), quote=False)


def figure(data: list[dict[str, Any]], dark: bool, *, height: int, **layout: Any) -> Figure:
    """Return a figure of the given traces; `layout` overrides the defaults that all charts share."""
    colors = palette(dark)
    common = {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": colors["text"]},
        "hoverlabel": {
            "font": {"family": FONT, "size": 13, "color": colors["text"]},
            "bgcolor": colors["panel"],
            "bordercolor": colors["grid"],
            "align": "left",
        },
        # Plotly hides the legend of a single entry by default.
        "showlegend": True,
        "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    }
    return {"data": data, "layout": common | layout}


def axis(dark: bool, title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis with faint lines that makes room for its labels."""
    colors = palette(dark)
    common: dict[str, Any] = {
        "gridcolor": colors["grid"],
        "linecolor": colors["grid"],
        "zeroline": False,
        "automargin": True,
        "tickfont": {"color": colors["muted"]},
    }
    if title:
        common["title"] = {"text": title, "font": {"color": colors["muted"], "size": 12}, "standoff": 8}
    return common | more


def stacked_bars(
    wholes: Sequence[Mapping[str, int]], labels: Sequence[str], unit: Unit, dark: bool, positions: Sequence[int]
) -> list[dict[str, Any]]:
    """Return a stacked bar for each of `wholes`: times in nanoseconds by the name of their bucket.

    Shares add up to 100. Each bar has its position as `customdata[0]`.
    """
    colors = palette(dark)
    shares = [shares_of(whole, sum(whole.values())) for whole in wholes]
    bars: list[dict[str, Any]] = []
    for name, bucket in BUCKETS.items():
        if not any(whole.get(name) for whole in wholes):
            continue
        rows = zip(positions, labels, wholes, shares, strict=True)
        bars.append(
            {
                "type": "bar",
                "name": name,
                "y": [whole.get(name, 0) / unit.ns for whole in wholes],
                "x": list(positions),
                "marker": {"color": colors[bucket.id]},
                "customdata": [
                    [position, label, unit.text(whole.get(name, 0)), share.get(name, "0")]
                    for position, label, whole, share in rows
                ],
                "hovertemplate": f"%{{customdata[1]}}<br>{name}: %{{customdata[2]}} (%{{customdata[3]}}%)<br>"
                f"{bucket.meaning}<extra></extra>",
            }
        )
    return bars


def column_of(at: F64, columns: int) -> I64:
    """Return the column of each point when all are spread over the given number of columns."""
    low, high = at.min(), at.max()
    part = (at - low) / (high - low) if high > low else np.zeros(len(at))
    return np.minimum((part * columns).astype(np.int64), columns - 1)


def legible(background: str) -> str:
    """Return black or white, whichever is easier to read on a `#rrggbb` background."""
    channels = [int(background[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    # At this luminance, black and white have the same contrast (WCAG 2).
    return "#000000" if luminance > 0.179 else "#ffffff"

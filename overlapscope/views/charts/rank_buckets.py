"""Where the time of each rank goes, from two ranks to thousands."""

from __future__ import annotations

from typing import Any

from overlapscope.base.words import bare_shares, unit_for
from overlapscope.documents.colors import bucket_color, palette
from overlapscope.documents.figure import Figure, axis, escape, figure
from overlapscope.ranks.result import RanksReport
from overlapscope.views.charts.buckets import MEANING
from overlapscope.views.ranks.slots import slots, ticks_for

MOST_BARS = 2048
"""Of more ranks only the maps show each one."""
_APART = 64
"""Up to so many bars have gaps between them."""
_HEIGHT = 300


def rank_buckets(report: RanksReport, dark: bool) -> Figure | None:
    """A stacked bar for each rank, a gap where there should be one. None where there are too many."""
    places = slots(report)
    rows = [None if place.row is None else report.ranks[place.row] for place in places]
    if not report.ranks or len(places) > MOST_BARS:
        return None
    colors = palette(dark)
    unit = unit_for(max(row.span_ns for row in report.ranks))
    buckets = [{} if row is None else row.buckets.named() for row in rows]
    shares = [bare_shares(list(one.values()), sum(one.values())) for one in buckets]
    data: list[dict[str, Any]] = []
    for number, name in enumerate(MEANING):
        if not any(one.get(name) for one in buckets):
            continue
        told = [
            [escape(place.name), unit.text(one[name]), part[number]] if one else []
            for place, one, part in zip(places, buckets, shares, strict=True)
        ]
        data.append(
            {
                "type": "bar",
                "name": name,
                "x": list(range(len(places))),
                "y": [one[name] / unit.ns if one else None for one in buckets],
                "marker": {"color": colors[bucket_color(name)], "line": {"width": 0}},
                "customdata": told,
                "hovertemplate": f"%{{customdata[0]}}<br>{name}: %{{customdata[1]}} (%{{customdata[2]}} %)<br>"
                f"{MEANING[name]}<extra></extra>",
            }
        )
    ticks = ticks_for(len(places))
    return figure(
        data,
        dark,
        height=_HEIGHT,
        barmode="stack",
        bargap=0.2 if len(places) <= _APART else 0,
        xaxis=axis(
            dark,
            "rank",
            showgrid=False,
            tickmode="array",
            tickvals=ticks,
            ticktext=[escape(places[number].label, 24) for number in ticks],
        ),
        yaxis=axis(dark, f"time on the device, {unit.name}"),
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "normal"},
    )

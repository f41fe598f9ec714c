"""Chart of a metric over commits, hours or reports, with the spread of its steps, its levels and their changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np

from overlapscope.base.columns import F64, I64
from overlapscope.base.grouping import distinct
from overlapscope.base.words import plural, unit_for
from overlapscope.budgets.quantity import show
from overlapscope.budgets.verdicts import Unit
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, escape, figure
from overlapscope.plugins.history.course import Course
from overlapscope.plugins.history.entry import moment, short
from overlapscope.plugins.history.levels import Group, LevelChange, Levels

_COLUMNS: Final = 300
"""Number of columns of a thinned chart, each a few pixels wide."""
_FEW: Final = 150
"""Maximum number of points to draw large, with ends on their error bars."""
_TICKS: Final = 12
_MOST_MARKS: Final = 8
"""Maximum number of labelled changes, the newest. The table has all."""


def chart(course: Course, dark: bool, chosen: Collection[str] = ()) -> Figure:
    """Return a chart of a metric with its levels and their changes.

    Each point's `customdata[0]` is the id of its newest report. Points of `chosen` ids have a ring. Points that would
    hide each other are thinned, but levels are those of all points.
    """
    colors, levels, by = palette(dark), course.levels, course.by
    groups = levels.groups
    scale, unit = _scale(max(group.value for group in groups), course.unit)

    def place(row: int) -> Any:
        if by == "commit":
            return row
        return datetime.fromtimestamp(groups[row].at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    where = np.array([row if by == "commit" else group.at_ns for row, group in enumerate(groups)], np.float64)
    ringed = [row for row, group in enumerate(groups) if not set(chosen).isdisjoint(group.ids)]
    rows = sorted({*thin(where, np.array([group.value for group in groups]), _COLUMNS).tolist(), *ringed})
    few = len(rows) <= _FEW
    points = {
        "type": "scatter",
        "mode": "markers",
        "name": by,
        "x": [place(row) for row in rows],
        "y": [groups[row].value / scale for row in rows],
        "error_y": {
            "type": "data",
            "array": [groups[row].error / scale for row in rows],
            "color": colors["muted" if few else "grid"],
            "thickness": 1,
            "width": 3 if few else 0,
        },
        "marker": {"size": 8 if few else 4, "color": colors["muted"]},
        "customdata": [[groups[row].ids[-1], _hover_text(groups[row], course.unit)] for row in rows],
        "hovertemplate": "%{customdata[1]}<extra></extra>",
    }
    rings = _rings(groups, ringed, place, scale, colors)
    marks = [_mark(change, course, place, scale, colors) for change in levels.changes[-_MOST_MARKS:]]
    return figure(
        [points, *_levels(levels, place, scale, colors), *([rings] if ringed else [])],
        dark,
        height=360,
        hovermode="closest",
        # A redrawn chart keeps its zoom.
        uirevision=f"{course.metric} {by}",
        annotations=marks,
        xaxis=axis(dark, showgrid=False, **(_commits(groups) if by == "commit" else {"type": "date"})),
        yaxis=axis(dark, f"{course.metric}, {unit}"),
    )


def _rings(
    groups: Sequence[Group], rows: Sequence[int], place: Callable[[int], Any], scale: float, colors: dict[str, str]
) -> dict[str, Any]:
    """Return the rings around chosen points."""
    return {
        "type": "scatter",
        "mode": "markers",
        "name": "chosen",
        "hoverinfo": "skip",
        "x": [place(row) for row in rows],
        "y": [groups[row].value / scale for row in rows],
        "marker": {"symbol": "circle-open", "size": 16, "color": colors["text"], "line": {"width": 2}},
    }


def _mark(
    change: LevelChange, course: Course, place: Callable[[int], Any], scale: float, colors: dict[str, str]
) -> dict[str, Any]:
    """Return the label at the beginning of a level."""
    return {
        "x": place(change.first),
        "y": change.after / scale,
        "text": escape(_since(course.levels.groups[change.first], change, course)),
        "font": {"color": colors["poor" if change.worse else "good"]},
        "bgcolor": colors["panel"],
        "arrowcolor": colors["muted"],
        "arrowwidth": 1,
        "ax": 0,
        "ay": -36,
    }


def _scale(largest: float, unit: Unit) -> tuple[float, str]:
    """Return the divisor of values to draw, and the name of their unit."""
    if unit == "ns":
        time = unit_for(round(largest))
        return time.ns, time.name
    return 1, {"gb_per_s": "GB/s", "pct": "%"}.get(unit, unit)


def _hover_text(group: Group, unit: Unit) -> str:
    """Return the text beside the pointer."""
    lines = [f"commit {escape(short(group.commit))}"] if group.commit is not None else []
    lines += [f"{moment(group.at_ns)} UTC", show(group.value, unit)]
    return "<br>".join([*lines, *([plural(len(group.ids), "report")] if len(group.ids) > 1 else [])])


def _since(group: Group, change: LevelChange, course: Course) -> str:
    """Return `since 4f2a91c07e, +12.3%`, with points instead if the metric is a percentage."""
    since = short(group.commit) if course.by == "commit" and group.commit else f"{moment(group.at_ns)} UTC"
    difference = change.after - change.before
    if course.unit == "pct":
        return f"since {since}, {difference:+.1f} points"
    return f"since {since}" + (f", {100 * difference / change.before:+.1f}%" if change.before else "")


def _levels(series: Levels, place: Callable[[int], Any], scale: float, colors: dict[str, str]) -> list[dict[str, Any]]:
    """Return a line for each level, and a band for its interval if that is known."""
    x: list[Any] = []
    y, across, band = list(x), list(x), list(x)
    for level in series.levels:
        first, last, value = place(level.first), place(level.end - 1), level.value / scale
        x += [first, last, None]
        y += [value, value, None]
        if level.low is not None and level.high is not None:
            low, high = level.low / scale, level.high / scale
            across += [first, last, last, first, None]
            band += [low, low, high, high, None]
    common = {"type": "scatter", "mode": "lines", "hoverinfo": "skip"}
    filled = {"fill": "toself", "fillcolor": f"{colors['accent']}33", "line": {"width": 0}}
    return [
        *([common | filled | {"name": "interval of the level", "x": across, "y": band}] if band else []),
        common | {"name": "level", "x": x, "y": y, "line": {"color": colors["accent"], "width": 3}},
    ]


def _commits(groups: Sequence[Group]) -> dict[str, Any]:
    """Return ticks with the names of at most a dozen commits."""
    rows = distinct(np.linspace(0, len(groups) - 1, min(_TICKS, len(groups))).astype(int)).tolist()
    labels = [escape(short(groups[row].commit or "no commit")) for row in rows]
    return {"tickvals": rows, "ticktext": labels}


# -- Thinning -------------------------------------------------------------------------------------


def thin(at: F64, values: F64, columns: int) -> I64:
    """Return the ascending row numbers of points that make a chart look the same as all points would.

    In each column, the first, last, lowest and highest points stay (M4: Jugel et al., A Visualization-Oriented Time
    Series Data Aggregation, VLDB 2014). A small number of points is not thinned.

    Args:
        at: Ascending positions.
        values: Values of the points.
        columns: Width of the chart.
    """
    if len(at) <= 4 * columns:
        return np.arange(len(at))
    column = column_of(at, columns)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:], len(at)) - 1
    # Sorted by value within each column, so that the column's lowest and highest take the ends of its rows.
    by_value = np.lexsort((values, column))
    return distinct(np.concatenate([first, last, by_value[first], by_value[last]]))


def column_of(at: F64, columns: int) -> I64:
    """Return the column of each point when all are spread over the given number of columns."""
    span = at[-1] - at[0]
    part = (at - at[0]) / span if span else np.zeros(len(at))
    return np.minimum((part * columns).astype(np.int64), columns - 1)

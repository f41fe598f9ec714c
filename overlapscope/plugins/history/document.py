"""Documents of a history: entries, levels of metrics with their changes and charts, and a check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from statistics import fmean, median
from typing import Any, Final, Literal

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import F64, I64
from overlapscope.base.words import clean, listed, plural, unit_for
from overlapscope.budgets.quantity import difference, distinct, show
from overlapscope.budgets.verdicts import Unit
from overlapscope.catalog.measures import METRICS, Measure
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import axis, column_of, escape, figure
from overlapscope.documents.model import (
    Block,
    Chart,
    Document,
    Drawing,
    Figure,
    Glyphs,
    Heading,
    Items,
    StripBlock,
    StripLine,
    Text,
)
from overlapscope.documents.table import Cell, Column, Table, Tone, rows, table_of, words
from overlapscope.plugins.history.course import Course, HistoryCheck, JobCourse, Judged
from overlapscope.plugins.history.entry import moment, short
from overlapscope.plugins.history.levels import Group, LevelChange, Levels
from overlapscope.plugins.history.store import HistoryRow, Query, Store

_FIGURES = {"step": ("step_time", "host_step_time"), "efficiency": ("efficiency_pct",), "idle": ("idle_pct",)}
"""Metrics shown for each entry, by the title of their column. An entry has at most one of a column's."""
_TONES: dict[str, Tone] = {"pass": "good", "fail": "poor", "inconclusive": "fair"}
_SHORT_ID = 8
"""Number of shown digits of an entry's id."""
_TITLE = "overlapscope history"
_CELLS, _LABEL = 60, 19
_OUTCOME: dict[str, tuple[str, Tone]] = {
    "pass": ("no worse", "good"),
    "fail": ("worse", "poor"),
    "inconclusive": ("unknown", "fair"),
}


def listing(store: Store, query: Query, entries: Sequence[HistoryRow]) -> Document:
    """Return a table of entries, newest first, with means over their devices."""
    query = replace(query, since_ns=entries[0].origin.at_ns) if entries else query
    figures = [
        (Column(title), partial(_figure, METRICS[metrics[0]], _means(store, metrics, query)))
        for title, metrics in _FIGURES.items()
    ]
    branch = (Column("branch", number=False, spare=2), lambda row: Cell(clean(row.origin.branch or "", 30)))
    outcome = (
        Column("check", number=False, spare=3),
        lambda row: Cell(row.outcome or "", tone=_TONES.get(row.outcome or "", "")),
    )
    table = table_of(
        list(reversed(entries)),
        (words("recorded (UTC)", heads=True), lambda row: Cell(moment(row.origin.at_ns), row.origin.at_ns)),
        (words("job"), lambda row: Cell(clean(row.origin.job, 30))),
        (words("commit"), lambda row: Cell(clean(short(row.origin.commit or ""), 40))),
        branch if any(row.origin.branch is not None for row in entries) else None,
        *figures,
        (Column("of", number=False, spare=1), lambda row: Cell("plain" if row.plain else "recording")),
        outcome if any(row.outcome is not None for row in entries) else None,
        (words("id"), lambda row: Cell(row.id[:_SHORT_ID])),
        title="Entries",
    )
    note = (
        "Figures are means over the devices. `plain`: of the program without the profiler, because its step was "
        "measured or given; `recording`: as recorded."
    )
    shown: Block = (
        replace(table, note=note) if entries else Text("No entry matches; `overlapscope history add` adds them.")
    )
    return Document("overlapscope history", (Heading("overlapscope history", 1), shown))


def _means(store: Store, metrics: Sequence[str], query: Query) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for point in (point for metric in metrics for point in store.points(metric, query)):
        values.setdefault(point.id, []).append(point.value)
    return {id: fmean(each) for id, each in values.items()}


def _figure(metric: Measure, means: Mapping[str, float], row: HistoryRow) -> Cell:
    value = means.get(row.id)
    return Cell("n/a" if value is None else show(value, metric.unit), value)


# -- Levels ---------------------------------------------------------------------------------------


def blocks(job: JobCourse) -> list[Block]:
    """Return the levels of a job in sentences, charts and a table."""
    if not job.courses:
        return [Text(f"{clean(job.job, 80)} has none of these metrics.")]
    first = job.courses[0]
    kinds: dict[str, list[str]] = {}
    for course in job.courses:
        kinds.setdefault(_kind(course), []).append(course.metric)
    whose = [""] if len(kinds) == 1 else [f" of {listed(metrics)}" for metrics in kinds.values()]
    changes = [sentence(course, change) for course in job.courses for change in course.levels.changes]
    unknown = {course.levels.unknown: None for course in job.courses if course.levels.unknown}
    if len(unknown) == 1 and all(course.levels.unknown for course in job.courses):
        return [Text(f"Whether {clean(job.job, 80)} got better or worse is unknown: {first.levels.unknown}.")]
    return [
        Heading(f"{clean(job.job, 80)}, by {first.by}"),
        *(Text(f"The levels{of} are of {kind}.") for of, kind in zip(whose, kinds, strict=True)),
        *([Items(tuple(changes))] if changes else []),
        *(Text(f"Changes are unknown: {reason}.", "fair") for reason in unknown),
        *([] if changes or unknown else [Text("No metric changed by more than noise.", "good")]),
        StripBlock(lambda glyphs: _drawing(job.courses, glyphs)),
        *(Chart(f"levels-{course.metric}", course.metric, partial(chart, course), wide=True) for course in job.courses),
        table(job.courses),
    ]


def _kind(course: Course) -> str:
    gpu = f" on {clean(course.gpu, 80)}" if course.gpu else ""
    return f"the program without the profiler{gpu}" if course.plain else f"recordings{gpu}"


def sentence(course: Course, change: LevelChange) -> str:
    """Return a sentence about a change.

    For example `step_time is worse since commit 1a2b3c (2026-11-03 10:12): 12.6 ms instead of 10.4 ms, 2.2 ms more (1.9
    to 2.5 ms).`
    """
    after, before = distinct((change.after, change.before), course.unit)
    direction = "worse" if change.worse else "better"
    since = _since(course.levels.groups[change.first])
    return f"{course.metric} is {direction} since {since}: {after} instead of {before}, {_by(change, course.unit)}."


def _since(group: Group) -> str:
    at = f"{moment(group.at_ns)} UTC"
    return f"commit {clean(short(group.commit), 40)} ({at})" if group.commit else at


def _by(change: LevelChange, unit: Unit) -> str:
    """Return `2.2 ms more (1.9 ms to 2.5 ms)`."""
    return _difference(change.after - change.before, change.low, change.high, unit)


def _difference(change: float, low: float, high: float, unit: Unit) -> str:
    if change < 0:
        change, low, high = -change, -high, -low
        word = "less"
    else:
        word = "more"
    amount, low_text, high_text = distinct((change, low, high), unit, pct="")
    points = " points" if unit == "pct" else ""
    return f"{amount}{points} {word} ({low_text} to {high_text})"


def table(courses: Sequence[Course]) -> Table:
    """Return a table of all levels of some metrics, the newest first."""
    lines: list[list[str | Cell]] = []
    for course in courses:
        groups = course.levels.groups
        changes = {change.first: change for change in course.levels.changes}
        for level in reversed(course.levels.levels):
            change, group = changes.get(level.first), groups[level.first]
            has_interval = level.low is not None and level.high is not None
            ends = distinct((level.low or 0.0, level.high or 0.0), course.unit) if has_interval else ()
            tone: Tone = "" if change is None else "poor" if change.worse else "good"
            lines.append(
                [
                    course.metric,
                    Cell(moment(group.at_ns), group.at_ns),
                    clean(short(group.commit or ""), 40),
                    Cell(str(level.end - level.first), level.end - level.first),
                    Cell(show(level.value, course.unit), level.value),
                    " to ".join(ends) or "unknown",
                    Cell(_by(change, course.unit), change.after - change.before, tone) if change else "",
                ]
            )
    columns = (
        words("metric", heads=True),
        words("since (UTC)"),
        words("commit"),
        Column("values"),
        Column("level"),
        Column("99% interval", spare=1),
        words("change"),
    )
    return Table("Levels", columns, rows(lines), id="levels")


# -- Strips -----------------------------------------------------------------------------------------


def _drawing(courses: Sequence[Course], glyphs: Glyphs) -> Drawing:
    lanes = [_lane(course, glyphs) for course in courses]
    oldest = min(course.levels.groups[0].at_ns for course in courses)
    newest = max(course.levels.groups[-1].at_ns for course in courses)
    scale = f"{'':<{_LABEL}}{moment(oldest)} to {moment(newest)} UTC, each line from its lowest to its highest value"
    return Drawing("Values, oldest first", tuple(lanes), (), scale, "")


def _lane(course: Course, glyphs: Glyphs) -> StripLine:
    values = [group.value for group in course.levels.groups]
    size = -(-len(values) // _CELLS)
    shown = [median(values[first : first + size]) for first in range(0, len(values), size)]
    low, high = min(shown), max(shown)
    top = len(glyphs.level) - 1
    steps = [top * (value - low) / (high - low) if high > low else 0.0 for value in shown]
    text = "".join(glyphs.level[round(step)] for step in steps)
    return StripLine(f"{course.metric:<{_LABEL}}", text, (None,) * len(text))


# -- Checks -----------------------------------------------------------------------------------------


def check_document(check: HistoryCheck) -> Document:
    """Return the standing of the newest report: the outcome, then a sentence for each metric."""
    word, tone = _OUTCOME[check.outcome]
    unit = "report" if check.by == "report" else check.by
    newest = f"newest {unit} of {clean(check.job, 80)}"
    worse = sum(_status(judged) == "worse" for judged in check.metrics)
    head = {
        "pass": f"The {newest} is no worse than its level.",
        "fail": f"The {newest} is worse than its level in {plural(worse, 'metric')}.",
        "inconclusive": f"It is unknown whether the {newest} is worse than its level.",
    }[check.outcome]
    order = ("worse", "unknown", "better", "same")
    ordered = sorted(check.metrics, key=lambda judged: order.index(_status(judged)))
    lines = Items(tuple(map(_sentence, ordered)))
    return Document(
        _TITLE,
        (
            Heading(f"{_TITLE} check", 1),
            Text(head, tone, badge=word),
            lines if check.metrics else Text("The history has none of these metrics."),
        ),
    )


def _status(judged: Judged) -> Literal["same", "worse", "better", "unknown"]:
    return "unknown" if judged.standing is None else judged.standing.status


def _sentence(judged: Judged) -> str:
    standing = judged.standing
    if standing is None:
        return f"{judged.metric} is unknown: the newest report has no comparable value."
    if standing.low is None or standing.high is None or standing.floor is None:
        return f"{judged.metric} is unknown: {standing.unknown}."
    level = standing.before.levels[-1]
    now, then = distinct((standing.newest.value, level.value), judged.unit)
    values = plural(level.end - level.first, "value")
    since = _since(standing.before.groups[level.first])
    text = f"{judged.metric} is {now}, and its level is {then} ({values} since {since})"
    if standing.newest.value == level.value:
        return f"{text}."
    change = _difference(standing.newest.value - level.value, standing.low, standing.high, judged.unit)
    if standing.status == "same":
        floor = difference(standing.floor, judged.unit)
        return f"{text}: {change}, which may be noise (changes up to {floor} always may)."
    return f"{text}: it is {standing.status}, {change}."


# -- Charts ------------------------------------------------------------------------------------------

_MAX_CHART_COLUMNS: Final = 300
"""Number of columns of a thinned chart, each a few pixels wide."""
_MAX_LARGE_POINTS: Final = 150
"""Maximum number of points to draw large, with ends on their error bars."""
_MAX_TICKS: Final = 12
_MAX_MARKS: Final = 8
"""Maximum number of labelled changes, the newest. The table has all."""


def chart(course: Course, dark: bool, chosen: Collection[str] = ()) -> Figure:
    """Return a chart of a metric with its levels and their changes.

    Each point's `customdata[0]` is the id of its newest report. Points of `chosen` ids have a ring. Points that would
    hide each other are thinned, but levels are those of all points.
    """
    colors, levels, by = palette(dark), course.levels, course.by
    groups = levels.groups
    scale, unit = 1.0, {"gb_per_s": "GB/s", "pct": "%"}.get(course.unit, course.unit)
    if course.unit == "ns":
        time = unit_for(round(max(group.value for group in groups)))
        scale, unit = time.ns, time.name

    def place(row: int) -> Any:
        if by == "commit":
            return row
        return datetime.fromtimestamp(groups[row].at_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")

    where = np.array([row if by == "commit" else group.at_ns for row, group in enumerate(groups)], np.float64)
    ringed = [row for row, group in enumerate(groups) if not set(chosen).isdisjoint(group.ids)]
    rows = sorted({*thin(where, np.array([group.value for group in groups]), _MAX_CHART_COLUMNS).tolist(), *ringed})
    few = len(rows) <= _MAX_LARGE_POINTS
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
    across: dict[str, Any] = {"type": "date"}
    if by == "commit":
        ticks = np.unique(np.linspace(0, len(groups) - 1, min(_MAX_TICKS, len(groups))).astype(int)).tolist()
        across = {"tickvals": ticks, "ticktext": [escape(short(groups[row].commit or "no commit")) for row in ticks]}
    marks = [_mark(change, course, place, scale, colors) for change in levels.changes[-_MAX_MARKS:]]
    return figure(
        [points, *_levels(levels, place, scale, colors), *([rings] if ringed else [])],
        dark,
        height=360,
        hovermode="closest",
        # A redrawn chart keeps its zoom.
        uirevision=f"{course.metric} {by}",
        annotations=marks,
        xaxis=axis(dark, showgrid=False, **across),
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
        "text": escape(_since_label(course.levels.groups[change.first], change, course)),
        "font": {"color": colors["poor" if change.worse else "good"]},
        "bgcolor": colors["panel"],
        "arrowcolor": colors["muted"],
        "arrowwidth": 1,
        "ax": 0,
        "ay": -36,
    }


def _hover_text(group: Group, unit: Unit) -> str:
    """Return the text beside the pointer."""
    lines = [f"commit {escape(short(group.commit))}"] if group.commit is not None else []
    lines += [f"{moment(group.at_ns)} UTC", show(group.value, unit)]
    return "<br>".join([*lines, *([plural(len(group.ids), "report")] if len(group.ids) > 1 else [])])


def _since_label(group: Group, change: LevelChange, course: Course) -> str:
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
    return np.unique(np.concatenate([first, last, by_value[first], by_value[last]]))

"""Figures that color ranks, and charts with a place for each rank. They work for two ranks and for thousands."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct

from overlapscope.base.words import Unit, percent, plural, unit_for
from overlapscope.catalog.buckets import bucket_of
from overlapscope.documents.colors import HEAT, palette
from overlapscope.documents.figure import axis, escape, figure, stacked_bars
from overlapscope.documents.model import Figure
from overlapscope.ranks.result import RankRow, RanksReport, by_steps, rows_of
from overlapscope.ranks.verdict import POOR_PCT, row_name

# -- Figures that color ranks ------------------------------------------------------------------------


class RankMetric(Struct, frozen=True):
    """A figure of a rank."""

    title: str
    measure: Literal["ns", "pct"]
    meaning: str
    of: Callable[[RankRow], float | None]
    from_zero: bool = True
    """True if its colors begin at zero."""


METRICS: Final = {
    "delay": RankMetric(
        "delay of others",
        "ns",
        "How long the compute of each other rank waited for this rank in an average step, on average.",
        lambda row: row.lost_ns,
    ),
    "exposed-comm": RankMetric(
        "exposed communication",
        "pct",
        "Share of its time in which it communicated without computing, including waiting.",
        lambda row: row.exposed_comm_pct,
    ),
    "step": RankMetric(
        "step time",
        "ns",
        "Its average step, as recorded.",
        lambda row: row.judged.span_ns if row.judged is not None and row.judged.steps else None,
        from_zero=False,
    ),
}


def metrics_shown(report: RanksReport) -> tuple[RankMetric, ...]:
    """Return the metrics that at least one rank has, the most useful first."""
    rows = rows_of(report)
    return tuple(metric for metric in METRICS.values() if any(metric.of(row) is not None for row in rows))


MAX_BARS = 2048
"""Maximum number of ranks in the charts that have a bar for each rank."""
_APART, _BARS_PX = 64, 300
"""Maximum number of bars with gaps between them, and the height of the chart."""
MAX_STEPS, MAX_CELLS = 48, 32_768
"""Maximum number of steps in the map of steps, and of its cells. The steps with the largest differences are kept."""
_MAX_NUMBERED_PLACES = 64
"""Maximum number of places that show their rank and value as text."""
_MAX_SPACED_PLACES = 128
"""Maximum number of places in a line with gaps between them."""
_TALLEST_PX, _MIN_PX, _MAX_PX = 520, 6, 46
_MARGINS_PX = 60


class _MapCell(NamedTuple):
    """A place of a map."""

    value: float | None
    """Value that colors it; None for a place without color."""
    tooltip: str
    text: str = ""


def _map(
    cells: Sequence[_MapCell], columns: int, low: float, high: float, colors: Sequence[str], gap: int, **more: Any
) -> dict[str, Any]:
    """Draw cells in lines of `columns`, filled up at the end. Their colors go from `low` to `high`."""
    padded = [*cells, *[_MapCell(None, "")] * (-len(cells) % columns)]
    lines = [padded[start : start + columns] for start in range(0, len(padded), columns)]
    texts = [[cell.text for cell in line] for line in lines]
    return {
        "type": "heatmap",
        "hoverongaps": False,
        "hovertemplate": "%{hovertext}<extra></extra>",
        "z": [[cell.value for cell in line] for line in lines],
        "zmin": low,
        "zmax": high,
        "colorscale": [[number / (len(colors) - 1), color] for number, color in enumerate(colors)],
        "hovertext": [[cell.tooltip for cell in line] for line in lines],
        "xgap": gap,
        "ygap": max(gap, 1),
        **({"text": texts, "texttemplate": "%{text}"} if any(map(any, texts)) else {}),
        **more,
    }


def _colorbar(unit: str, dark: bool) -> dict[str, Any]:
    muted = {"color": palette(dark)["muted"]}
    bar = {"ticksuffix": f" {unit}", "thickness": 12, "outlinewidth": 0, "tickfont": muted}
    return bar | {"nticks": 6, "x": 1.01, "xpad": 4}


def _labelled(dark: bool, at: Sequence[int], labels: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis of places, some of which have a label."""
    return axis(dark, showgrid=False, tickmode="array", tickvals=at, ticktext=labels, **more)


# -- Ranks -----------------------------------------------------------------------------------------


def rank_map(report: RanksReport, metric: RankMetric, dark: bool) -> Figure:
    """Draw a place for each rank, in lines whose length is a power of two. `slot_at` returns the rank of a place."""
    places, rows, is_pct = slots(report), rows_of(report), metric.measure == "pct"
    columns = columns_for(len(places))
    values = [None if place.row is None else metric.of(rows[place.row]) for place in places]
    present = [value for value in values if value is not None]
    # What hardly differs looks alike: the least range of colors is what makes a rank poor.
    step_ns = median_low([row.span_ns for row in rows] or [0])
    least = POOR_PCT if is_pct else max(1.0, POOR_PCT / 100 * step_ns)
    unit = unit_for(round(max(map(abs, [*present, least]))))
    scale = 1 if is_pct else unit.ns
    known, absent = list[_MapCell](), list[_MapCell]()
    for place, value in zip(places, values, strict=True):
        text = percent(value) if is_pct else unit.text(None if value is None else round(value))
        tooltip = _tooltip(report, place, f"{metric.title}: {text if value is not None else 'unknown'}")
        written = f"{escape(place.label, 12)}<br>{text}" if len(places) <= _MAX_NUMBERED_PLACES else ""
        known.append(_MapCell(None if value is None else value / scale, tooltip, written))
        absent.append(_MapCell(1 if value is None else None, tooltip, "" if place.state == "known" else "×"))
    gap, colors, data = 2 if len(places) <= _MAX_SPACED_PLACES else 1, palette(dark), list[dict[str, Any]]()
    if present:
        bar = _colorbar("%" if is_pct else unit.name, dark)
        # With equal values, the scale would show values that don't occur.
        shows = {"showscale": max(present) > min(present), "colorbar": bar, "textfont": {"size": 11}}
        low = 0.0 if metric.from_zero else min(present)
        high = max(*present, low + least)
        data.append(_map(known, columns, low / scale, high / scale, HEAT[dark], gap, **shows))
    if len(present) < len(places):
        grey = {"showscale": False, "textfont": {"size": 12, "color": colors["text"]}}
        data.append(_map(absent, columns, 0, 1, [colors["grid"]] * 2, gap, **grey))
    lines = max(1, -(-len(places) // columns))
    height = lines * max(_MIN_PX, min(_MAX_PX, _TALLEST_PX // lines)) + _MARGINS_PX
    return figure(data, dark, height=height, showlegend=False, **_map_axes(places, columns, lines, dark))


def _tooltip(report: RanksReport, place: Slot, figure: str) -> str:
    """Return the tooltip of a place, given the words for its value."""
    if place.row is None:
        why = "no trace is here" if place.state == "missing" else "its trace cannot be read"
        return f"{escape(place.name)}<br>{why}"
    row = report.ranks[place.row]
    lines = [f"<b>{escape(place.name)}</b>", figure]
    if row.last_in is not None:
        lines.append(f"last in {row.last_in:,} of {plural(row.meetings, 'collective')}")
    if row.device_name:
        lines.append(escape(f"{row.device_name}, device {row.device}"))
    return "<br>".join(lines)


def _map_axes(places: Sequence[Slot], columns: int, lines: int, dark: bool) -> dict[str, Any]:
    """Return the axes of the map: lines have their first rank as label, places the number to add to it."""
    shown, fixed = min(columns, max(len(places), 1)), {"fixedrange": True, "ticks": "", "showline": False}
    counted = all(place.label == str(number) for number, place in enumerate(places))
    across = list(range(0, shown, max(1, columns // 8))) if counted and len(places) > columns else []
    down = list(range(0, lines, max(1, -(-lines // 32))))
    firsts = [escape(places[number * columns].label, 24) if places else "" for number in down]
    plus = [f"+{number}" for number in across]
    return {
        "xaxis": _labelled(dark, across, plus, side="top", range=[-0.5, shown - 0.5], **fixed),
        "yaxis": _labelled(dark, down, firsts, range=[lines - 0.5, -0.5], **fixed),
    }


# -- Steps -----------------------------------------------------------------------------------------


def step_map(report: RanksReport, dark: bool) -> Figure:
    """Return a chart: a line for each of the `drawn_steps`, a place for each rank, colored by the rank's delay.

    The delay is against the median of the step over all ranks.
    """
    places, drawn = slots(report), drawn_steps(report)
    unit = unit_for(max((report.steps[number].median_ns for number in drawn), default=0))
    cells = [_skew(report, place, number, unit) for number in drawn for place in places]
    high = max((cell.value for cell in cells if cell.value is not None), default=0.0)
    bar, gap = _colorbar("%", dark), 1 if len(places) <= _MAX_SPACED_PLACES else 0
    cell_px = max(8, min(30, _TALLEST_PX // max(len(drawn), 1)))
    labels = [escape(report.steps[number].name, 24) for number in drawn]
    return figure(
        [_map(cells, max(len(places), 1), 0, max(high, POOR_PCT), HEAT[dark], gap, colorbar=bar)],
        dark,
        height=max(150, len(drawn) * cell_px + _MARGINS_PX + 20),
        showlegend=False,
        xaxis=_rank_axis(places, dark, range=[-0.5, len(places) - 0.5]),
        yaxis=_labelled(dark, list(range(len(drawn))), labels, range=[len(drawn) - 0.5, -0.5], fixedrange=True),
    )


def drawn_steps(report: RanksReport) -> list[int]:
    """Return the numbers of the steps in the map of steps, in order; none if no two ranks have a step in common."""
    most = max(1, min(MAX_STEPS, MAX_CELLS // max(len(slots(report)), 1)))
    compared = [number for number, step in enumerate(report.steps) if step.ranks > 1]
    spreads = [step.spread_ns / step.median_ns if step.median_ns else 0.0 for step in report.steps]
    widest = sorted(compared, key=lambda number: (-spreads[number], number))
    return sorted(widest[:most])


def step_note(report: RanksReport, drawn: int) -> str:
    """Return the note below the map of steps, with the number of steps it shows."""
    sentence, count = "How much longer than the median rank each rank took for each step.", len(report.steps)
    few = f" It shows the {drawn:,} of {count:,} steps in which the ranks differ most."
    return f"{sentence}{few if drawn < count else ''}"


def _skew(report: RanksReport, place: Slot, number: int, unit: Unit) -> _MapCell:
    step = report.steps[number]
    span = None if place.row is None else report.ranks[place.row].step_spans_ns[number]
    name = f"<b>{escape(place.name)}</b>, {escape(step.name)}"
    if span is None or not step.median_ns:
        return _MapCell(None, f"{name}<br>not recorded, or only in part")
    over = 100 * (span - step.median_ns) / step.median_ns
    than = "longer" if over > 0 else "shorter"
    comparison = f"{percent(abs(over))} {than} than the median rank" if over else "as long as the median rank"
    return _MapCell(over, f"{name}<br>{unit.text(span)}: {comparison}")


# -- Buckets ---------------------------------------------------------------------------------------


def has_rank_buckets(report: RanksReport) -> bool:
    """Return whether there are ranks, and few enough for a bar each."""
    return bool(report.ranks) and len(slots(report)) <= MAX_BARS


def rank_buckets(report: RanksReport, dark: bool) -> Figure:
    """Draw the buckets of each rank as a stacked bar, with a gap for an absent rank."""
    places, rows = slots(report), rows_of(report)
    unit = unit_for(max((row.span_ns for row in rows), default=0))
    named = [{} if place.row is None else rows[place.row].buckets.named() for place in places]
    bars = [{bucket_of(name).name: ns for name, ns in buckets.items()} for buckets in named]
    return figure(
        stacked_bars(bars, [escape(place.name) for place in places], unit, dark, range(len(places))),
        dark,
        height=_BARS_PX,
        barmode="stack",
        bargap=0.2 if len(places) <= _APART else 0,
        xaxis=_rank_axis(places, dark),
        yaxis=axis(dark, f"{'average step' if by_steps(rows) else 'time on the device'}, {unit.name}"),
    )


def _rank_axis(places: Sequence[Slot], dark: bool, **more: Any) -> dict[str, Any]:
    """Return an axis with all places in one line. At most 16 have a label, each a multiple of a power of two."""
    stride = 1
    while len(places) > _MAX_LABELS * stride:
        stride *= 2
    ticks = list(range(0, len(places), stride))
    labels = [escape(places[number].label, 24) for number in ticks]
    return _labelled(dark, ticks, labels, title="rank", **more)


# -- Places: one for each expected rank, with or without a trace -----------------------------------

_MIN_COLUMNS = 8
_MAX_LABELS = 16


class Slot(Struct, frozen=True):
    """A place for one rank."""

    name: str
    label: str
    """Label on an axis: the rank's number, or the file."""
    state: Literal["known", "missing", "unreadable"]
    row: int | None
    """Number of the rank's row in the report; None where it has none."""


def slots(report: RanksReport) -> tuple[Slot, ...]:
    """Return the places by rank, then device; traces without a rank come last.

    If a rank has several traces, its place shows the one that was compared; if none was, the first.
    """
    places = {rank: [Slot(f"rank {rank}", str(rank), "missing", None)] for rank in report.missing}
    for rank in (trace.rank for trace in report.unreadable if trace.rank is not None):
        places[rank] = [Slot(f"rank {rank}", str(rank), "unreadable", None)]
    nameless, numbered = list[Slot](), defaultdict[int, list[tuple[int, RankRow]]](list)
    for number, row in enumerate(report.ranks):
        if row.rank is None:
            nameless.append(Slot(name := row_name(row), name, "known", number))
        else:
            numbered[row.rank].append((number, row))
    for rank, rows in numbered.items():
        used = [each for each in rows if each[1].joined] or [
            each for each in rows if each[1].source == rows[0][1].source
        ]
        several = len(used) > 1
        places[rank] = [
            Slot(row_name(row, device=several), f"{rank}:{row.device}" if several else str(rank), "known", number)
            for number, row in used
        ]
    return (*(place for rank in sorted(places) for place in places[rank]), *nameless)


def slot_at(report: RanksReport, x: int, y: int = 0) -> Slot | None:
    """Return the place at these coordinates of a map of ranks. In a chart of one line, all places are in the first."""
    places = slots(report)
    number = y * columns_for(len(places)) + x
    return places[number] if 0 <= number < len(places) else None


def columns_for(count: int) -> int:
    """Return the number of places in a line.

    It is a power of two, as the number of ranks of a host is, and the map is never taller than wide.
    """
    columns = _MIN_COLUMNS
    while columns * columns < count:
        columns *= 2
    return columns

"""Figures that color ranks, and charts with a place for each rank. They work for two ranks and for thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from statistics import median_low
from typing import Any, Final, Literal

from msgspec import Struct

from overlapscope.base.words import Unit, percent, plural, unit_for
from overlapscope.catalog.buckets import bucket_of
from overlapscope.documents.colors import HEAT, palette
from overlapscope.documents.figure import Figure, axis, escape, figure, stacked_bars
from overlapscope.ranks.result import RankRow, RanksReport, by_steps, rows_of
from overlapscope.ranks.verdict import POOR_PCT, row_name

# -- Figures that color ranks ------------------------------------------------------------------------


class RankMetric(Struct, frozen=True):
    """A figure of a rank."""

    key: str
    title: str
    measure: Literal["ns", "pct"]
    meaning: str
    of: Callable[[RankRow], float | None]
    worse: Literal["more", "less"] = "more"
    from_zero: bool = True
    """True if its colors begin at zero."""

    def text(self, value: float | None, unit: Unit) -> str:
        """Return a value with its unit."""
        if self.measure == "pct":
            return percent(value)
        return unit.text(None if value is None else round(value))


METRICS: Final[dict[str, RankMetric]] = {
    metric.key: metric
    for metric in (
        RankMetric(
            "delay",
            "delay of others",
            "ns",
            "How long the compute of each other rank waited for this rank in an average step, on average.",
            lambda row: row.lost_ns,
        ),
        RankMetric(
            "waited",
            "waited",
            "ns",
            "How long its collectives ran in an average step before the last rank arrived.",
            lambda row: row.waited_ns,
        ),
        RankMetric(
            "exposed-comm",
            "exposed communication",
            "pct",
            "Share of its time in which it communicated without computing, including waiting.",
            lambda row: row.exposed_comm_pct,
        ),
        RankMetric(
            "efficiency",
            "overlap efficiency",
            "pct",
            "How much of the possible overlap of copies and kernels happened.",
            lambda row: row.efficiency_pct,
            worse="less",
            from_zero=False,
        ),
        RankMetric(
            "step",
            "step time",
            "ns",
            "Its average step, as recorded.",
            lambda row: row.judged.span_ns if row.judged is not None and row.judged.steps else None,
            from_zero=False,
        ),
    )
}


def values_of(report: RanksReport, metric: RankMetric) -> list[float]:
    """Return the values of the ranks that have one."""
    return [value for row in rows_of(report) if (value := metric.of(row)) is not None]


def metrics_shown(report: RanksReport) -> tuple[RankMetric, ...]:
    """Return the metrics that at least one rank has, the most useful first."""
    return tuple(metric for metric in METRICS.values() if values_of(report, metric))


def first_metric(report: RanksReport) -> RankMetric | None:
    """Return the metric to show first: waiting for others if there is any, otherwise the first that isn't zero."""
    metrics = metrics_shown(report)
    return next((metric for metric in metrics if any(values_of(report, metric))), next(iter(metrics), None))


def unit_of(metric: RankMetric, values: Iterable[float]) -> Unit:
    """Return one unit for all values; any unit for percentages."""
    longest = max((abs(value) for value in values), default=0) if metric.measure == "ns" else 0
    return unit_for(round(longest))


MOST_BARS = 2048
"""Maximum number of ranks in the charts that have a bar for each rank."""
_APART, _BARS_PX = 64, 300
"""Maximum number of bars with gaps between them, and the height of the chart."""
MOST_STEPS, MOST_CELLS = 48, 32_768
"""Maximum number of steps in the map of steps, and of its cells. The steps with the largest differences are kept."""
_NUMBERED = 64
"""Maximum number of places that show their rank and value as text."""
_SPACED = 128
"""Maximum number of places in a line with gaps between them."""
_TALLEST_PX, _LEAST_PX, _MOST_PX = 520, 6, 46
_MARGINS_PX = 60

_MAP: Final = {"type": "heatmap", "hoverongaps": False, "hovertemplate": "%{hovertext}<extra></extra>"}
"""Options common to all maps."""
_FIXED: Final = {"fixedrange": True, "ticks": "", "showline": False}

_Matrix = list[list[Any]]


def rank_map(report: RanksReport, metric: RankMetric, dark: bool) -> Figure:
    """Draw a place for each rank, in lines whose length is a power of two. `slot_at` returns the rank of a place."""
    places = slots(report)
    columns = columns_for(len(places))
    rows = rows_of(report)
    values = [None if place.row is None else metric.of(rows[place.row]) for place in places]
    present = [value for value in values if value is not None]
    least = _least_range(rows, metric)
    unit = unit_of(metric, [*present, least])
    lines = max(1, -(-len(places) // columns))
    tooltips = [_tooltip(report, place, metric, value, unit) for place, value in zip(places, values, strict=True)]
    scale = unit.ns if metric.measure == "ns" else 1
    scaled = [None if value is None else value / scale for value in values]
    data: list[dict[str, Any]] = []
    if present:
        data.append(
            {
                **_heat(metric, [value / scale for value in present], least / scale, unit, dark),
                "z": _folded(scaled, columns, None),
                "hovertext": _folded(tooltips, columns, ""),
                **_written(places, values, metric, unit, columns),
            }
        )
    absent = [place.state if value is None else None for place, value in zip(places, values, strict=True)]
    if any(absent):
        data.append(_absent(absent, tooltips, columns, dark))
    across = min(columns, max(len(places), 1))
    cell = max(_LEAST_PX, min(_MOST_PX, _TALLEST_PX // lines))
    return figure(
        data,
        dark,
        height=lines * cell + _MARGINS_PX,
        showlegend=False,
        xaxis=_across(places, columns, across, dark),
        yaxis=_down(places, columns, lines, dark),
    )


def _folded(flat: Sequence[Any], columns: int, empty: Any) -> _Matrix:
    """Split a list into lines, and fill up the last one."""
    padded = [*flat, *[empty] * (-len(flat) % columns)]
    return [padded[start : start + columns] for start in range(0, len(padded), columns)]


def _least_range(rows: Sequence[RankRow], metric: RankMetric) -> float:
    """Return the minimum range of a map's colors: what makes a rank poor, so that what hardly differs looks alike."""
    step_ns = median_low([row.span_ns for row in rows] or [0])
    return POOR_PCT if metric.measure == "pct" else max(1.0, POOR_PCT / 100 * step_ns)


def _heat(metric: RankMetric, values: Sequence[float], least: float, unit: Unit, dark: bool) -> dict[str, Any]:
    """Return the options common to all maps of a figure. Stronger colors are worse; `least` is their minimum range."""
    low = 0.0 if metric.from_zero else min(values)
    high = max(values)
    if high - low < least:
        low, high = (low, low + least) if metric.worse == "more" else (high - least, high)
    colors = HEAT[dark] if metric.worse == "more" else HEAT[dark][::-1]
    suffix = "%" if metric.measure == "pct" else unit.name
    return {
        **_MAP,
        "zmin": low,
        "zmax": high,
        "colorscale": _scale(colors),
        **_gaps(len(values)),
        # With equal values, the scale would show values that don't occur.
        "showscale": max(values) > min(values),
        "colorbar": _colorbar(suffix, dark),
    }


def _gaps(count: int) -> dict[str, int]:
    return {"xgap": 2, "ygap": 2} if count <= _SPACED else {"xgap": 1, "ygap": 1}


def _scale(colors: Sequence[str]) -> list[list[Any]]:
    return [[number / (len(colors) - 1), color] for number, color in enumerate(colors)]


def _colorbar(unit: str, dark: bool) -> dict[str, Any]:
    return {
        "ticksuffix": f" {unit}",
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"color": palette(dark)["muted"]},
        "nticks": 6,
        "x": 1.01,
        "xpad": 4,
    }


def _written(
    places: Sequence[Slot], values: Sequence[float | None], metric: RankMetric, unit: Unit, columns: int
) -> dict[str, Any]:
    """Return the rank and value of each place as text, if there is room."""
    if len(places) > _NUMBERED:
        return {}
    both = zip(places, values, strict=True)
    texts = [f"{escape(place.label, 12)}<br>{metric.text(value, unit)}" for place, value in both]
    return {"text": _folded(texts, columns, ""), "texttemplate": "%{text}", "textfont": {"size": 11}}


def _absent(states: Sequence[str | None], tooltips: Sequence[str], columns: int, dark: bool) -> dict[str, Any]:
    """Draw the places without a figure in grey, with a cross where a trace is absent."""
    colors = palette(dark)
    crosses = ["" if state in (None, "known") else "×" for state in states]
    return {
        **_MAP,
        "z": _folded([None if state is None else 1 for state in states], columns, None),
        "zmin": 0,
        "zmax": 1,
        "colorscale": _scale([colors["grid"], colors["grid"]]),
        "showscale": False,
        "text": _folded(crosses, columns, ""),
        "texttemplate": "%{text}",
        "textfont": {"size": 12, "color": colors["text"]},
        "hovertext": _folded(tooltips, columns, ""),
        **_gaps(len(states)),
    }


def _tooltip(report: RanksReport, place: Slot, metric: RankMetric, value: float | None, unit: Unit) -> str:
    """Return the tooltip of a place."""
    if place.row is None:
        why = "no trace is here" if place.state == "missing" else "its trace cannot be read"
        return f"{escape(place.name)}<br>{why}"
    row = report.ranks[place.row]
    figure = f"{metric.title}: {metric.text(value, unit) if value is not None else 'unknown'}"
    lines = [f"<b>{escape(place.name)}</b>", figure]
    if row.last_in is not None:
        lines.append(f"last in {row.last_in:,} of {plural(row.meetings, 'collective')}")
    if row.device_name:
        lines.append(escape(f"{row.device_name}, device {row.device}"))
    return "<br>".join(lines)


def _across(places: Sequence[Slot], columns: int, shown: int, dark: bool) -> dict[str, Any]:
    """Return the axis of places within a line, labelled with the number to add to the line's first rank."""
    counted = all(place.label == str(number) for number, place in enumerate(places))
    every = max(1, columns // 8)
    ticks = list(range(0, shown, every)) if counted and len(places) > columns else []
    labels = [f"+{number}" for number in ticks]
    return _labelled(dark, ticks, labels, side="top", range=[-0.5, shown - 0.5], **_FIXED)


def _down(places: Sequence[Slot], columns: int, lines: int, dark: bool) -> dict[str, Any]:
    every = max(1, -(-lines // 32))
    ticks = list(range(0, lines, every))
    labels = [escape(places[number * columns].label, 24) if places else "" for number in ticks]
    return _labelled(dark, ticks, labels, range=[lines - 0.5, -0.5], **_FIXED)


def _labelled(dark: bool, at: Sequence[int], labels: Sequence[str], **more: Any) -> dict[str, Any]:
    """Return an axis of places, some of which have a label."""
    return axis(dark, showgrid=False, tickmode="array", tickvals=at, ticktext=labels, **more)


# -- Steps -----------------------------------------------------------------------------------------


def step_map(report: RanksReport, dark: bool) -> Figure:
    """Return a chart: a line for each of the `drawn_steps`, a place for each rank, colored by the rank's delay.

    The delay is against the median of the step over all ranks.
    """
    places, drawn = slots(report), drawn_steps(report)
    unit = unit_for(max((report.steps[number].median_ns for number in drawn), default=0))
    cells = [[_skew(report, place, number, unit) for place in places] for number in drawn]
    high = max((value for line in cells for value, _ in line if value is not None), default=0.0)
    heat = {
        **_MAP,
        "z": [[value for value, _ in line] for line in cells],
        "zmin": 0,
        "zmax": max(high, POOR_PCT),
        "colorscale": _scale(HEAT[dark]),
        "hovertext": [[tooltip for _, tooltip in line] for line in cells],
        "xgap": 1 if len(places) <= _SPACED else 0,
        "ygap": 1,
        "colorbar": _colorbar("%", dark),
    }
    cell = max(8, min(30, _TALLEST_PX // max(len(drawn), 1)))
    labels = [escape(report.steps[number].name, 24) for number in drawn]
    return figure(
        [heat],
        dark,
        height=max(150, len(drawn) * cell + _MARGINS_PX + 20),
        showlegend=False,
        xaxis=_rank_axis(places, dark, range=[-0.5, len(places) - 0.5]),
        yaxis=_labelled(dark, list(range(len(drawn))), labels, range=[len(drawn) - 0.5, -0.5], fixedrange=True),
    )


def drawn_steps(report: RanksReport) -> list[int]:
    """Return the numbers of the steps in the map of steps, in order; none if no two ranks have a step in common."""
    most = max(1, min(MOST_STEPS, MOST_CELLS // max(len(slots(report)), 1)))
    compared = [number for number, step in enumerate(report.steps) if step.ranks > 1]
    spreads = [step.spread_ns / step.median_ns if step.median_ns else 0.0 for step in report.steps]
    widest = sorted(compared, key=lambda number: (-spreads[number], number))
    return sorted(widest[:most])


def step_note(report: RanksReport, drawn: int) -> str:
    """Return the note below the map of steps, with the number of steps it shows."""
    sentence = "How much longer than the median rank each rank took for each step."
    count = len(report.steps)
    return (
        f"{sentence} It shows the {drawn:,} of {count:,} steps in which the ranks differ most."
        if drawn < count
        else sentence
    )


def _skew(report: RanksReport, place: Slot, number: int, unit: Unit) -> tuple[float | None, str]:
    """Return a place's value and tooltip."""
    step = report.steps[number]
    row = report.ranks[place.row] if place.row is not None else None
    span = row.step_spans_ns[number] if row is not None else None
    name = f"<b>{escape(place.name)}</b>, {escape(step.name)}"
    if span is None or not step.median_ns:
        return None, f"{name}<br>not recorded, or only in part"
    over = 100 * (span - step.median_ns) / step.median_ns
    than = "longer" if over > 0 else "shorter"
    comparison = f"{percent(abs(over))} {than} than the median rank" if over else "as long as the median rank"
    return over, f"{name}<br>{unit.text(span)}: {comparison}"


# -- Buckets ---------------------------------------------------------------------------------------


def has_rank_buckets(report: RanksReport) -> bool:
    """Return whether there are ranks, and few enough for a bar each."""
    return bool(report.ranks) and len(slots(report)) <= MOST_BARS


def rank_buckets(report: RanksReport, dark: bool) -> Figure:
    """Draw the buckets of each rank as a stacked bar, with a gap for an absent rank."""
    places = slots(report)
    rows = rows_of(report)
    unit = unit_for(max((row.span_ns for row in rows), default=0))
    bars = stacked_bars(
        [
            {}
            if place.row is None
            else {bucket_of(name).name: ns for name, ns in rows[place.row].buckets.named().items()}
            for place in places
        ],
        [escape(place.name) for place in places],
        unit,
        dark,
        positions=range(len(places)),
    )
    return figure(
        bars,
        dark,
        height=_BARS_PX,
        barmode="stack",
        bargap=0.2 if len(places) <= _APART else 0,
        xaxis=_rank_axis(places, dark),
        yaxis=axis(dark, f"{'average step' if by_steps(rows) else 'time on the device'}, {unit.name}"),
    )


def _rank_axis(places: Sequence[Slot], dark: bool, **more: Any) -> dict[str, Any]:
    """Return an axis with all places in one line."""
    ticks = ticks_for(len(places))
    labels = [escape(places[number].label, 24) for number in ticks]
    return _labelled(dark, ticks, labels, title="rank", **more)


# -- Places: one for each expected rank, with or without a trace -----------------------------------

State = Literal["known", "missing", "unreadable"]
_LEAST_COLUMNS = 8
_LABELS = 16


class Slot(Struct, frozen=True):
    """A place for one rank."""

    name: str
    label: str
    """Label on an axis: the rank's number, or the file."""
    state: State
    row: int | None
    """Number of the rank's row in the report; None where it has none."""


def slots(report: RanksReport) -> tuple[Slot, ...]:
    """Return the places by rank, then device; traces without a rank come last.

    If a rank has several traces, its place shows the one that was compared.
    """
    ranked = {rank: [_without_row(rank, "missing")] for rank in report.missing}
    ranked |= {
        trace.rank: [_without_row(trace.rank, "unreadable")] for trace in report.unreadable if trace.rank is not None
    }
    used = _used(report)
    shown = Counter(report.ranks[number].rank for number in used)
    for rank in shown:
        if rank is not None:
            ranked[rank] = []
    nameless: list[Slot] = []
    for number in used:
        row = report.ranks[number]
        several = row.rank is not None and shown[row.rank] > 1
        label = row_name(row) if row.rank is None else f"{row.rank}:{row.device}" if several else str(row.rank)
        slot = Slot(row_name(row, device=several), label, "known", number)
        (nameless if row.rank is None else ranked[row.rank]).append(slot)
    return (*(slot for rank in sorted(ranked) for slot in ranked[rank]), *nameless)


def _without_row(rank: int, state: State) -> Slot:
    return Slot(f"rank {rank}", str(rank), state, None)


def _used(report: RanksReport) -> list[int]:
    """Return the numbers of the rows shown for their ranks.

    These are the rows that were compared. If none of a rank's rows was, they are those of its first trace.
    """
    compared = {row.rank for row in report.ranks if row.joined}
    first: dict[int | None, str] = {}
    for row in report.ranks:
        first.setdefault(row.rank, row.source)

    def stands(row: RankRow) -> bool:
        return row.rank is None or (row.joined if row.rank in compared else row.source == first[row.rank])

    return [number for number, row in enumerate(report.ranks) if stands(row)]


def ticks_for(count: int) -> list[int]:
    """Return which places of a line have a label: at most 16, each a multiple of a power of two."""
    every = 1
    while count > _LABELS * every:
        every *= 2
    return list(range(0, count, every))


def slot_at(report: RanksReport, x: int, y: int = 0) -> Slot | None:
    """Return the place at these coordinates of a map of ranks. In a chart of one line, all places are in the first."""
    places = slots(report)
    number = y * columns_for(len(places)) + x
    return places[number] if 0 <= number < len(places) else None


def columns_for(count: int) -> int:
    """Return the number of places in a line.

    It is a power of two, as the number of ranks of a host is, and the map is never taller than wide.
    """
    columns = _LEAST_COLUMNS
    while columns * columns < count:
        columns *= 2
    return columns

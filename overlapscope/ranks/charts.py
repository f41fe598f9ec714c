"""The ranks of a job as charts: a place for each rank, with a colour or a bar; two ranks can be read, and thousands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from overlapscope.base.words import Unit, percent, plural, unit_for
from overlapscope.documents.colors import HEAT, palette
from overlapscope.documents.figure import Figure, axis, escape, figure, stacked_bars
from overlapscope.ranks.metrics import Metric, unit_of
from overlapscope.ranks.result import RankRow, RanksReport, StepSkew
from overlapscope.ranks.verdict import row_name

MOST_BARS = 2048
"""Of more ranks only the maps show each one."""
_APART, _BARS_PX = 64, 300
"""Up to so many bars have gaps between them; how tall they are."""
MOST_STEPS, MOST_CELLS = 48, 32_768
"""Steps in the map of steps, and places in all of them; of more steps, those in which the ranks differ most."""
_NUMBERED = 64
"""Up to so many places have their rank and value written into them."""
_SPACED = 128
"""Up to so many places in a line have gaps between them."""
_TALLEST_PX, _LEAST_PX, _MOST_PX = 520, 6, 46
_MARGINS_PX = 60
_LEAST_RANGE_PCT = 5.0
"""Colours span at least this share of the largest value, so that what is even looks even."""
_LEAST_SKEW_PCT = 2.0

_MAP: Final = {"type": "heatmap", "hoverongaps": False, "hovertemplate": "%{hovertext}<extra></extra>"}
"""What all maps have in common."""
_FIXED: Final = {"fixedrange": True, "ticks": "", "showline": False}

_Matrix = list[list[Any]]


def rank_map(report: RanksReport, metric: Metric, dark: bool) -> Figure:
    """A place for each rank, in lines of a power of two. `slot_at` tells which place is where."""
    places = slots(report)
    columns = columns_for(len(places))
    values = [None if place.row is None else metric.of(report.ranks[place.row]) for place in places]
    known = [value for value in values if value is not None]
    unit = unit_of(metric, known)
    lines = max(1, -(-len(places) // columns))
    told = [_told(report, place, metric, value, unit) for place, value in zip(places, values, strict=True)]
    scale = unit.ns if metric.measure == "ns" else 1
    scaled = [None if value is None else value / scale for value in values]
    data: list[dict[str, Any]] = []
    if known:
        data.append(
            {
                **_heat(metric, [value for value in scaled if value is not None], unit, dark),
                "z": _folded(scaled, columns, None),
                "hovertext": _folded(told, columns, ""),
                **_written(places, values, metric, unit, columns),
            }
        )
    absent = [place.state if value is None else None for place, value in zip(places, values, strict=True)]
    if any(absent):
        data.append(_absent(absent, told, columns, dark))
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
    """A list in lines, the last one filled up."""
    padded = [*flat, *[empty] * (-len(flat) % columns)]
    return [padded[start : start + columns] for start in range(0, len(padded), columns)]


def _heat(metric: Metric, values: Sequence[float], unit: Unit, dark: bool) -> dict[str, Any]:
    """What all maps of a figure have in common: the stronger the colour, the worse."""
    low = 0.0 if metric.from_zero else min(values)
    high = max(values)
    least = _LEAST_RANGE_PCT / 100 * abs(high) or 1.0
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
        # Where all are equal the scale would tell of values that there are none of.
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
    places: Sequence[Slot], values: Sequence[float | None], metric: Metric, unit: Unit, columns: int
) -> dict[str, Any]:
    """Rank and value in each place, where there is room."""
    if len(places) > _NUMBERED:
        return {}
    both = zip(places, values, strict=True)
    texts = [f"{escape(place.label, 12)}<br>{metric.text(value, unit)}" for place, value in both]
    return {"text": _folded(texts, columns, ""), "texttemplate": "%{text}", "textfont": {"size": 11}}


def _absent(states: Sequence[str | None], told: Sequence[str], columns: int, dark: bool) -> dict[str, Any]:
    """The places without a figure: grey, with a cross where there should be a trace."""
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
        "hovertext": _folded(told, columns, ""),
        **_gaps(len(states)),
    }


def _told(report: RanksReport, place: Slot, metric: Metric, value: float | None, unit: Unit) -> str:
    """What stands beside the mouse."""
    if place.row is None:
        why = "no trace is here" if place.state == "missing" else "its trace cannot be read"
        return f"{escape(place.name)}<br>{why}"
    row = report.ranks[place.row]
    said = f"{metric.title}: {metric.text(value, unit) if value is not None else 'unknown'}"
    lines = [f"<b>{escape(place.name)}</b>", said]
    if row.last_in is not None:
        lines.append(f"last in {row.last_in:,} of {plural(row.meetings, 'collective')}")
    if row.device_name:
        lines.append(escape(f"{row.device_name}, device {row.device}"))
    return "<br>".join(lines)


def _across(places: Sequence[Slot], columns: int, shown: int, dark: bool) -> dict[str, Any]:
    """Numbers within a line, where they add up to the rank with the one at its beginning."""
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
    """An axis of places, some of which have a label."""
    return axis(dark, showgrid=False, tickmode="array", tickvals=at, ticktext=labels, **more)


# -- steps ----------------------------------------------------------------------------------------


def step_map(report: RanksReport, dark: bool) -> Figure:
    """A line for each of the `drawn_steps`, a place for each rank: how much longer than the step's median over ranks it
    took."""
    places, drawn = slots(report), drawn_steps(report)
    unit = unit_for(max((report.steps[number].median_ns for number in drawn), default=0))
    cells = [[_skew(report, place, number, unit) for place in places] for number in drawn]
    known = [value for line in cells for value, _ in line if value is not None]
    low, high = min(known, default=0.0), max(known, default=0.0)
    heat = {
        **_MAP,
        "z": [[value for value, _ in line] for line in cells],
        "zmin": low,
        "zmax": max(high, low + _LEAST_SKEW_PCT),
        "colorscale": _scale(HEAT[dark]),
        "hovertext": [[told for _, told in line] for line in cells],
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
    """Numbers of the steps in the map of steps, in order; none where no two ranks have a step in common."""
    most = max(1, min(MOST_STEPS, MOST_CELLS // max(len(slots(report)), 1)))
    compared = [number for number, step in enumerate(report.steps) if step.ranks > 1]
    widest = sorted(compared, key=lambda number: (-_relative(report.steps[number]), number))
    return sorted(widest[:most])


def _relative(step: StepSkew) -> float:
    return step.spread_ns / step.median_ns if step.median_ns else 0.0


def _skew(report: RanksReport, place: Slot, number: int, unit: Unit) -> tuple[float | None, str]:
    """A place's value, and what stands beside the mouse."""
    step = report.steps[number]
    row = report.ranks[place.row] if place.row is not None else None
    span = row.step_spans_ns[number] if row is not None else None
    name = f"<b>{escape(place.name)}</b>, {escape(step.name)}"
    if span is None or not step.median_ns:
        return None, f"{name}<br>not recorded, or only in part"
    over = 100 * (span - step.median_ns) / step.median_ns
    than = "longer" if over > 0 else "shorter"
    said = f"{percent(abs(over))} {than} than the median rank" if over else "as long as the median rank"
    return over, f"{name}<br>{unit.text(span)}: {said}"


# -- buckets --------------------------------------------------------------------------------------


def has_rank_buckets(report: RanksReport) -> bool:
    """Whether there are ranks, and no more than bars can be told apart."""
    return bool(report.ranks) and len(slots(report)) <= MOST_BARS


def rank_buckets(report: RanksReport, dark: bool) -> Figure:
    """Where the time of each rank goes: a stacked bar for each, a gap where there should be one."""
    places = slots(report)
    unit = unit_for(max((row.span_ns for row in report.ranks), default=0))
    bars = stacked_bars(
        [{} if place.row is None else report.ranks[place.row].buckets.named() for place in places],
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
        yaxis=axis(dark, f"time on the device, {unit.name}"),
    )


def _rank_axis(places: Sequence[Slot], dark: bool, **more: Any) -> dict[str, Any]:
    """An axis on which places stand in one line."""
    ticks = ticks_for(len(places))
    labels = [escape(places[number].label, 24) for number in ticks]
    return _labelled(dark, ticks, labels, title="rank", **more)


# -- places: one for each rank that there should be, whether its trace is here or not ----------------

State = Literal["known", "missing", "unreadable"]
_LEAST_COLUMNS = 8
_LABELS = 16


class Slot(Struct, frozen=True):
    """One place."""

    name: str
    label: str
    """Its name on an axis: the rank's number, or the file."""
    state: State
    row: int | None
    """Number of its row in the report; None where it has none."""


def slots(report: RanksReport) -> tuple[Slot, ...]:
    """By rank, then device; traces that do not say their rank last. Of several traces of one rank the one that was
    compared."""
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
    """Numbers of the rows that stand for their rank: those that were compared; where none was, of its first trace."""
    compared = {row.rank for row in report.ranks if row.joined}
    first: dict[int | None, str] = {}
    for row in report.ranks:
        first.setdefault(row.rank, row.source)

    def stands(row: RankRow) -> bool:
        return row.rank is None or (row.joined if row.rank in compared else row.source == first[row.rank])

    return [number for number, row in enumerate(report.ranks) if stands(row)]


def ticks_for(count: int) -> list[int]:
    """Which of so many places in one line are labelled: sixteen or fewer, each a multiple of a power of two."""
    every = 1
    while count > _LABELS * every:
        every *= 2
    return list(range(0, count, every))


def slot_at(report: RanksReport, x: int, y: int = 0) -> Slot | None:
    """The place in a line of a map of ranks; all are in the first of a chart that has one line."""
    places = slots(report)
    number = y * columns_for(len(places)) + x
    return places[number] if 0 <= number < len(places) else None


def columns_for(count: int) -> int:
    """How many places stand in a line: a power of two, as ranks in a host are, so that a map is no taller than wide."""
    columns = _LEAST_COLUMNS
    while columns * columns < count:
        columns *= 2
    return columns

"""Charts of a report as Plotly figures for a light or dark background."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from overlapscope.analysis.average import find_outliers
from overlapscope.analysis.each_copy import EachCopy, peak_gb_per_s
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.analysis.host_lines import FlamePart, flame, place
from overlapscope.analysis.results import Device
from overlapscope.base.grouping import distinct
from overlapscope.base.intervals import I64
from overlapscope.base.marks import step_number
from overlapscope.base.words import Unit, percent, share, unit_for
from overlapscope.base.words import bandwidth as rate_text
from overlapscope.base.words import size as size_text
from overlapscope.catalog.causes import COPY_CAUSES
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import axis, escape, figure, legible, stacked_bars
from overlapscope.documents.model import Figure
from overlapscope.report.page import DeviceReport, SampledHost
from overlapscope.trace.model import Kind, Memory

# -- Steps -----------------------------------------------------------------------------------------

MAX_STEPS = 1000
_MAX_WIDE_BARS = 4


def drawn_steps(device: Device) -> I64:
    """Return the numbers of the steps to draw.

    They are all steps, or up to `MAX_STEPS` at even distances and as many outliers.
    """
    count = len(device.steps)
    if count <= MAX_STEPS:
        return np.arange(count)
    spaced = np.linspace(0, count - 1, MAX_STEPS).astype(np.int64)
    return np.union1d(spaced, np.flatnonzero(find_outliers(device.steps))[:MAX_STEPS])


def steps(section: DeviceReport, device: Device, dark: bool) -> Figure:
    """Return a stacked bar for each step with its efficiency below. Each bar's `customdata[0]` is the step's number."""
    unit, colors, all_steps, rows = section.unit, palette(dark), device.steps, drawn_steps(device).tolist()
    names = {row: escape(all_steps[row].name) for row in rows}
    efficiency = [all_steps[row].efficiency_shown for row in rows]
    outliers = find_outliers(all_steps)
    unusual = [row for row in rows if outliers[row]]
    # A dozen labels at most, without the prefix that all share.
    labelled = distinct(np.linspace(0, len(all_steps) - 1, min(12, len(all_steps))).astype(int)).tolist()
    marks = {
        "type": "scatter",
        "mode": "markers",
        "name": "outlier",
        "x": unusual,
        "y": [all_steps[row].span_ns / unit.ns for row in unusual],
        "marker": {"symbol": "star-triangle-down", "size": 13, "color": colors["poor"]},
        "customdata": [[row, names[row]] for row in unusual],
        "hovertemplate": f"%{{customdata[1]}}: an outlier, %{{y:.4~g}} {unit.name}<extra></extra>",
        # Above its bar, not on it.
        "cliponaxis": False,
    }
    line = {
        "type": "scatter",
        "mode": "lines+markers" if len(rows) <= 200 else "lines",
        "name": "efficiency",
        "yaxis": "y2",
        "x": rows,
        "y": efficiency,
        "line": {"color": colors["accent"], "width": 2},
        "marker": {"size": 6},
        "customdata": [[row, names[row], percent(value)] for row, value in zip(rows, efficiency, strict=True)],
        "hovertemplate": "%{customdata[1]}<br>efficiency %{customdata[2]}<extra></extra>",
    }
    bars = stacked_bars([all_steps[row].partition for row in rows], [*names.values()], unit, dark, rows)
    ticks = {"tickvals": labelled, "ticktext": [f"#{step_number(all_steps[row].name)}" for row in labelled]}
    return figure(
        [*bars, *([marks] if unusual else []), line],
        dark,
        height=440,
        barmode="stack",
        # A few steps would otherwise get bars as wide as they are high.
        bargap=0.15 if len(all_steps) > _MAX_WIDE_BARS else 0.6,
        hovermode="closest",
        xaxis=axis(dark, anchor="y2", showgrid=False, **ticks),
        yaxis=axis(dark, f"step, {unit.name}", domain=[0.32, 1]),
        yaxis2=axis(dark, "efficiency, %", domain=[0, 0.22], range=[-8, 108], tickvals=[0, 50, 100]),
    )


# -- Calls of the host -------------------------------------------------------------------------------

_MAX_LEVELS = 24
"""Maximum number of rows of a flame graph. A click on a part shows those below."""
_ROW_PX = 24


SourceOf = Callable[[FlamePart], str]
"""Returns the line of code of a part; empty if unknown."""


def flame_graph(host: SampledHost, dark: bool, source: SourceOf | None = None) -> Figure:
    """Return the calls of the main thread in an average step, each below its caller.

    Functions that only call another one, such as `_call_impl`, are left out.
    """
    parts = flame(host.activity)
    colors = palette(dark)
    running = sum(part.running for part in parts if part.caller < 0)
    unit = unit_for(host.step_ns)
    step = FlamePart(-1, "", 0, "step", False, host.samples, running)
    all_parts = (step, *parts)
    fills = [colors["panel"], *(colors["accent" if part.is_own else "cpu-op"] for part in parts)]
    drawn = {
        "type": "icicle",
        "ids": [str(number) for number in range(len(all_parts))],
        "parents": ["", *(str(part.caller + 1) for part in parts)],
        "labels": ["step", *map(_flame_label, parts)],
        "values": [part.samples for part in all_parts],
        "branchvalues": "total",
        "maxdepth": _MAX_LEVELS,
        "tiling": {"orientation": "v", "pad": 1},
        "pathbar": {"visible": False},
        # By default, parts that call nothing are paler, and their text is hard to read.
        "leaf": {"opacity": 1},
        "marker": {
            "colors": fills,
            "line": {"color": colors["panel"], "width": 1},
            "pattern": {
                "shape": ["/" if part is not step and 2 * part.running < part.samples else "" for part in all_parts],
                # With the mode `overlay`, Plotly would warn in the console of the list of colors.
                "bgcolor": fills,
                "fgcolor": "#ffffff",
                "size": 6,
                "fgopacity": 0.25,
            },
        },
        "textinfo": "label",
        "textfont": {"color": [legible(fill) for fill in fills]},
        "customdata": [
            _flame_hover(part, host, unit, source(part) if source and part.is_own else "") for part in all_parts
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    depths: list[int] = []
    for part in parts:
        depths.append(1 if part.caller < 0 else depths[part.caller] + 1)
    height = _ROW_PX * (min(max(depths, default=0), _MAX_LEVELS - 1) + 1) + 16
    # Texts that do not fit are left out rather than drawn in small.
    return figure([drawn], dark, height=height, showlegend=False, uniformtext={"minsize": 11, "mode": "hide"})


def _flame_label(part: FlamePart) -> str:
    if not part.function:
        return "other"
    return escape(f"{part.function} ({place(part.file, part.line)})" if part.is_own else part.function)


def _flame_hover(part: FlamePart, host: SampledHost, unit: Unit, code: str) -> str:
    where = f"<br>{escape(place(part.file, part.line), 120)}" if part.file else ""
    where += f"<br><b>{escape(code, 120)}</b>" if code else ""
    return (
        f"{escape(part.function or 'other parts, each below 0.5%', 120)}{where}"
        f"<br>{unit.text(host.time_ns(part.samples))} a step ({share(part.samples, host.samples)}), "
        f"{unit.text(host.time_ns(part.samples - part.running))} of it asleep"
    )


# -- Copies ----------------------------------------------------------------------------------------

MAX_POINTS = 5000

_SYMBOL = {"h2d": "circle", "d2h": "diamond"}


def choose(copies: EachCopy, most: int = MAX_POINTS) -> I64:
    """Return the rows of the copies to draw, ascending: those that have a size.

    If they are more than `most`, half of it are those with the most exposed time, the others at even distances, besides
    the fastest.
    """
    sized = np.flatnonzero(copies.bytes > 0)
    if len(sized) <= most:
        return sized
    worst = np.argsort(-copies.exposed_ns[sized], kind="stable")[: most // 2]
    spaced = np.linspace(0, len(sized) - 1, most - len(worst) - 1).astype(np.int64)
    chosen: I64 = sized[np.unique([*worst, *spaced, np.argmax(copies.gb_per_s[sized])])]
    return chosen


def link_note(copies: EachCopy) -> str:
    """Return what the copies show about the speed of the link, in a sentence."""
    if any(peak_gb_per_s(copies, direction) is not None for direction in (Kind.H2D, Kind.D2H)):
        return "A dashed line is the best rate of pinned memory in this recording, not that of the link's data sheet."
    return f"No copy of pinned memory is large enough ({size_text(LARGE_BYTES)}) to show how fast the link is."


def bandwidth(section: DeviceReport, copies: EachCopy, dark: bool) -> Figure:
    """Return a point for each copy and, for each direction, a dashed line at the best rate of pinned memory.

    Each point's `customdata[0]` is its row of `Timeline.ops`.
    """
    colors, shown = palette(dark), copies.take(choose(copies))
    data: list[dict[str, Any]] = []
    for kind, memory in product((Kind.H2D, Kind.D2H), (Memory.PINNED, Memory.PAGEABLE, Memory.MANAGED, Memory.UNKNOWN)):
        of_kind = np.flatnonzero((shown.kind == kind) & (shown.host_memory == memory))
        if len(of_kind):
            data.append(_points(section, shown.take(of_kind), kind, memory, colors))
    rates, sizes = shown.gb_per_s, shown.bytes
    data += _peaks(copies, colors, (int(sizes.min()), int(sizes.max()))) if len(sizes) else []
    return figure(
        data,
        dark,
        height=430,
        hovermode="closest",
        xaxis=axis(dark, "size of the copy (log)", type="log", **_ticks(sizes)),
        yaxis=axis(dark, "bandwidth, GB/s", range=[0, 1.12 * float(rates.max())] if len(rates) else [0, 1]),
    )


def _points(
    section: DeviceReport, copies: EachCopy, kind: Kind, memory: Memory, colors: dict[str, str]
) -> dict[str, Any]:
    """Return the points of the copies in a direction of a kind of memory."""
    direction, kept, pageable = kind.name.lower(), memory.name.lower(), memory == Memory.PAGEABLE
    # An open marker has only an outline, so it takes its direction's darker color.
    color = "pinned" if memory in (Memory.PINNED, Memory.PAGEABLE) else "other"
    unit = section.unit_of(int(copies.duration_ns.max()))
    columns = (
        copies.row,
        copies.bytes,
        copies.gb_per_s,
        copies.duration_ns,
        copies.exposed_ns,
        copies.cause,
    )
    hovers = [
        [
            number,
            size_text(moved),
            rate_text(rate),
            unit.text(took),
            f"{unit.text(exposed)} exposed, {COPY_CAUSES[cause]}" if exposed else "hidden",
        ]
        for number, moved, rate, took, exposed, cause in zip(*(each.tolist() for each in columns), strict=True)
    ]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{direction}, {kept} memory",
        "x": copies.bytes.tolist(),
        "y": copies.gb_per_s.tolist(),
        "marker": {
            "color": colors[f"{direction}-{color}"],
            "symbol": f"{_SYMBOL[direction]}{'-open' * pageable}",
            "size": 8,
            "opacity": 0.8,
            "line": {"width": 1.5 * pageable, "color": colors[f"{direction}-pinned"]},
        },
        "customdata": hovers,
        "hovertemplate": f"{direction}, {kept} memory<br>%{{customdata[1]}} at %{{customdata[2]}} GB/s<br>"
        "%{customdata[3]}: %{customdata[4]}<extra></extra>",
    }


def _peaks(copies: EachCopy, colors: dict[str, str], sizes: tuple[int, int]) -> list[dict[str, Any]]:
    lines = []
    for kind, dash in ((Kind.H2D, "dash"), (Kind.D2H, "dashdot")):
        peak, direction = peak_gb_per_s(copies, kind), kind.name.lower()
        if peak is None:
            continue
        lines.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": f"best {direction} of pinned memory here: {rate_text(peak)} GB/s",
                "x": [sizes[0] / 2, sizes[1] * 2],
                "y": [peak, peak],
                "line": {"color": colors[f"{direction}-pinned"], "dash": dash, "width": 1.5},
                "hoverinfo": "skip",
            }
        )
    return lines


def _ticks(sizes: I64) -> dict[str, Any]:
    """Return ticks at powers of ten and, over a short range, also at 2 and 5 times these."""
    if not len(sizes):
        return {}
    low, high = float(np.log10(sizes.min() / 2)), float(np.log10(sizes.max() * 2))
    steps = (1, 2, 5) if high - low < 3 else (1,)
    values = [step * 10**power for power in range(int(low), int(high) + 1) for step in steps]
    return {"range": [low, high], "tickvals": values, "ticktext": [size_text(value) for value in values]}

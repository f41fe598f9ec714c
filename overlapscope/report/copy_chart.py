"""A chart of each copy's bandwidth over its size."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct

from overlapscope.analysis.each_copy import EachCopy, peak_gb_per_s
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.base.grouping import distinct, first_of_each
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.words import bandwidth as rate_text
from overlapscope.base.words import size as size_text
from overlapscope.catalog.causes import COPY_CAUSES
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, column_of, figure
from overlapscope.report.page import DeviceReport
from overlapscope.trace.model import Kind, Memory

MOST_POINTS = 5000

_SYMBOL = {"h2d": "circle", "d2h": "diamond"}


class Drawn(Struct, frozen=True, eq=False):
    """Copies that have a point in the chart."""

    row: I64
    """Rows of the table of copies, ascending."""
    stands_for: I64
    """Number of copies that each point stands for, itself included."""
    of: int
    """Number of copies that have a size."""


def choose(copies: EachCopy, most: int = MOST_POINTS) -> Drawn:
    """Return all copies that have a size or, if they are more than `most`, a copy for each spot of the chart.

    A spot shows its copy with the most exposed time. The smallest, largest, slowest and fastest copies of each
    direction and memory kind are always drawn.
    """
    sized = np.flatnonzero(copies.bytes > 0)
    if len(sized) <= most:
        return Drawn(sized, np.ones(len(sized), np.int64), len(sized))
    x, y = np.log(copies.bytes[sized]), copies.gb_per_s[sized]
    series = copies.direction[sized].astype(np.int64) * len(Memory) + copies.memory[sized]
    extremes = _extremes(series, x, y)
    columns = 256
    while True:
        spot = (series * columns + column_of(x, columns)) * columns + column_of(y, columns)
        _, group, count = np.unique(spot, return_inverse=True, return_counts=True)
        first = first_of_each(group, ~extremes, -copies.exposed_ns[sized])
        chosen = np.union1d(first, np.flatnonzero(extremes))
        if len(chosen) <= most or columns == 1:
            break
        columns //= 2
    stands_for = np.ones(len(sized), np.int64)
    # A second extreme of a spot stands only for itself.
    alone = np.bincount(group[np.setdiff1d(chosen, first)], minlength=len(count))
    stands_for[first] = (count - alone)[group[first]]
    return Drawn(sized[chosen], stands_for[chosen], len(sized))


def link_note(copies: EachCopy) -> str:
    """Return what the copies show about the speed of the link, in a sentence."""
    if any(peak_gb_per_s(copies, direction) is not None for direction in (Kind.H2D, Kind.D2H)):
        return "A dashed line is the best rate of pinned memory in this recording, not that of the link's data sheet."
    return f"No copy of pinned memory is large enough ({size_text(LARGE_BYTES)}) to show how fast the link is."


def _extremes(series: I64, x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> Bool:
    is_extreme = np.zeros(len(series), np.bool_)
    for number in distinct(series):
        mine = np.flatnonzero(series == number)
        for values in (x, y):
            is_extreme[mine[[np.argmin(values[mine]), np.argmax(values[mine])]]] = True
    return is_extreme


def bandwidth(section: DeviceReport, copies: EachCopy, dark: bool) -> Figure:
    """Return a point for each copy and, for each direction, a dashed line at the best rate of pinned memory.

    Each point's `customdata[0]` is its row of `Timeline.ops`.
    """
    colors, drawn = palette(dark), choose(copies)
    shown = copies.take(drawn.row)
    data: list[dict[str, Any]] = []
    for kind, memory in product((Kind.H2D, Kind.D2H), (Memory.PINNED, Memory.PAGEABLE, Memory.MANAGED, Memory.UNKNOWN)):
        mine = np.flatnonzero((shown.direction == kind) & (shown.memory == memory))
        if len(mine):
            data.append(_points(section, shown.take(mine), drawn.stands_for[mine], kind, memory, colors))
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
    section: DeviceReport, copies: EachCopy, stands_for: I64, kind: Kind, memory: Memory, colors: dict[str, str]
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
        stands_for,
    )
    hovers = [
        [
            number,
            size_text(moved),
            rate_text(rate),
            unit.text(took),
            f"{unit.text(exposed)} exposed, {COPY_CAUSES[cause]}" if exposed else "hidden",
            f"<br>and {count - 1:,} more like it" if count > 1 else "",
        ]
        for number, moved, rate, took, exposed, cause, count in zip(*(each.tolist() for each in columns), strict=True)
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
            "size": (8 + 2 * np.log10(stands_for)).round(1).tolist(),
            "opacity": 0.8,
            "line": {"width": 1.5 * pageable, "color": colors[f"{direction}-pinned"]},
        },
        "customdata": hovers,
        "hovertemplate": f"{direction}, {kept} memory<br>%{{customdata[1]}} at %{{customdata[2]}} GB/s<br>"
        "%{customdata[3]}: %{customdata[4]}%{customdata[5]}<extra></extra>",
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

"""A chart of each copy's bandwidth over its size."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np

from overlapscope.analysis.each_copy import EachCopy, peak_gb_per_s
from overlapscope.analysis.groups import LARGE_BYTES
from overlapscope.base.intervals import I64
from overlapscope.base.words import bandwidth as rate_text
from overlapscope.base.words import size as size_text
from overlapscope.catalog.causes import COPY_CAUSES
from overlapscope.documents.colors import palette
from overlapscope.documents.figure import Figure, axis, figure
from overlapscope.report.page import DeviceReport
from overlapscope.trace.model import Kind, Memory

MOST_POINTS = 5000

_SYMBOL = {"h2d": "circle", "d2h": "diamond"}


def choose(copies: EachCopy, most: int = MOST_POINTS) -> I64:
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
        mine = np.flatnonzero((shown.direction == kind) & (shown.memory == memory))
        if len(mine):
            data.append(_points(section, shown.take(mine), kind, memory, colors))
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

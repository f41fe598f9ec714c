"""Tiles of a timeline in a file: answers to the requests that a user who zooms in would make first.

A tile is the result of `overlapscope.timeline.view` for a span. The first tiles cover the whole window. Finer tiles
cover its quarters, their quarters and so on, where ops are still too short to be drawn singly. Each finding's example
has its own tile.
"""

from __future__ import annotations

import base64
import gzip
import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from overlapscope.base.words import clean
from overlapscope.timeline.categories import CATEGORIES
from overlapscope.timeline.lane import Lanes
from overlapscope.timeline.view import model, view
from overlapscope.timeline.worst import SUBJECTS, worst

COLUMNS = 2048
"""Columns of the first tile, and of those of examples; about the width of a screen."""
FINER = 4
"""Ratio between the column widths of successive levels. The page uses tiles up to four times as fine as its pixels. A
tile of a finer level has this many times `COLUMNS`, so that few tiles suffice."""
BUDGET_BYTES = 1_500_000
"""Compressed size of the tiles of all timelines in a file; base64 adds a third."""
DRAWN_COLUMNS = 3
"""Minimum width of an op that is drawn singly, in columns."""
LEAST_COLUMN_NS = 64
"""Minimum width of a column in nanoseconds; at this width, an op of 192 ns is drawn singly."""
SHORTEST_VIEW_NS = 4_000
"""Shortest span that the page shows, even of a shorter trace."""
WORST = 10
"""Number of cases of each kind that users can step through."""
_LONGEST_NAME = 200
_EXAMPLES = 24
"""Number of a trace's findings with tiles of their own, costliest first."""


class TimeSpan(NamedTuple):
    """A span relative to the lanes' origin."""

    start_ns: int
    end_ns: int


def around(example: TimeSpan, lanes: Lanes) -> TimeSpan:
    """Return the span to show so that an example is seen with its surroundings."""
    margin = max(3 * (example.end_ns - example.start_ns) // 2, 2_000)
    return TimeSpan(max(lanes.start_ns, example.start_ns - margin), min(lanes.end_ns, example.end_ns + margin))


def pyramids(drawn: Sequence[Lanes], examples: Sequence[Sequence[TimeSpan]], budget_bytes: int) -> list[dict[str, Any]]:
    """Return the `model` of each trace's lanes, its `tiles`, each gzip in base64, and its `worst` cases of each kind.

    The traces share the budget level by level, so that all can be zoomed into equally far. Each has at least a tile.
    """
    tiles: list[list[str]] = [[] for _ in drawn]
    left = budget_bytes
    for wanted in _wanted(drawn, examples):
        packed = _tile(drawn[wanted.number], wanted)
        kept = tiles[wanted.number]
        if kept and len(packed) > left:
            break
        left -= len(packed)
        kept.append(base64.b64encode(packed).decode("ascii"))
    return [
        {"model": model(lanes), "tiles": made, "worst": _worst(lanes)} for lanes, made in zip(drawn, tiles, strict=True)
    ]


def _worst(lanes: Lanes) -> dict[str, Any]:
    """Return the worst cases with the details of their ops, which need not be in any tile."""
    told: dict[str, Any] = {}
    for kind in SUBJECTS:
        worst_cases = [worst(lanes, kind, number) for number in range(WORST)]
        cases = [
            {name: match[name] for name in ("lane", "row", "start", "end")} | {"op": _op(lanes, match)}
            for match in (hit["match"] for hit in worst_cases)
            if match is not None
        ]
        told[kind] = {"count": worst_cases[0]["count"], "cases": cases}
    return told


def _op(lanes: Lanes, match: dict[str, Any]) -> dict[str, Any]:
    lane, row = lanes.lane(match["lane"]), match["row"]
    return {
        "start": int(lane.start_ns[row]),
        "end": int(lane.end_ns[row]),
        "title": clean(lane.name(row), _LONGEST_NAME),
        "category": CATEGORIES[lane.category[row]],
    }


class _WantedTiles(NamedTuple):
    number: int
    span: TimeSpan
    columns: int
    level: int
    """Columns are `FINER**-level` times as wide as those of the first tile."""


def _wanted(drawn: Sequence[Lanes], examples: Sequence[Sequence[TimeSpan]]) -> Iterator[_WantedTiles]:
    """Yield tiles by usefulness: whole windows, examples, then finer and finer tiles, the fullest first."""
    whole = [TimeSpan(lanes.start_ns, max(lanes.end_ns, lanes.start_ns + SHORTEST_VIEW_NS)) for lanes in drawn]
    yield from (_WantedTiles(number, span, COLUMNS, 0) for number, span in enumerate(whole))
    for number, lanes in enumerate(drawn):
        own = dict.fromkeys(around(example, lanes) for example in examples[number][:_EXAMPLES])
        yield from (_WantedTiles(number, span, COLUMNS, 0) for span in own if span != whole[number])
    queue: list[tuple[int, int, int, _WantedTiles]] = []
    order = itertools.count()
    shorter = [_Short(lanes) for lanes in drawn]

    def push(coarse: _WantedTiles, spans: Iterable[TimeSpan]) -> None:
        """Queue finer tiles for the parts of a tile that have undrawn ops."""
        for span in spans:
            missing = shorter[coarse.number].inside(span, coarse.level)
            if missing and span.end_ns - span.start_ns >= LEAST_COLUMN_NS * FINER * COLUMNS:
                finer = _WantedTiles(coarse.number, span, FINER * COLUMNS, coarse.level + 1)
                heapq.heappush(queue, (finer.level, -missing, next(order), finer))

    for number, span in enumerate(whole):
        push(_WantedTiles(number, span, COLUMNS, 0), [span])
    while queue:
        *_, wanted = heapq.heappop(queue)
        yield wanted
        push(wanted, _parts(wanted.span))


def _parts(span: TimeSpan) -> Iterator[TimeSpan]:
    start, length = span.start_ns, span.end_ns - span.start_ns
    edges = [start + length * number // FINER for number in range(FINER + 1)]
    return itertools.starmap(TimeSpan, itertools.pairwise(edges))


class _Short:
    """Counts ops that are too short to be drawn singly in the tiles of a level."""

    def __init__(self, lanes: Lanes) -> None:
        starts = [lane.start_ns for lane in lanes.lanes]
        lengths = [lane.end_ns - lane.start_ns for lane in lanes.lanes]
        start_ns = np.concatenate(starts) if starts else np.zeros(0, np.int64)
        length_ns = np.concatenate(lengths) if lengths else np.zeros(0, np.int64)
        order = np.argsort(start_ns, kind="stable")
        covering = length_ns[order] > 0
        self._start_ns = start_ns[order][covering]
        self._length_ns = length_ns[order][covering]
        self._span_ns = lanes.end_ns - lanes.start_ns
        self._level = -1
        self._count = np.zeros(1, np.int64)

    def inside(self, span: TimeSpan, level: int) -> int:
        """Return how many undrawn ops start in a span."""
        if level != self._level:
            # Requests come level by level.
            shorter_than_ns = DRAWN_COLUMNS * self._span_ns / (COLUMNS * FINER**level)
            self._level = level
            self._count = np.concatenate([[0], np.cumsum(self._length_ns < shorter_than_ns)])
        first, last = np.searchsorted(self._start_ns, span).tolist()
        return int(self._count[last] - self._count[first])


def _tile(lanes: Lanes, wanted: _WantedTiles) -> bytes:
    (start_ns, end_ns), ids = wanted.span, [lane.id for lane in lanes.lanes]
    return gzip.compress(view(lanes, start_ns, end_ns, wanted.columns, ids), 6, mtime=0)

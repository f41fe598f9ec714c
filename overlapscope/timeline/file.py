"""A report as a single HTML file with timelines to zoom into.

It has verdict, findings, timeline, charts and tables of each trace.
"""

from __future__ import annotations

import base64
import gzip
import itertools
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from overlapscope.analysis.figures import Window
from overlapscope.base.words import clean
from overlapscope.documents.model import Block, Document, Example, Heading, Links, Section, Text, TimelineBlock
from overlapscope.report import document as parts
from overlapscope.report.model import PLAIN
from overlapscope.report.page import DeviceReport, Page
from overlapscope.rules.finding import Finding
from overlapscope.timeline import browser
from overlapscope.timeline.details import outline
from overlapscope.timeline.lane import Lanes
from overlapscope.timeline.search import SUBJECTS, worst
from overlapscope.timeline.view import model, view
from overlapscope.trace.model import I64


def document(page: Page, lanes: Sequence[Lanes], view: TimeSpan | None = None) -> Document:
    """Return the document. `lanes` are those of the report's traces, in their order; timelines open at `view`."""
    by_trace: dict[int, list[DeviceReport]] = {}
    for part in page.sections():
        by_trace.setdefault(part.number, []).append(part)
    drawn = {number: lanes[number] for number in by_trace if number < len(lanes) and lanes[number].lanes}
    timelines = _timelines(by_trace, drawn, view)
    name = parts.title(page)
    blocks: list[Block] = [Text("overlapscope report", tone="muted"), Heading(name, 1)]
    if len(by_trace) > 1:
        blocks.append(Links({f"trace-{number}": page.label(number) for number in by_trace}))
    blocks += [Text(clean(note), tone="muted") for note in page.report.notes]
    if sum(map(len, by_trace.values())) > 1:
        blocks.append(parts.summary(page))
    for number, of_trace in by_trace.items():
        inner = _trace(page, of_trace, drawn.get(number), timelines.get(number), len(by_trace) > 1)
        blocks.append(Section(tuple(inner), kind="article", id=f"trace-{number}"))
    return Document(f"overlapscope: {name}", tuple(blocks))


def _trace(
    page: Page, of_trace: list[DeviceReport], lanes: Lanes | None, timeline: TimelineBlock | None, several: bool
) -> Iterator[Block]:
    titled = several or len(of_trace) > 1
    trusted = of_trace[0].trace.trust.verdict == "trusted"
    for part in of_trace:
        yield parts.head(part, titled=titled)
    if not trusted:
        yield parts.trust(of_trace[0], passed=page.verbose)
    if any(part.usable for part in of_trace):
        yield from parts.findings(page, of_trace, partial(_example_in, timeline, lanes))
    if timeline is not None:
        beside_plain = any(part.is_plain for part in of_trace) and PLAIN not in of_trace[0].trace.environment.flags
        yield Heading("Timeline, as recorded" if beside_plain else "Timeline")
        yield timeline
    for part in of_trace:
        analyses = lanes.analysis.devices if lanes is not None else ()
        analysis = next(
            (device for device in analyses if part.device and device.result.device == part.device.device), None
        )
        yield from parts.details(part, analysis, titled=titled)
    if trusted:
        yield parts.trust(of_trace[0], passed=page.verbose)


# -- Timelines -------------------------------------------------------------------------------------


def _timelines(
    by_trace: dict[int, list[DeviceReport]], drawn: dict[int, Lanes], view: TimeSpan | None
) -> dict[int, TimelineBlock]:
    """Return the timelines by the number of their trace."""
    examples = [
        [
            _relative_to_origin(each.example, lanes)
            for part in by_trace[number]
            for each in part.findings
            if each.example
        ]
        for number, lanes in drawn.items()
    ]
    all_tiles = pyramids(list(drawn.values()), examples, BUDGET_BYTES)
    scripts, styles = tuple(map(browser.text, browser.scripts())), (browser.text(browser.STYLE),)
    return {
        number: TimelineBlock(
            f"timeline-{number}",
            pyramid | {"view": view or _first_view(by_trace[number], lanes)},
            scripts,
            styles,
        )
        for (number, lanes), pyramid in zip(drawn.items(), all_tiles, strict=True)
    }


def _example_in(timeline: TimelineBlock | None, lanes: Lanes | None, finding: Finding) -> Example | None:
    """Return a finding's example in a timeline, if it has both."""
    if timeline is None or lanes is None or finding.example is None:
        return None
    span = _relative_to_origin(finding.example, lanes)
    return Example(timeline.id, *span, *around(span, lanes))


def _first_view(of_trace: list[DeviceReport], lanes: Lanes) -> TimeSpan:
    """Return the initial view: the GPU's work, because the host's may extend far beyond it."""
    spans = [_relative_to_origin(part.device.window, lanes) for part in of_trace if part.device]
    if not spans:
        return TimeSpan(lanes.start_ns, lanes.end_ns)
    return TimeSpan(min(span.start_ns for span in spans), max(span.end_ns for span in spans))


def _relative_to_origin(window: Window, lanes: Lanes) -> TimeSpan:
    """Return a window relative to the lanes' origin."""
    return TimeSpan(window.start_ns - lanes.origin_ns, window.end_ns - lanes.origin_ns)


# -- Tiles -----------------------------------------------------------------------------------------

# Tiles are answers to the requests that a user who zooms in would make first: results of `view` for a span. The first
# tiles cover the whole window. Finer tiles cover its quarters, their quarters and so on, where ops are still too short
# to be drawn singly. Each finding's example has its own tile.

TILE_COLUMNS = 2048
"""Columns of the first tile, and of those of examples; about the width of a screen."""
LEVEL_RATIO = 4
"""Ratio between the column widths of successive levels. The page uses tiles up to four times as fine as its pixels. A
tile of a finer level has this many times `TILE_COLUMNS`, so that few tiles suffice."""
BUDGET_BYTES = 1_500_000
"""Compressed size of the tiles of all timelines in a file; base64 adds a third."""
DRAWN_COLUMNS = 3
"""Minimum width of an op that is drawn singly, in columns."""
MIN_COLUMN_NS = 64
"""Minimum width of a column in nanoseconds; at this width, an op of 192 ns is drawn singly."""
SHORTEST_VIEW_NS = 4_000
"""Shortest span that the page shows, even of a shorter trace."""
MAX_CASES = 10
"""Number of cases of each kind that users can step through."""
_LONGEST_NAME = 200
_MAX_EXAMPLES = 24
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
    remaining = budget_bytes
    for wanted in _wanted(drawn, examples):
        lanes = drawn[wanted.number]
        tile = view(lanes, *wanted.span, wanted.columns, [lane.id for lane in lanes.lanes])
        packed = gzip.compress(tile, 6, mtime=0)
        kept = tiles[wanted.number]
        if kept and len(packed) > remaining:
            break
        remaining -= len(packed)
        kept.append(base64.b64encode(packed).decode("ascii"))
    return [
        {"model": model(lanes), "tiles": trace_tiles, "worst": _worst(lanes)}
        for lanes, trace_tiles in zip(drawn, tiles, strict=True)
    ]


def _worst(lanes: Lanes) -> dict[str, Any]:
    """Return the worst cases with the details of their ops, which need not be in any tile."""
    cases_by_kind: dict[str, Any] = {}
    for kind in SUBJECTS:
        worst_cases = [worst(lanes, kind, number) for number in range(MAX_CASES)]
        cases = [
            {name: match[name] for name in ("lane", "row", "start", "end")}
            | {"op": outline(lanes.lane(match["lane"]), match["row"], _LONGEST_NAME)}
            for match in (hit["match"] for hit in worst_cases)
            if match is not None
        ]
        cases_by_kind[kind] = {"count": worst_cases[0]["count"], "cases": cases}
    return cases_by_kind


class _WantedTiles(NamedTuple):
    number: int
    span: TimeSpan
    columns: int = TILE_COLUMNS


def _wanted(drawn: Sequence[Lanes], examples: Sequence[Sequence[TimeSpan]]) -> Iterator[_WantedTiles]:
    """Yield tiles by usefulness: whole windows, examples, then finer and finer tiles, the fullest first."""
    windows = [TimeSpan(lanes.start_ns, max(lanes.end_ns, lanes.start_ns + SHORTEST_VIEW_NS)) for lanes in drawn]
    yield from itertools.starmap(_WantedTiles, enumerate(windows))
    for number, lanes in enumerate(drawn):
        example_spans = dict.fromkeys(around(example, lanes) for example in examples[number][:_MAX_EXAMPLES])
        yield from (_WantedTiles(number, span) for span in example_spans if span != windows[number])
    lengths = [_lengths(lanes) for lanes in drawn]
    spans = list(enumerate(windows))
    for level in itertools.count():
        finer: list[tuple[int, int, TimeSpan]] = []
        for number, span in spans:
            start_ns, length_ns = lengths[number]
            first, last = np.searchsorted(start_ns, span).tolist()
            # Ops that are too short to be drawn singly in the tiles of this level.
            shortest_ns = (
                DRAWN_COLUMNS * (drawn[number].end_ns - drawn[number].start_ns) / (TILE_COLUMNS * LEVEL_RATIO**level)
            )
            missing = int(np.count_nonzero(length_ns[first:last] < shortest_ns))
            if missing and span.end_ns - span.start_ns >= MIN_COLUMN_NS * LEVEL_RATIO * TILE_COLUMNS:
                finer.append((missing, number, span))
        if not finer:
            return
        finer.sort(key=lambda each: -each[0])
        yield from (_WantedTiles(number, span, LEVEL_RATIO * TILE_COLUMNS) for _, number, span in finer)
        spans = [(number, part) for _, number, span in finer for part in _parts(span)]


def _parts(span: TimeSpan) -> Iterator[TimeSpan]:
    start, length = span.start_ns, span.end_ns - span.start_ns
    edges = [start + length * number // LEVEL_RATIO for number in range(LEVEL_RATIO + 1)]
    return itertools.starmap(TimeSpan, itertools.pairwise(edges))


def _lengths(lanes: Lanes) -> tuple[I64, I64]:
    """Return start and length of all ops that have a length, by start."""
    start_ns = np.concatenate([np.zeros(0, np.int64), *(lane.start_ns for lane in lanes.lanes)])
    length_ns = np.concatenate([np.zeros(0, np.int64), *(lane.end_ns - lane.start_ns for lane in lanes.lanes)])
    order = np.argsort(start_ns, kind="stable")
    order = order[length_ns[order] > 0]
    return start_ns[order], length_ns[order]

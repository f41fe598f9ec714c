"""A report as a single HTML file with timelines to zoom into.

It has verdict, findings, timeline, charts and tables of each trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from overlapscope.base.words import clean
from overlapscope.documents import model
from overlapscope.documents.model import Block, Document, Heading, Section, Text
from overlapscope.report import document as parts
from overlapscope.report import tables
from overlapscope.report.model import PLAIN
from overlapscope.report.page import DeviceReport, Page
from overlapscope.rules.finding import Finding
from overlapscope.timeline import Lanes, browser
from overlapscope.timeline.tiles import BUDGET_BYTES, TimeSpan, around, pyramids


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
        files = tables.source_names(page)
        names = {f"trace-{number}": _name(of_trace[0], files[number]) for number, of_trace in by_trace.items()}
        blocks.append(model.Links(names))
    blocks += [Text(clean(note), tone="muted") for note in page.report.notes]
    blocks += parts.overview(page)
    for number, of_trace in by_trace.items():
        inner = _trace(page, of_trace, drawn.get(number), timelines.get(number), len(by_trace) > 1)
        blocks.append(Section(tuple(inner), kind="article", id=f"trace-{number}"))
    return Document(f"overlapscope: {name}", tuple(blocks))


def _name(part: DeviceReport, file: str) -> str:
    return f"rank {part.trace.rank}" if part.trace.rank is not None else file


def _trace(
    page: Page, of_trace: list[DeviceReport], lanes: Lanes | None, timeline: model.TimelineBlock | None, several: bool
) -> Iterator[Block]:
    titled = several or len(of_trace) > 1
    trusted = of_trace[0].trace.trust.verdict == "trusted"
    for part in of_trace:
        yield parts.head(part, titled=titled)
    if not trusted:
        yield parts.trust(of_trace[0])
    if any(part.usable for part in of_trace):
        yield from _findings(page, of_trace, lanes, timeline)
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
        yield parts.trust(of_trace[0])


def _findings(
    page: Page, of_trace: list[DeviceReport], lanes: Lanes | None, timeline: model.TimelineBlock | None
) -> Iterator[Block]:
    """Yield the findings, costliest first, each with a button that shows its example in the timeline."""
    findings = parts.in_order(of_trace)
    yield Heading("Findings")
    if page.recorded:
        yield Text("Findings are about the program without the profiler. This report is on its recording.")
    elif not findings:
        yield Text(f"No rule found anything{tables.where_none_found(page.report.traces)}.", tone="muted")
    if note := tables.findings_note(page.report.traces, [finding for _, finding in findings]):
        yield Text(note, tone="muted")
    several = len({finding.device for _, finding in findings}) > 1
    for part, finding in findings:
        example = None
        if timeline is not None and lanes is not None and (span := _example(finding, lanes)) is not None:
            example = model.Example(timeline.id, *span, *around(span, lanes))
        where = f"on device {finding.device}" if several else ""
        yield parts.finding_block(part, finding, where=where, example=example)


# -- Timelines -------------------------------------------------------------------------------------


def _timelines(
    by_trace: dict[int, list[DeviceReport]], drawn: dict[int, Lanes], view: TimeSpan | None
) -> dict[int, model.TimelineBlock]:
    """Return the timelines by the number of their trace."""
    examples = [
        [span for _, finding in parts.in_order(by_trace[number]) if (span := _example(finding, lanes)) is not None]
        for number, lanes in drawn.items()
    ]
    all_tiles = pyramids(list(drawn.values()), examples, BUDGET_BYTES)
    scripts, styles = tuple(map(browser.text, browser.scripts())), (browser.text(browser.STYLE),)
    return {
        number: model.TimelineBlock(
            f"timeline-{number}",
            pyramid | {"view": _first_view(by_trace[number], lanes, view)},
            scripts,
            styles,
        )
        for (number, lanes), pyramid in zip(drawn.items(), all_tiles, strict=True)
    }


def _example(finding: Finding, lanes: Lanes) -> TimeSpan | None:
    """Return a finding's example relative to the lanes' origin."""
    if finding.example is None:
        return None
    return TimeSpan(finding.example.start_ns - lanes.origin_ns, finding.example.end_ns - lanes.origin_ns)


def _first_view(of_trace: list[DeviceReport], lanes: Lanes, asked: TimeSpan | None) -> TimeSpan:
    """Return the initial view: the GPU's work, because the host's may extend far beyond it."""
    if asked is not None:
        return asked
    windows = [part.device.window for part in of_trace if part.device]
    if not windows:
        return TimeSpan(lanes.start_ns, lanes.end_ns)
    origin = lanes.origin_ns
    return TimeSpan(
        min(window.start_ns for window in windows) - origin, max(window.end_ns for window in windows) - origin
    )

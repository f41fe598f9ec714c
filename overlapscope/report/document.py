"""What a report consists of when it is shown: verdict, tables, timeline, findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.each_copy import list_copies
from overlapscope.analysis.results import Device, partition
from overlapscope.base.words import bare_shares, clean, clean_lines
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.documents import model
from overlapscope.documents.model import Block, Chart, Document, Heading, Section, Text, columns, panel
from overlapscope.documents.table import Table
from overlapscope.report import charts, copy_chart, strip, tables
from overlapscope.report.headline import headlines
from overlapscope.report.page import Page, section_of
from overlapscope.report.page import Section as Part
from overlapscope.report.verdict import judge
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding, costliest_first

_LEAST_STEPS = 2
"""One step's bar says no more than the window's."""


def document(page: Page) -> Document:
    """A report as it is read from top to bottom, in a terminal or as markdown."""
    parts = list(page.sections())
    blocks: list[Block] = [Heading("overlapscope report", 1)]
    blocks += [Text(clean(note), strong=True) for note in page.report.notes]
    if len(parts) > 1:
        blocks.append(replace(tables.summary(page), title=""))
    for part in parts:
        blocks.append(Section(tuple(_part(part)), part.title, "article"))
    blocks += _findings(page, page.report.findings)
    return Document(f"overlapscope: {title(page)}", tuple(blocks))


def title(page: Page) -> str:
    """What the report is of."""
    more = len(page.report.traces) - 1
    return f"{next(page.sections()).title}{f' and {more} more' if more else ''}"


def _part(part: Part) -> Iterator[Block]:
    verdict = judge(part)
    yield Text(clean(verdict.text), badge=verdict.level)
    if verdict.plain:
        yield Text(verdict.plain)
    yield from _filled([tables.checks(part)])
    if part.device is None or verdict.level == "unusable":
        yield from _filled(tables.host_tables(part))
        return
    yield from _device_tables(part, part.device)
    if part.strip is not None:
        yield model.Strip(partial(strip.draw, part.strip, part.unit))


def _filled(found: Iterable[Table]) -> Iterator[Table]:
    return (table for table in found if table.rows)


def _device_tables(part: Part, device: Device) -> Iterator[Block]:
    """The tables between the verdict and the strip; what is short and belongs together side by side."""
    yield from _filled([tables.plain_step(part, device)])
    yield from columns([tables.buckets(part, device), tables.figures(part, device)])
    yield from _filled([tables.copies(part, device)])
    yield from columns(tables.cause_tables(part, device))
    yield from _filled([tables.stalls(part, device)])
    if part.page.scope == "window":
        yield from _filled([tables.steps(part, device)])
        if part.page.verbose:
            yield from _filled([tables.each_step(part, device)])
        yield from _filled([tables.ranges(part, device)])


# -- findings -------------------------------------------------------------------------------------


def _findings(page: Page, found: Sequence[Finding]) -> Iterator[Block]:
    """All findings, counted."""
    where = tables.where_none_found(page.report.traces)
    if found or page.report.devices:
        yield Heading("Findings")
    if not found and page.report.devices:
        yield Text(f"None{where}.")
    if note := tables.costs_note(found):
        yield Text(note, tone="muted")
    several = sum(1 for _ in page.sections()) > 1
    for number, finding in enumerate(found, 1):
        part = section_of(page, finding)
        yield finding_block(part, finding, number=number, where=part.title if several and part else "")


def finding_block(
    part: Part | None, finding: Finding, *, number: int = 0, where: str = "", example: model.Example | None = None
) -> model.Finding:
    """A finding as it is shown; `part` is the device that it is on."""
    rule = RULES.get(finding.rule)
    return model.Finding(
        severity=finding.severity,
        rule=clean(finding.rule),
        title=clean(finding.title, 500),
        cost=clean(tables.cost(part, finding)),
        evidence=tuple(map(clean_lines, tables.evidence(finding))),
        places=tuple(tables.places(finding)),
        advice=clean_lines(finding.advice),
        number=number,
        where=where,
        meaning=rule.meaning if rule else "",
        wrong=rule.wrong if rule else "",
        right=rule.right if rule else "",
        example=example,
    )


# -- what only files show -------------------------------------------------------------------------


def head(part: Part, *, titled: bool) -> Section:
    """The verdict on one device with the figures that it speaks of."""
    verdict = judge(part)
    # The title stands above already.
    said = clean(verdict.text).removeprefix(f"{part.title}: ")
    blocks: list[Block] = [Text(said[:1].upper() + said[1:], badge=verdict.level)]
    blocks += [Text(verdict.plain)] if verdict.plain else []
    spoken = part.spoken
    if spoken.device is not None and part.usable:
        blocks += [model.Cards(headlines(spoken, spoken.device)), _bar(spoken, spoken.device)]
    answer = Section(tuple(blocks), kind="verdict")
    return Section((Heading(part.title), answer) if titled else (answer,))


def _bar(part: Part, device: Device) -> model.Bar:
    """The partition of the window."""
    buckets = partition(device)
    shares = bare_shares(list(buckets.values()), device.span_ns)
    return model.Bar(
        tuple(
            model.Part(word, ns, part.unit.text(ns), f"{share}%", BUCKETS[word].id)
            for (word, ns), share in zip(buckets.items(), shares, strict=True)
            if ns
        )
    )


def trust(part: Part) -> Section:
    """What was asked of the trace, in one box."""
    checks = tables.checks(part)
    said = replace(checks, title="") if checks.rows else Text("Every check of the trace passed.")
    return panel(f"Trust: {part.trace.trust.verdict}", said)


def details(part: Part, analysis: DeviceAnalysis | None, *, titled: bool) -> Iterator[Block]:
    """The charts and the tables of one device."""
    of = f": {part.title}" if titled else ""
    drawn = list(_charts(part, analysis)) if part.usable else []
    if drawn:
        yield Heading(f"Charts{of}")
        yield from drawn
    yield Heading(f"Tables{of}")
    if part.device is not None and part.usable:
        yield from _device_tables(part, part.device)
    yield from _filled(tables.host_tables(part))


def _charts(part: Part, analysis: DeviceAnalysis | None) -> Iterator[Chart]:
    """The charts of one device that have anything to show; `analysis` is what its figures were taken from."""
    device = part.device
    if device is None:
        return
    id = f"trace-{part.number}-{device.device}-chart"
    if any(device.exposed_copy_by_cause.values()):
        yield Chart(f"{id}-exposed", "Exposed copy by cause", partial(charts.causes, part, "exposed-copy"))
    if any(device.idle_by_cause.values()):
        yield Chart(f"{id}-idle", "Idle by cause", partial(charts.causes, part, "idle"))
    copies = list_copies(analysis) if analysis is not None else None
    if copies is not None and (copies.bytes > 0).any():
        yield Chart(f"{id}-bandwidth", "Bandwidth of each copy", partial(copy_chart.bandwidth, part, copies))
    if part.page.scope == "window" and len(device.steps) >= _LEAST_STEPS:
        yield Chart(f"{id}-steps", "Steps", partial(charts.steps, part))


def overview(page: Page) -> Iterator[Block]:
    """All devices beside one another, where there are several."""
    parts = list(page.sections())
    if len(parts) > 1:
        yield tables.summary(page)
        judged = [part for part in parts if part.usable]
        if len(judged) > 1:
            yield Chart("all-chart", "Where the time goes", partial(charts.each_device, judged))


def in_order(parts: Iterable[Part]) -> list[tuple[Part, Finding]]:
    """The findings of several devices, costliest first."""
    return sorted(((part, one) for part in parts for one in part.findings), key=lambda pair: costliest_first(pair[1]))

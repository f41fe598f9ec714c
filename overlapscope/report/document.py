"""Documents of a report: verdict, timeline, findings, tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain

from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.results import Device, by_subject, partition
from overlapscope.base.words import bare_shares, clean, clean_lines, listed, plural
from overlapscope.catalog.buckets import BUCKETS
from overlapscope.documents import model
from overlapscope.documents.model import (
    EVIDENCE,
    Block,
    Chart,
    Document,
    Heading,
    Section,
    Text,
    columns,
    detail,
    panel,
)
from overlapscope.documents.table import Table
from overlapscope.prediction.interventions import name_and_argument
from overlapscope.report import host_view, lists, net_overlap, strip, tables
from overlapscope.report.losses import WORTH_SAYING
from overlapscope.report.page import DeviceReport, Page, section_of
from overlapscope.report.verdict import cost, judge
from overlapscope.rules.finding import Finding, costliest_first

_LEAST_STEPS = 2
"""Minimum number of steps for a chart; a single step's bar would repeat the window's."""
_FEW = 3
"""Number of recommendations in the short form, and of devices named with each besides the worst."""
_MOST_ROWS = 8
"""Rows of each table in the short form, for a trace without GPU activity."""


def document(page: Page) -> Document:
    """Return a report in reading order, for a terminal or markdown: the answer, then the rest as details."""
    parts = list(replace(page, verbose=True).sections())
    blocks: list[Block] = [Heading("overlapscope report", 1)]
    blocks += [Text(clean(note), strong=True) for note in page.report.notes]
    if len(parts) > 1:
        blocks.append(replace(tables.summary(page), title=""))
    for part in parts:
        blocks.append(Section(tuple(_part(part, page)), part.title, "article"))
    if len(parts) > 1:
        blocks += _findings(page, parts)
    return Document(f"overlapscope: {title(page)}", tuple(blocks))


def title(page: Page) -> str:
    """Return the name of the report's trace and the number of the others."""
    more = len(page.report.traces) - 1
    return f"{next(page.sections()).title}{f' and {more} more' if more else ''}"


def _part(part: DeviceReport, page: Page) -> Iterator[Block]:
    """Yield the blocks of a device, with its findings if it is the only device."""
    verdict, alone = judge(part), len(page.report.traces) == len(part.trace.devices) == 1
    # The finding itself follows.
    text = f"{verdict.subject}: {verdict.lead}" if alone and verdict.of_finding else verdict.text
    yield Text(clean_lines(text), badge=verdict.level)
    yield from map(Text, verdict.notes)
    if part.device is None or verdict.level == "unusable":
        yield from _filled(tables.host_tables(part, most=None if page.verbose else _MOST_ROWS))
        yield from host_view.blocks(part)
        yield from detail("steps", _filled([tables.host_steps(part)]))
    else:
        yield from _filled([tables.phases(part, part.device)])
        if part.strip is not None:
            yield model.StripBlock(partial(strip.draw, part.strip, part.unit, beside_plain=part.is_plain))
        if alone:
            yield from _findings(page, [part])
        yield from columns([tables.buckets(part, part.device), tables.costliest_causes(part, part.device)])
        yield from _details(part, part.device)
        yield from detail("lines", host_view.blocks(part))
    yield from detail("checks", _filled([tables.checks(part, passed=part.page.verbose)]))


def _filled(candidates: Iterable[Table]) -> Iterator[Table]:
    return (table for table in candidates if table.rows)


def _details(part: DeviceReport, device: Device) -> Iterator[Block]:
    """Yield the tables that support the answer, as details."""
    engines = columns([tables.figures(part, device)]), columns(tables.cause_tables(part, device))
    tables_of_overlap = [net_overlap.summary(part), net_overlap.kernels(part)]
    yield from detail("engines", chain(*engines, _filled([*tables_of_overlap, tables.window(part)])))
    yield from detail("copies", _filled([lists.copies(part, device)]))
    yield from detail("stalls", _filled([lists.stalls(part, device)]))
    if part.page.scope == "window":
        builders = (tables.steps, lists.each_step, lists.ranges)
        yield from detail("steps", _filled(table(part, device) for table in builders))


def _device_tables(part: DeviceReport, device: Device) -> Iterator[Block]:
    """Yield a device's tables for a file; short tables that belong together stand side by side."""
    yield from _filled([tables.phases(part, device)])
    yield from columns([tables.buckets(part, device), tables.figures(part, device)])
    yield from _filled([lists.copies(part, device)])
    yield from columns(tables.cause_tables(part, device))
    yield from _filled([net_overlap.summary(part), net_overlap.kernels(part)])
    yield from _filled([lists.stalls(part, device)])
    yield from _filled([tables.window(part)])
    if part.page.scope == "window":
        yield from _filled([tables.steps(part, device)])
        if part.page.verbose:
            yield from _filled([lists.each_step(part, device)])
        yield from _filled([lists.ranges(part, device)])


# -- Findings --------------------------------------------------------------------------------------


def _findings(page: Page, parts: Sequence[DeviceReport]) -> Iterator[Block]:
    """Yield the findings on some devices, costliest first. Findings with the same advice are one entry."""
    findings = page.findings
    where = tables.where_none_found(page.report.traces)
    if findings or page.report.devices:
        yield Heading("Findings")
    if not findings and page.report.devices:
        yield Text(f"No rule found anything that costs 1% of the time{where}.")
    if note := tables.findings_note(page.report.traces, findings):
        yield Text(note, tone="muted")
    groups = list(_by_advice(findings).values())
    drawn = [tuple(_advice(page, group, number, len(parts) > 1)) for number, group in enumerate(groups, 1)]
    first = [number for number, group in enumerate(groups) if number == 0 or _pays(page, group[0])][:_FEW]
    yield from chain.from_iterable(drawn[number] for number in first)
    others = [number for number in range(len(groups)) if number not in first]
    remaining = sum(len(groups[number]) for number in others)
    yield from detail(plural(remaining, "more finding"), chain.from_iterable(drawn[number] for number in others))


def _pays(page: Page, finding: Finding) -> bool:
    """Return whether a fix is worth a place in the short form: it may save 1% of the time."""
    part = section_of(page, finding)
    if part is None or part.device is None or finding.saving is None:
        return True
    return part.per_step(finding.saving.saved_high_ns) >= WORTH_SAYING * part.device.span_ns


def _by_advice(findings: Iterable[Finding]) -> dict[tuple[str, str], list[Finding]]:
    """Return the findings grouped by rule and advice, in their order."""
    groups: dict[tuple[str, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.advice), []).append(finding)
    return groups


def _advice(page: Page, group: Sequence[Finding], number: int, several: bool) -> Iterator[Block]:
    """Yield the costliest of some findings with the same advice, then the others, as details without the advice."""
    parts = [section_of(page, finding) for finding in group]
    labels = list(dict.fromkeys(part.label for part in parts if part))
    also = f", also on {listed(labels[1:], _FEW)}" if labels[1:] else ""
    where = f"on {labels[0]}{also}" if several and labels else ""
    yield finding_block(parts[0], group[0], number=number, where=where)
    others = (
        replace(finding_block(part, finding, where=f"on {part.label}" if several and part else ""), advice="")
        for part, finding in zip(parts[1:], group[1:], strict=True)
    )
    yield from detail(EVIDENCE, others)


def finding_block(
    part: DeviceReport | None,
    finding: Finding,
    *,
    number: int = 0,
    where: str = "",
    example: model.Example | None = None,
) -> model.FindingBlock:
    """Return a finding as a block; `part` is the device that it is on."""
    return model.FindingBlock(
        severity=finding.severity,
        rule=clean(finding.rule),
        title=clean(finding.title, 500),
        cost=clean(cost(part, finding)) if part else "",
        evidence=tuple(map(clean_lines, tables.evidence(finding))),
        line=clean(finding.where.line or "", 200) if finding.where else "",
        call=tables.called(finding),
        advice=clean_lines(finding.advice),
        proof=clean(proof(part, finding)),
        number=number,
        where=where,
        example=example,
    )


# -- Parts that only files show --------------------------------------------------------------------


def head(part: DeviceReport, *, titled: bool) -> Section:
    """Return the verdict on a device and the figures that it is about."""
    # As charts, only files have these.
    from overlapscope.report.headline import headlines

    verdict = judge(part)
    # The title is above already.
    blocks: list[Block] = [Text(clean(verdict.lead), badge=verdict.level)]
    blocks += map(Text, filter(None, (clean(verdict.why), clean(verdict.remedy), *verdict.notes)))
    if part.device is not None and part.usable:
        blocks += [model.Cards(headlines(part, part.device)), _bar(part, part.device)]
    answer = Section(tuple(blocks), kind="verdict")
    return Section((Heading(part.title), answer) if titled else (answer,))


def _bar(part: DeviceReport, device: Device) -> model.Bar:
    """Return the buckets of the window as a bar."""
    buckets = partition(device)
    shares = bare_shares(list(buckets.values()), device.span_ns)
    return model.Bar(
        tuple(
            model.Part(word, ns, part.unit.text(ns), f"{share}%", BUCKETS[word].id)
            for (word, ns), share in zip(buckets.items(), shares, strict=True)
            if ns
        )
    )


def trust(part: DeviceReport) -> Section:
    """Return a box with the checks of the trace."""
    checks = tables.checks(part, passed=part.page.verbose)
    block = replace(checks, title="") if checks.rows else Text("Every check of the trace passed.")
    # Figures on a GPU are unusable, those on the host are not.
    return panel(f"Trust: {'no GPU' if part.trace.host is not None else part.trace.trust.verdict}", block)


def details(part: DeviceReport, analysis: DeviceAnalysis | None, *, titled: bool) -> Iterator[Block]:
    """Yield the charts and tables of a device."""
    of = f": {part.title}" if titled else ""
    drawn = list(_charts(part, analysis)) if part.usable else []
    if drawn:
        yield Heading(f"Charts{of}")
        yield from drawn
    if host := tuple(host_view.blocks(part)):
        yield Heading(f"Host{of}")
        yield from host
    yield Heading(f"Tables{of}")
    if part.device is not None and part.usable:
        yield from _device_tables(part, part.device)
    yield from _filled(tables.host_tables(part, most=None if part.page.verbose else _MOST_ROWS))
    yield from _filled([tables.host_steps(part)])


def _charts(part: DeviceReport, analysis: DeviceAnalysis | None) -> Iterator[Chart]:
    """Yield the charts of a device that have data; `analysis` is the analysis of that device."""
    from overlapscope.analysis.each_copy import list_copies
    from overlapscope.report import charts, copy_chart

    device = part.device
    if device is None:
        return
    id = f"trace-{part.number}-{device.device}-chart"
    for subject, by_cause in by_subject(device).items():
        if any(by_cause.values()):
            yield Chart(f"{id}-{subject}", charts.CAUSE_TITLES[subject], partial(charts.causes, part, subject))
    copies = list_copies(analysis) if analysis is not None else None
    if copies is not None and (copies.bytes > 0).any():
        yield Chart(f"{id}-bandwidth", "Bandwidth of each copy", partial(copy_chart.bandwidth, part, copies))
    if part.page.scope == "window" and len(device.steps) >= _LEAST_STEPS:
        yield Chart(f"{id}-steps", "Steps", partial(charts.steps, part))


def overview(page: Page) -> Iterator[Block]:
    """Yield a comparison of all devices if there are several."""
    parts = list(page.sections())
    if len(parts) > 1:
        from overlapscope.report import charts

        yield tables.summary(page)
        judged = [part for part in parts if part.usable]
        if len(judged) > 1:
            yield Chart("all-chart", "Where the time goes", partial(charts.each_device, judged))


def in_order(parts: Iterable[DeviceReport]) -> list[tuple[DeviceReport, Finding]]:
    """Return the findings of several devices, costliest first."""
    return sorted(
        ((part, finding) for part in parts for finding in part.findings), key=lambda pair: costliest_first(pair[1])
    )


# -- The command that shows a saving -----------------------------------------------------------------


def proof(section: DeviceReport | None, finding: Finding) -> str:
    """Return a command such as `overlapscope whatif train.json.gz --pin`, empty without a saving.

    The command repeats the replay that gave the saving: same device, same plain step if the user passed one.
    """
    if section is None or section.device is None or finding.saving is None:
        return ""
    # A file name that begins with a dash must not be read as an option.
    source = f"./{finding.source}" if finding.source.startswith("-") else finding.source
    words = ["overlapscope", "whatif", source]
    for change in finding.saving.fix:
        name, argument = name_and_argument(change)
        words += [f"--{name}", *([argument] if argument else [])]
    if len(section.trace.devices) > 1:
        words += ["--device", str(finding.device)]
    plain = section.device.plain
    if plain is not None and plain.origin == "told":
        words += ["--plain-step", f"{Decimal(plain.step_ns).scaleb(-6).normalize():f}ms"]
    command = shlex.join(words)
    # Without a command, a name from a trace can't smuggle code into a page or a shell.
    return "" if set(command) & {*"`<>|"} or not command.isprintable() else command

"""Documents of a report: verdict, timeline, findings, tables."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain

from msgspec.structs import replace

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.results import Device
from overlapscope.analysis.strip import Lane, Strip, StripExtent
from overlapscope.base.words import Unit, clean, clean_lines, listed, plural
from overlapscope.documents import model
from overlapscope.documents.model import (
    EVIDENCE,
    LABEL_WIDTH,
    UNICODE,
    Block,
    Chart,
    Document,
    Drawing,
    Glyphs,
    Heading,
    Section,
    StripLine,
    Text,
    columns,
    detail,
    panel,
)
from overlapscope.documents.table import Table
from overlapscope.prediction.interventions import name_and_argument
from overlapscope.report import lists, tables
from overlapscope.report.page import DeviceReport, Page, SampledHost
from overlapscope.report.sentences import WORTH_SAYING, graphs_sentence
from overlapscope.report.verdict import cost, judge
from overlapscope.rules.finding import Finding
from overlapscope.trace.model import Kind

_MIN_STEPS = 2
"""Minimum number of steps for a chart; a single step's bar would repeat the window's."""
_MAX_RECOMMENDATIONS = 3
"""Number of recommendations in the short form, and of devices named with each besides the worst."""
_MAX_KERNELS = 20
"""Rows of the table of kernels; the dashboard has all."""
_MAX_ROWS = 8
"""Rows of each table in the short form, for a trace without GPU activity."""


def document(page: Page) -> Document:
    """Return a report in reading order, for a terminal or markdown: the answer, then the rest as details."""
    full = replace(page, verbose=True)
    parts = [*full.sections()]
    blocks: list[Block] = [Heading("overlapscope report", 1)]
    blocks += [Text(clean(note), strong=True) for note in page.report.notes]
    if len(parts) > 1:
        blocks.append(replace(summary(full), title=""))
    for part in parts:
        blocks.append(Section(tuple(_part(part, page)), part.title, "article"))
    if len(parts) > 1:
        blocks += findings(page, parts)
    return Document(f"overlapscope: {title(full)}", tuple(blocks))


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
        from overlapscope.report import host_view

        yield from _filled(host_view.host_tables(part, most=None if page.verbose else _MAX_ROWS))
        yield from host_blocks(part)
        yield from detail("steps", _filled([host_view.host_steps(part)]))
    else:
        yield from _filled([tables.phases(part, part.device)])
        if part.strip is not None:
            yield model.StripBlock(partial(draw_strip, part.strip, part.unit, beside_plain=part.is_plain))
        if alone:
            yield from findings(page, [part])
        yield from columns([tables.buckets(part, part.device), tables.costliest_causes(part, part.device)])
        if graphs := graphs_sentence(part.device, verbose=page.verbose):
            yield Text(graphs, tone="muted")
        yield from _details(part, part.device)
        yield from detail("lines", host_blocks(part))
    yield from detail("checks", _filled([tables.checks(part, passed=part.page.verbose)]))


def host_blocks(part: DeviceReport) -> Iterator[Block]:
    """Yield sentences, the flame graph and the table; without samples of a program that uses no GPU, the reason."""
    host = part.host
    if host is None and part.trace.host is None:
        return
    from overlapscope.report import host_view

    if host is None:
        if missing := host_view.why_no_lines(part):
            yield Text(missing, tone="muted")
        return
    yield from map(Text, host_view.sentences(part, host))
    figure = partial(_flame_graph, host)
    yield Chart(f"trace-{part.number}-host", host_view.TITLE, figure, note=host_view.LEGEND, wide=True)
    yield host_view.table(host_view.rows(part, host), host)


def summary(page: Page) -> Table:
    """Return a row for each trace and device."""
    if any(trace.host is None for trace in page.report.traces):
        return tables.summary(page)
    from overlapscope.report import host_view

    return host_view.summary(page)


def _flame_graph(host: SampledHost, dark: bool) -> model.Figure:
    from overlapscope.report.charts import flame_graph

    return flame_graph(host, dark)


def _filled(candidates: Iterable[Table]) -> Iterator[Table]:
    return (table for table in candidates if table.rows)


def _details(part: DeviceReport, device: Device) -> Iterator[Section]:
    """Yield the tables that support the answer, as details."""
    engines = columns([tables.figures(part, device)]), columns(tables.cause_tables(device, part.unit))
    tables_of_overlap = [lists.net_overlap(part), lists.slowed_kernels(part)]
    yield from detail("engines", chain(*engines, _filled([*tables_of_overlap, tables.window(part)])))
    yield from detail("copies", _filled([lists.copies(part, device)]))
    most = None if part.page.verbose else lists.SHORT_FORM_ROWS
    yield from detail("stalls", _filled([lists.stalls(part, device, most)]))
    yield from detail("kernels", _filled([lists.kernels(part, device, _MAX_KERNELS)]))
    if part.page.scope == "window":
        each = [lists.each_step(part, device)] if part.page.verbose else []
        yield from detail("steps", _filled([tables.steps(part, device), *each, lists.ranges(part, device, most)]))


# -- Findings --------------------------------------------------------------------------------------


_Placed = tuple[DeviceReport, Finding]
"""A finding with the report on its device."""


def findings(
    page: Page, parts: Sequence[DeviceReport], example: Callable[[Finding], model.Example | None] = lambda _: None
) -> Iterator[Block]:
    """Yield the findings on some devices, costliest first. Findings with the same advice are one entry.

    `example` returns the place of a finding in a timeline of the document.
    """
    of_device = {(part.trace.source, part.device.device): part for part in reversed(parts) if part.device}
    placed = [(part, each) for each in page.findings if (part := of_device.get((each.source, each.device)))]
    if placed or of_device:
        yield Heading("Findings")
    if page.recorded:
        yield Text("Findings are about the program without the profiler. This report is on its recording.")
    elif not placed and of_device:
        yield Text(f"No rule found anything that costs 1% of the time{tables.where_none_found(page.report.traces)}.")
    if note := tables.findings_note(page.report.traces, [finding for _, finding in placed]):
        yield Text(note, tone="muted")
    by_advice: dict[tuple[str, str], list[_Placed]] = {}
    for part, finding in placed:
        by_advice.setdefault((finding.rule, finding.advice), []).append((part, finding))
    groups = list(by_advice.values())
    drawn = [tuple(_advice(group, number, len(parts) > 1, example)) for number, group in enumerate(groups, 1)]
    first = [number for number, group in enumerate(groups) if number == 0 or _pays(*group[0])][:_MAX_RECOMMENDATIONS]
    yield from chain.from_iterable(drawn[number] for number in first)
    others = [number for number in range(len(groups)) if number not in first]
    remaining = sum(len(groups[number]) for number in others)
    yield from detail(plural(remaining, "more finding"), chain.from_iterable(drawn[number] for number in others))


def _pays(part: DeviceReport, finding: Finding) -> bool:
    """Return whether a fix is worth a place in the short form: it may save 1% of the time."""
    if part.device is None or finding.saving is None:
        return True
    return part.per_step(finding.saving.saved_high_ns) >= WORTH_SAYING * part.device.span_ns


def _advice(
    group: Sequence[_Placed], number: int, several: bool, example: Callable[[Finding], model.Example | None]
) -> Iterator[Block]:
    """Yield the costliest of some findings with the same advice, then the others, as details without the advice."""
    labels = list(dict.fromkeys(part.label for part, _ in group))
    also = f", also on {listed(labels[1:], _MAX_RECOMMENDATIONS)}" if labels[1:] else ""
    where = f"on {labels[0]}{also}" if several else ""
    (part, finding), *rest = group
    yield finding_block(part, finding, number=number, where=where, example=example(finding))
    others = (
        replace(
            finding_block(part, finding, where=f"on {part.label}" if several else "", example=example(finding)),
            advice="",
        )
        for part, finding in rest
    )
    yield from detail(EVIDENCE, others)


def finding_block(
    part: DeviceReport,
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
        cost=clean(cost(part, finding)),
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
    """Return the verdict on a device and a bar of its figures."""
    blocks = [*answer(part)]
    if part.device is not None and part.usable:
        blocks.append(tables.bar(part.device, part.unit))
    verdict = Section(tuple(blocks), kind="verdict")
    return Section((Heading(part.title), verdict) if titled else (verdict,))


def answer(part: DeviceReport, *, finding_beside: bool = False) -> Iterator[Block]:
    """Yield the verdict on a device, without its title; with `finding_beside`, without what repeats a finding."""
    verdict = judge(part)
    reasons = ("", "") if finding_beside and verdict.of_finding else (clean(verdict.why), clean(verdict.remedy))
    yield Text(clean(verdict.lead), badge=verdict.level)
    yield from map(Text, filter(None, (*reasons, *verdict.notes)))


def trust(part: DeviceReport, *, passed: bool, effects: bool = False) -> Section:
    """Return a box with the checks of the trace (`tables.checks`)."""
    checks = tables.checks(part, passed=passed, effects=effects)
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
    if host := tuple(host_blocks(part)):
        yield Heading(f"Host{of}")
        yield from host
    yield Heading(f"Tables{of}")
    if part.device is not None and part.usable:
        # Short tables that belong together stand side by side.
        yield from _filled([tables.phases(part, part.device)])
        yield from columns([tables.buckets(part, part.device)])
        for section in _details(part, part.device):
            yield from section.blocks
    from overlapscope.report import host_view

    most = None if part.page.verbose else _MAX_ROWS
    yield from _filled([*host_view.host_tables(part, most=most), host_view.host_steps(part)])


def _charts(part: DeviceReport, analysis: DeviceAnalysis | None) -> Iterator[Chart]:
    """Yield the charts of a device that have data; `analysis` is the analysis of that device."""
    from overlapscope.analysis.each_copy import list_copies
    from overlapscope.report import charts

    device = part.device
    if device is None:
        return
    id = f"trace-{part.number}-{device.device}-chart"
    copies = list_copies(analysis) if analysis is not None else None
    if copies is not None and (copies.bytes > 0).any():
        yield Chart(f"{id}-bandwidth", "Bandwidth of each copy", partial(charts.bandwidth, part, copies))
    if part.page.scope == "window" and len(device.steps) >= _MIN_STEPS:
        yield Chart(f"{id}-steps", "Steps", partial(charts.steps, part, device))


# -- The command that shows a saving ---------------------------------------------------------------


def proof(section: DeviceReport, finding: Finding) -> str:
    """Return a command such as `overlapscope whatif train.json.gz --pin`, empty without a saving.

    The command repeats the replay that gave the saving: same device, same plain step if the user passed one.
    """
    if section.device is None or finding.saving is None:
        return ""
    # A file name that begins with a dash must not be read as an option.
    source = f"./{finding.source}" if finding.source.startswith("-") else finding.source
    words = ["overlapscope", "whatif", source]
    for change in finding.saving.fix:
        name, argument = name_and_argument(change)
        words += [f"--{name}", *([argument] if argument else [])]
    if len(section.trace.devices) > 1:
        words += ["--device", str(finding.device)]
    if section.plain is not None and section.plain.origin == "told":
        words += ["--plain-step", f"{Decimal(section.plain.step_ns).scaleb(-6).normalize():f}ms"]
    command = shlex.join(words)
    # Without a command, a name from a trace can't smuggle code into a page or a shell.
    return "" if set(command) & {*"`<>|"} or not command.isprintable() else command


# -- The timeline strip: a line per stream, a character per slice of time --------------------------

LETTERS = {Kind.COMM: "n", Kind.H2D: "h", Kind.D2H: "d", Kind.P2P: "p", Kind.OTHER: "o"}
LEGEND = {Kind.COMM: "comm", Kind.H2D: "h2d", Kind.D2H: "d2h", Kind.P2P: "p2p", Kind.OTHER: "memset/D2D"}


def draw_strip(strip: Strip, unit: Unit, glyphs: Glyphs = UNICODE, *, beside_plain: bool = False) -> Drawing:
    """Return the strip as lines with a character per slice, plus `LABEL_WIDTH`.

    `beside_plain` is whether the figures beside it are of the program without the profiler.
    """
    width = len(strip.slice_ns)
    begin, end = "0", unit.text(strip.span_ns)
    gap = max(1, width - len(begin) - len(end) - 2)
    present = {kind for lane in strip.lanes for kind in Kind if lane.busy_ns[kind].any()}
    legend = [f"{glyphs.compute} compute"] if Kind.COMPUTE in present else []
    legend += [f"{LETTERS[kind].upper()} {LEGEND[kind]}" for kind in LETTERS if kind in present]
    if present - {Kind.COMPUTE}:
        legend.append("lower case: < half")
    left_out = f" ({plural(strip.left_out, 'stream')} with less work not shown)" if strip.left_out else ""
    return Drawing(
        title=f"{strip_title(strip.extent, beside_plain=beside_plain)}{left_out}",
        lanes=tuple(_lane(lane, strip, glyphs) for lane in strip.lanes),
        totals=(
            _level("exposed copy", strip.exposed_copy_ns.tolist(), strip, glyphs),
            _level("idle", strip.idle_ns.tolist(), strip, glyphs),
        ),
        scale=f"{'':<{LABEL_WIDTH}}{begin} {glyphs.rule * gap} {end}",
        legend=", ".join(legend),
    )


def strip_title(extent: StripExtent, *, beside_plain: bool = False) -> str:
    """Return `Timeline of ProfilerStep#8 (the median of 7)`."""
    what = clean(extent.label, 60) or ("all that was recorded" if extent.is_all else "all after the lead-in")
    if extent.label and beside_plain:
        what += " as recorded"
    if extent.of > 1:
        what += f" (the median of {extent.of})"
    return f"Timeline of {what}"


def _lane(lane: Lane, strip: Strip, glyphs: Glyphs) -> StripLine:
    characters: list[str] = []
    kinds: list[Kind | None] = []
    for busy, length in zip(lane.busy_ns.T.tolist(), strip.slice_ns.tolist(), strict=True):
        most = max(busy)
        if most == 0:
            characters.append(glyphs.empty)
            kinds.append(None)
            continue
        kind = Kind(busy.index(most))
        full = min(1.0, sum(busy) / length)
        if kind is Kind.COMPUTE:
            characters.append(_step(glyphs.compute, full))
        else:
            characters.append(LETTERS[kind].upper() if full >= 0.5 else LETTERS[kind])
        kinds.append(kind)
    return StripLine(f"stream {lane.stream}" if lane.stream >= 0 else "no stream", "".join(characters), tuple(kinds))


def _level(label: str, values: list[int], strip: Strip, glyphs: Glyphs) -> StripLine:
    text = "".join(
        _step(glyphs.level, value / length) if value else " "
        for value, length in zip(values, strip.slice_ns.tolist(), strict=True)
    )
    return StripLine(label, text, (None,) * len(text))


def _step(characters: str, full: float) -> str:
    """Return the character for a fullness; only slices that are full to within a step get the last."""
    return characters[min(len(characters) - 1, int(full * len(characters)))]

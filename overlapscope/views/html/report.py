"""A report as one HTML file: the verdict first, then findings, the timeline, charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Any

from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.base.words import clean
from overlapscope.documents.colors import palette
from overlapscope.report import tables
from overlapscope.report.host import host_tables
from overlapscope.report.page import Page, Section
from overlapscope.report.verdict import judge
from overlapscope.rules.finding import Finding, costliest_first
from overlapscope.timeline import Lanes
from overlapscope.views.html import document
from overlapscope.views.html.charts import Titled, of_all, of_section
from overlapscope.views.html.document import Document
from overlapscope.views.html.findings import Target, findings
from overlapscope.views.html.parts import bucket_bar, figures, level, panel, table
from overlapscope.views.html.tiles import BUDGET_BYTES, Span, pyramids

_NARROW = 3
"""Tables of so many columns stand beside one another."""
_TIMELINE_SCRIPTS = "timeline_*.js"


@dataclass(frozen=True, slots=True)
class _Trace:
    """One trace of a report, with what its timeline is drawn from."""

    number: int
    sections: tuple[Section, ...]
    lanes: Lanes | None

    @property
    def target(self) -> Target | None:
        """Its timeline, where it has one."""
        return Target(f"timeline-{self.number}", self.lanes) if self.lanes is not None else None

    @property
    def findings(self) -> list[Finding]:
        """Of all its devices, costliest first."""
        found = [finding for section in self.sections for finding in section.findings]
        return sorted(found, key=costliest_first)


def render(page: Page, lanes: Sequence[Lanes], view: Span | None = None) -> str:
    """The report as one document. `lanes` belong to the report's traces, in their order; timelines open at `view`.

    Raises MissingPackage where Plotly is not installed.
    """
    document.require_plotly()
    traces = _traces(page, lanes)
    judged = [section for trace in traces for section in trace.sections if section.usable]
    compared = _named("all", of_all(judged))
    own = {_anchor(one): _named(_anchor(one), of_section(one, _analysis(one, lanes))) for one in judged}
    body = [*_head(page, traces), *_overview(page, compared)]
    for trace in traces:
        body += _trace(page, trace, own, len(traces) > 1)
    charts = {name: titled.chart for found in (compared, *own.values()) for name, titled in found.items()}
    return document.render(
        Document(
            title=f"overlapscope: {_title(page)}",
            body=body,
            charts=charts,
            data={"timelines": _timelines(traces, view), "palettes": [palette(False), palette(True)]},
            scripts=[*_timeline_assets(_TIMELINE_SCRIPTS), document.asset("report.js")],
            styles=[*_timeline_assets("timeline*.css"), document.asset("report.css")],
        )
    )


def _traces(page: Page, lanes: Sequence[Lanes]) -> list[_Trace]:
    sections = list(page.sections())
    return [
        _Trace(
            number,
            tuple(section for section in sections if section.number == number),
            lanes[number] if number < len(lanes) and lanes[number].lanes else None,
        )
        for number in range(len(page.report.traces))
    ]


def _anchor(section: Section) -> str:
    return f"trace-{section.number}-{section.device.device if section.device else 'none'}"


def _analysis(section: Section, lanes: Sequence[Lanes]) -> DeviceAnalysis | None:
    """What a section's figures were taken from."""
    known = lanes[section.number].analysis.devices if section.number < len(lanes) else ()
    return next((one for one in known if section.device and one.result.device == section.device.device), None)


def _named(anchor: str, charts: Iterable[Titled]) -> dict[str, Titled]:
    """Charts by the `id` of their places in the page."""
    return {f"{anchor}-chart-{number}": chart for number, chart in enumerate(charts)}


def _title(page: Page) -> str:
    first = next(page.sections())
    more = len(page.report.traces) - 1
    return f"{first.title}{f' and {more} more' if more else ''}"


# -- the top --------------------------------------------------------------------------------------


def _head(page: Page, traces: Sequence[_Trace]) -> Iterator[str]:
    yield f'<header class="top"><p class="muted">overlapscope report</p><h1>{escape(_title(page))}</h1>'
    if len(traces) > 1:
        links = (f'<a href="#trace-{one.number}">{escape(_name(page, one))}</a>' for one in traces)
        yield f'<nav aria-label="Traces">{" ".join(links)}</nav>'
    yield from (f'<p class="muted">{escape(clean(note))}</p>' for note in page.report.notes)
    yield "</header>"


def _name(page: Page, trace: _Trace) -> str:
    result = trace.sections[0].trace
    return f"rank {result.rank}" if result.rank is not None else tables.source_name(page, result)


def _overview(page: Page, charts: Mapping[str, Titled]) -> Iterator[str]:
    """All ranks beside one another, where there are several."""
    if sum(1 for _ in page.sections()) > 1:
        summary = tables.summary(page)
        yield panel(summary.title, table(summary))
        yield from _plots(charts)


# -- a trace --------------------------------------------------------------------------------------


def _trace(page: Page, trace: _Trace, charts: Mapping[str, Mapping[str, Titled]], several: bool) -> Iterator[str]:
    yield f'<article class="trace" id="trace-{trace.number}">'
    trusted = trace.sections[0].trace.trust.verdict == "trusted"
    alone = not several and len(trace.sections) == 1
    for section in trace.sections:
        yield from _headline(section, titled=not alone)
    if not trusted:
        yield _trust(trace.sections[0])
    judged = any(section.usable for section in trace.sections)
    if judged:
        yield "<h2>Findings, costliest first</h2>"
        yield from findings(page, trace.findings, trace.target)
    if trace.target is not None:
        yield "<h2>Timeline</h2>"
        yield f'<div class="panel timeline"><div class="mount" id="{trace.target.id}"></div></div>'
    for section in trace.sections:
        yield from _details(section, charts.get(_anchor(section), {}), titled=not alone)
        yield from (panel(one.title, table(one)) for one in host_tables(section) if one.rows)
    if trusted:
        yield _trust(trace.sections[0])
    yield "</article>"


def _trust(section: Section) -> str:
    checks = tables.checks(section)
    said = table(checks) if checks.rows else "<p>Every check of the trace passed.</p>"
    return panel(f"Trust: {section.trace.trust.verdict}", said)


def _headline(section: Section, *, titled: bool) -> Iterator[str]:
    verdict = judge(section)
    if titled:
        yield f"<h2>{escape(section.title)}</h2>"
    # The title stands above already.
    said = clean(verdict.text).removeprefix(f"{section.title}: ")
    yield f'<div class="panel verdict"><p>{level(verdict.level)}{escape(said[:1].upper() + said[1:])}</p>'
    if verdict.plain:
        yield f"<p>{escape(verdict.plain)}</p>"
    spoken = section.spoken
    if spoken.device is not None and section.usable:
        yield figures(spoken, spoken.device)
        yield bucket_bar(spoken, spoken.device)
    yield "</div>"


def _details(section: Section, charts: Mapping[str, Titled], *, titled: bool) -> Iterator[str]:
    if charts:
        yield f"<h2>Charts{f': {escape(section.title)}' if titled else ''}</h2>"
        yield from _plots(charts)
    yield f"<h2>Tables{f': {escape(section.title)}' if titled else ''}</h2>"
    shown = [*tables.device_tables(section, section.device)] if section.device and section.usable else []
    narrow = [one for one in shown if len(one.columns) <= _NARROW]
    yield f'<div class="columns">{"".join(panel(one.title, table(one)) for one in narrow)}</div>'
    yield from (panel(one.title, table(one)) for one in shown if one not in narrow)


def _plots(charts: Mapping[str, Titled]) -> Iterator[str]:
    plots = (
        panel(one.title, f'<div class="plot" id="{name}" style="height:{one.height}px"></div>')
        for name, one in charts.items()
    )
    yield f'<div class="plots">{"".join(plots)}</div>' if charts else ""


# -- timelines ------------------------------------------------------------------------------------


def _timelines(traces: Sequence[_Trace], view: Span | None) -> dict[str, Any]:
    drawn = [(trace, trace.target) for trace in traces if trace.target is not None]
    examples = [
        [example for example in map(target.example, trace.findings) if example is not None] for trace, target in drawn
    ]
    made = pyramids([target.lanes for _, target in drawn], examples, BUDGET_BYTES)
    return {
        target.id: pyramid | {"view": _first_view(trace, target.lanes, view)}
        for (trace, target), pyramid in zip(drawn, made, strict=True)
    }


def _first_view(trace: _Trace, lanes: Lanes, asked: Span | None) -> Span:
    """What the timeline shows at first: the GPU's work, the host's beside it may reach far beyond."""
    if asked is not None:
        return asked
    windows = [section.device.window for section in trace.sections if section.device]
    if not windows:
        return Span(lanes.start_ns, lanes.end_ns)
    origin = lanes.origin_ns
    return Span(min(one.start_ns for one in windows) - origin, max(one.end_ns for one in windows) - origin)


def _timeline_assets(pattern: str) -> list[str]:
    """The dashboard's own files, without what ties them to Dash."""
    directory = files("overlapscope").joinpath("dashboard", "assets")
    first, _, last = pattern.partition("*")
    names = sorted(
        one.name
        for one in directory.iterdir()
        if one.name.startswith(first) and one.name.endswith(last) and one.name != "timeline_mount.js"
    )
    return [directory.joinpath(name).read_text(encoding="utf-8") for name in names]

"""The findings as HTML: what it costs, what was seen, what to change, and the code before and after."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from overlapscope.base.words import clean
from overlapscope.report import tables
from overlapscope.report.page import Page, section_of
from overlapscope.rules import RULES
from overlapscope.rules.finding import Finding
from overlapscope.rules.rule import Rule
from overlapscope.timeline import Lanes
from overlapscope.views.html.parts import paragraphs
from overlapscope.views.html.tiles import Span, around


@dataclass(frozen=True, slots=True)
class Target:
    """The timeline that findings lead to."""

    id: str
    lanes: Lanes

    def example(self, finding: Finding) -> Span | None:
        """A finding's example, relative to the lanes' origin."""
        if finding.example is None:
            return None
        origin = self.lanes.origin_ns
        return Span(finding.example.start_ns - origin, finding.example.end_ns - origin)


def findings(page: Page, found: Sequence[Finding], target: Target | None) -> Iterator[str]:
    """Each finding, costliest first, with a button that shows its example in the timeline."""
    if not found:
        where = tables.where_none_found(page.report.traces)
        yield f'<p class="muted">No rule found anything{where}.</p>'
    if note := tables.costs_note(found):
        yield f'<p class="muted">{escape(note)}</p>'
    several = len({(finding.source, finding.device) for finding in found}) > 1
    for finding in found:
        yield from _finding(page, finding, RULES.get(finding.rule), target, several)


def _finding(page: Page, finding: Finding, rule: Rule | None, target: Target | None, several: bool) -> Iterator[str]:
    section = section_of(page, finding)
    cost = tables.cost(section, finding)
    yield f'<article class="panel finding {escape(finding.severity)}"><header>'
    yield f"<h3>{escape(clean(finding.title, 400))}</h3>"
    badge = f'<span class="rule">{escape(finding.rule)}</span>'
    on = f'<span class="muted">on device {finding.device}</span>' if several else ""
    saves = f"<b>{escape(cost)}</b>" if cost else '<span class="muted">costs nothing</span>'
    yield f'<p class="facts">{badge}<span class="muted">{escape(finding.severity)}</span>{saves}{on}'
    example = target.example(finding) if target else None
    if target is not None and example is not None:
        shown = around(example, target.lanes)
        yield (
            f'<button type="button" class="show" data-timeline="{target.id}" data-view="{_joined(shown)}" '
            f'data-example="{_joined(example)}">Show in the timeline</button>'
        )
    yield "</p></header>"
    yield from map(paragraphs, tables.evidence(finding))
    yield from (f'<p class="where">At {escape(place)}</p>' for place in tables.places(finding))
    yield f'<div class="advice">{paragraphs(finding.advice)}</div>'
    if rule is not None:
        yield from _example(rule)
    yield "</article>"


def _example(rule: Rule) -> Iterator[str]:
    yield "<details><summary>Code before and after</summary>"
    yield f'<p class="muted">{escape(rule.meaning)}</p><div class="code">'
    for word, program in (("before", rule.wrong), ("after", rule.right)):
        yield f"<figure><figcaption>{word}</figcaption><pre><code>{escape(program.strip())}</code></pre></figure>"
    yield "</div></details>"


def _joined(span: Span) -> str:
    return f"{span.start_ns} {span.end_ns}"

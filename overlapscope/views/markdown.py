"""A report as GitHub markdown: the content of the terminal's, the same on every machine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from overlapscope.base.words import clean
from overlapscope.report import strip as strips
from overlapscope.report import tables
from overlapscope.report.host import host_tables
from overlapscope.report.page import Page, Section, section_of
from overlapscope.report.tables import Table
from overlapscope.report.verdict import judge
from overlapscope.rules.finding import Finding

STRIP_SLICES = 80
_SPECIAL = re.compile(r"([\\`*_\[\]<>|~&#!@$])")
# A link, a mention of a person or an issue; the number of a step is none.
_AUTOLINK = re.compile(
    r"(?<=[A-Za-z])(?=://)|(?<=www)(?=\.)|(?<=@)(?=\w)|(?<!ProfilerStep\\#)(?<!ProfilerStep#)(?<=#)(?=\d)",
    re.IGNORECASE,
)


def render(page: Page) -> str:
    """The report as one markdown document."""
    return "\n".join(_lines(page)).rstrip("\n") + "\n"


def escape(text: str) -> str:
    """Foreign text as markdown that shows it literally: no cell, link, mention or HTML of its own."""
    return unlinked(_SPECIAL.sub(r"\\\1", clean(text)))


def unlinked(escaped: str) -> str:
    """Text already escaped, for markdown or HTML, with a zero-width break in `http://`, `www.`, `@name` and `#1`.

    GitHub looks for those when the escapes are gone, so that a backslash keeps no one from being called.
    """
    return _AUTOLINK.sub("&#8203;", escaped)


def _lines(page: Page) -> Iterator[str]:
    yield "# overlapscope report"
    yield ""
    sections = list(page.sections())
    for note in page.report.notes:
        yield escape(note)
        yield ""
    if len(sections) > 1:
        yield from table_lines(tables.summary(page))
    for section in sections:
        yield from _section(section)
    yield from _findings(page)


def _section(section: Section) -> Iterator[str]:
    verdict = judge(section)
    yield f"## {escape(section.title)}"
    yield ""
    yield f"**{verdict.level.capitalize()}.** {escape(verdict.text)}"
    yield ""
    if verdict.plain:
        yield escape(verdict.plain)
        yield ""
    yield from _titled(tables.checks(section))
    if section.device is None or verdict.level == "unusable":
        for table in host_tables(section):
            yield from _titled(table)
        return
    for table in tables.device_tables(section, section.device):
        yield from _titled(table)
    if section.strip is not None:
        drawing = strips.draw(section.strip, section.unit)
        yield f"### {escape(drawing.title)}"
        yield ""
        yield "```text"
        yield from (line.rstrip() for line in drawing.plain())
        yield "```"
        yield ""


def _titled(table: Table) -> Iterator[str]:
    if table.rows:
        yield f"### {escape(table.title)}"
        yield ""
        yield from table_lines(table)


def table_lines(table: Table) -> Iterator[str]:
    """A table, with an empty line behind it."""
    yield f"| {' | '.join(escape(column.title) for column in table.columns)} |"
    yield f"| {' | '.join('---:' if column.number else '---' for column in table.columns)} |"
    for row in table.rows:
        yield f"| {' | '.join(escape(cell) for cell in row)} |"
    yield ""
    if table.note:
        yield escape(table.note)
        yield ""


def _findings(page: Page) -> Iterator[str]:
    findings = page.report.findings
    if not findings and not page.report.devices:
        return
    yield "## Findings"
    yield ""
    if not findings:
        yield f"None{tables.where_none_found(page.report.traces)}."
        yield ""
    if note := tables.costs_note(findings):
        yield note
        yield ""
    several = sum(1 for _ in page.sections()) > 1
    for number, finding in enumerate(findings, 1):
        yield from _finding(page, number, finding, several)


def _finding(page: Page, number: int, finding: Finding, several: bool) -> Iterator[str]:
    section = section_of(page, finding)
    yield f"### {number}. {escape(finding.rule)} ({finding.severity}): {escape(finding.title)}"
    yield ""
    cost = tables.cost(section, finding)
    if several and section:
        yield f"On {escape(section.title)}."
        yield ""
    if cost:
        yield f"**{escape(cost[0].upper() + cost[1:])}.**"
        yield ""
    for block in (*tables.evidence(finding), *(f"At {place}" for place in tables.places(finding)), finding.advice):
        # Two spaces at the end of a line keep its line break.
        yield "  \n".join(plain_start(escape(line)) for line in tables.prose(block))
        yield ""


def plain_start(line: str) -> str:
    """A line of prose that begins like a list item, a quotation or code must not become one."""
    return re.sub(r"^\s*([-+]|\d+(?=[.)]))", r"\\\1" if re.match(r"\s*[-+]", line) else r"\1&#8203;", line)

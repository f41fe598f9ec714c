"""A report of ranks as GitHub markdown: the answer first, what lies behind it folded away."""

from __future__ import annotations

from collections.abc import Iterator

from overlapscope.ranks.result import RanksReport
from overlapscope.views.markdown import escape, plain_start, table_lines
from overlapscope.views.old_tables import Table
from overlapscope.views.ranks import tables, words
from overlapscope.views.ranks.worst import looks

_OPEN = 2
"""Tables that are not folded away."""


def render(report: RanksReport) -> str:
    """The report as one markdown document."""
    return "\n".join(_lines(report)).rstrip("\n") + "\n"


def _lines(report: RanksReport) -> Iterator[str]:
    verdict = words.judge(report)
    yield "## overlapscope ranks"
    yield ""
    yield f"**{verdict.level.capitalize()}.** {escape(verdict.text)}"
    yield ""
    doubts = words.doubts(report)
    if doubts:
        yield "Mind this:"
        yield ""
        yield from (f"- {escape(doubt)}" for doubt in doubts)
        yield ""
    shown = tables.all_tables(report)
    for number, table in enumerate(shown):
        yield from _titled(table) if number < _OPEN else _folded(table)
    yield from _worst(report)
    if report.ranks:
        yield "**Clocks**"
        yield ""
        yield from (plain_start(escape(sentence)) for sentence in words.clocks(report))


def _titled(table: Table) -> Iterator[str]:
    yield f"**{escape(table.title)}**"
    yield ""
    yield from table_lines(table)


def _folded(table: Table) -> Iterator[str]:
    # Markdown inside of HTML needs the empty lines.
    yield f"<details><summary>{escape(table.title)}</summary>"
    yield ""
    yield from table_lines(table)
    yield "</details>"
    yield ""


def _worst(report: RanksReport) -> Iterator[str]:
    found = looks(report)
    if not found:
        return
    yield "**Ranks worth a look**"
    yield ""
    for look in found:
        yield f"- {escape(look.title)}"
        yield from (f"  - {plain_start(escape(line))}" for line in look.lines)
    yield ""

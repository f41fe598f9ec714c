"""The laboratory's report as GitHub markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from overlapscope.base.words import clean
from overlapscope.laboratory.comparison import Comparison
from overlapscope.views.laboratory.content import Chapter, Line, Overview, chapter, overview, strip_lines
from overlapscope.views.markdown import escape, table_lines


def render(comparisons: Sequence[Comparison]) -> str:
    """The report as one document."""
    lines = ["# Laboratory report", "", *_overview(overview(comparisons))]
    for comparison in comparisons:
        lines += _chapter(chapter(comparison))
    return "\n".join(lines).rstrip("\n") + "\n"


def _overview(shown: Overview) -> Iterator[str]:
    yield from _items(shown.machines)
    yield from table_lines(shown.claims)
    if shown.contradicted:
        yield from ("## What does not hold, or cannot be told", "")
        yield from _claims(shown.contradicted)
    if shown.troubles:
        yield from ("## Not run to the end", "")
        yield from _items(shown.troubles)


def _chapter(shown: Chapter) -> Iterator[str]:
    yield from (f"## {escape(shown.title)}", "")
    yield from (escape(" ".join(shown.facts)), "")
    for table in shown.tables:
        yield from (f"### {escape(table.title)}", "")
        yield from table_lines(table)
    if shown.verdicts:
        yield from ("### Verdicts", "")
        yield from (f"- **{escape(name)}** ({level}): {escape(text)}" for name, level, text in shown.verdicts)
        yield ""
    if shown.strips:
        yield from ("### Timelines", "")
        yield "```text"
        for name, strip in shown.strips:
            yield clean(f"{name}{f', {strip.label}' if strip.label else ''}", 120).replace("`", "'")
            yield from strip_lines(strip)
        yield from ("```", "")
    if shown.claims:
        yield from ("### Claims", "")
        yield from _claims(shown.claims)
    yield from _items(shown.notes)


def _claims(lines: Iterable[Line]) -> Iterator[str]:
    yield from (f"- **{line.standing}**: {escape(line.text)}" for line in lines)
    yield ""


def _items(texts: Sequence[str]) -> Iterator[str]:
    yield from (f"- {escape(text)}" for text in texts)
    if texts:
        yield ""

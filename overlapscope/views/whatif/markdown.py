"""A prediction as GitHub markdown: the answer first, what it rests on folded away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overlapscope.prediction.result import Change, WhatIf
from overlapscope.views.markdown import escape, plain_start, table_lines
from overlapscope.views.tables import Table, prose
from overlapscope.views.whatif import tables, words


def render(result: WhatIf, *, offered: Table | None = None) -> str:
    """The prediction as one document. `offered`: the interventions there are, for whoever asked for none."""
    return "\n".join(_lines(result, offered)).rstrip("\n") + "\n"


def _lines(result: WhatIf, offered: Table | None) -> Iterator[str]:
    yield "## overlapscope whatif"
    yield ""
    yield f"**{escape(words.headline(result).text)}**"
    yield ""
    yield escape(words.subject(result))
    yield ""
    if words.changes_anything(result):
        for table in tables.all_tables(result):
            yield from _titled(table)
    yield from _changes(result.interventions)
    replayed = [f"- {escape(sentence)}" for sentence in words.replay(result)]
    if not words.changes_anything(result):
        yield from (*replayed, "")
    else:
        for table in (tables.assumptions(result), tables.constants(result)):
            if table.rows:
                yield from _folded(table.title, table_lines(table))
        yield from _folded("How well the replay explains the recording", (*replayed, ""))
    if offered is not None:
        yield from _titled(offered)


def _titled(table: Table) -> Iterator[str]:
    yield f"**{escape(table.title)}**"
    yield ""
    yield from table_lines(table)


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    # Markdown inside of HTML needs the empty lines.
    yield f"<details><summary>{escape(title)}</summary>"
    yield ""
    yield from lines
    yield "</details>"
    yield ""


def _changes(changes: Iterable[Change]) -> Iterator[str]:
    for number, change in enumerate(changes, 1):
        yield f"### {number}. {escape(words.option(change))}: {escape(change.title)}"
        yield ""
        for block in (
            words.done(change),
            *(f"At {place}" for place in change.where),
            *([change.advice] if change.touched else []),
        ):
            # Two spaces at the end of a line keep its line break.
            yield "  \n".join(plain_start(escape(line)) for line in prose(block))
            yield ""

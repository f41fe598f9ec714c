"""A prediction as GitHub markdown: the answer first, what it rests on folded away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from overlapscope.prediction.result import Change, WhatIf
from overlapscope.views.markdown import escape, plain_start, table_lines
from overlapscope.views.old_tables import Table, prose
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
    for sentence in words.program(result):
        yield _with_code(sentence)
        yield ""
    for sentence in words.doubts(result):
        yield from (_with_code(sentence), "")
    if not result.replay.valid:
        yield from (f"- {_with_code(sentence)}" for sentence in words.refusal(result))
        return
    if words.changes_anything(result):
        for table in tables.all_tables(result):
            yield from _titled(table)
    yield from _changes(words.in_order(result))
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
        for block in (words.done(change), *(f"At {place}" for place in change.where)):
            yield from _block(map(escape, prose(block)))
        if change.touched:
            yield from _block(map(_with_code, prose(change.advice)))


def _block(lines: Iterable[str]) -> Iterator[str]:
    # Two spaces at the end of a line keep its line break.
    yield "  \n".join(map(plain_start, lines))
    yield ""


def _with_code(text: str) -> str:
    return "".join(f"`{part}`" if number % 2 else escape(part) for number, part in enumerate(text.split("`")))

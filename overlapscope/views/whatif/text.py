"""A prediction for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.base.words import clean
from overlapscope.prediction.result import Change, WhatIf
from overlapscope.views.old_tables import Table, prose
from overlapscope.views.terminal import fitted, lay_out, table_grid
from overlapscope.views.whatif import tables, words

_STYLES = {"good": "bold green", "poor": "bold red", "muted": "bold"}


def render(
    result: WhatIf, *, width: int, encoding: str = "utf-8", color: str | None = None, offered: Table | None = None
) -> str:
    """The prediction as lines of at most `width` columns; `encoding` and `color` as for `terminal.render`.

    `offered`: the interventions that there are, for whoever asked for none.
    """
    return lay_out(_parts(result, width, offered), width=width, encoding=encoding, color=color)


def _parts(result: WhatIf, width: int, offered: Table | None) -> Iterator[RenderableType]:
    answer = words.headline(result)
    yield Text(answer.text, style=_STYLES[answer.level])
    yield Text(words.subject(result), style="dim")
    yield from (Text(sentence, style="dim") for sentence in words.program(result))
    yield from (Text(sentence, style="yellow") for sentence in words.doubts(result))
    yield ""
    if not result.replay.valid:
        yield from (Text(sentence) for sentence in words.refusal(result))
        return
    if words.changes_anything(result):
        for table in tables.all_tables(result):
            yield from _titled(table, width)
    if result.interventions:
        yield Text("What is changed", style="bold")
        yield _changes(words.in_order(result))
        yield ""
    if words.changes_anything(result):
        for table in (tables.assumptions(result), tables.constants(result)):
            if table.rows:
                yield from _titled(table, width)
    yield Text("How well the replay explains the recording", style="bold")
    yield from (Text(sentence) for sentence in words.replay(result))
    if offered is not None:
        yield ""
        yield from _titled(offered, width)


def _titled(table: Table, width: int) -> Iterator[RenderableType]:
    yield Text(table.title, style="bold")
    yield table_grid(fitted(table, tables.DROPPABLE, width), width)
    yield ""


def _changes(changes: Iterable[Change]) -> RenderableType:
    numbered = Grid.grid(padding=(0, 1, 0, 0))
    for number, change in enumerate(changes, 1):
        lines = [Text.assemble((words.option(change), "bold"), f": {clean(change.title, 500)}")]
        lines += [Text(line) for line in prose(words.done(change))]
        lines += [Text(f"at {clean(place, 200)}", style="dim") for place in change.where]
        if change.touched:
            lines += [Text(line, style="cyan") for line in prose(change.advice)]
        numbered.add_row(f"{number}.", Group(*lines))
    return numbered

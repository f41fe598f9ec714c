"""A report of ranks for a terminal: a screenful or two, however many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.ranks.result import RanksReport
from overlapscope.views.ranks import tables, words
from overlapscope.views.ranks.worst import Look, looks
from overlapscope.views.terminal import fitted, lay_out, table_grid

_STYLES = {"good": "bold green", "fair": "bold yellow", "poor": "bold red", "unknown": "bold", "unusable": "bold"}
_TRUST = {"degraded": "yellow", "unusable": "red"}
_MOST_LOOKS = 4


def render(report: RanksReport, *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The report as lines of at most `width` columns; `encoding` and `color` as for `terminal.render`."""
    return lay_out(_parts(report, width), width=width, encoding=encoding, color=color)


def _parts(report: RanksReport, width: int) -> Iterator[RenderableType]:
    verdict = words.judge(report)
    yield Text(verdict.first, style=_STYLES[verdict.level])
    yield from (Text(sentence) for sentence in verdict.rest)
    yield ""
    doubts = words.doubts(report)
    if doubts:
        yield Text("Mind this", style="bold yellow")
        yield _list("!", doubts)
        yield ""
    for table in tables.all_tables(report, named=1):
        yield Text(table.title, style="bold")
        yield table_grid(fitted(table, tables.DROPPABLE, width), width, _TRUST)
        yield ""
    yield from _worst(looks(report, most=_MOST_LOOKS))
    if report.ranks:
        yield Text("Clocks", style="bold")
        yield from (Text(sentence, style="dim") for sentence in words.clocks(report))


def _worst(found: tuple[Look, ...]) -> Iterator[RenderableType]:
    if not found:
        return
    yield Text("Ranks worth a look", style="bold")
    for look in found:
        yield Text(look.title)
        yield from (Padding(Text(line, style="dim"), (0, 0, 0, 2)) for line in look.lines)
    yield ""


def _list(sign: str, sentences: tuple[str, ...]) -> RenderableType:
    listed = Grid.grid(padding=(0, 1, 0, 0))
    for sentence in sentences:
        listed.add_row(sign, Text(sentence))
    return listed

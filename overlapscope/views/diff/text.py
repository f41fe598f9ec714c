"""A diff for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.compare.difference import Diff
from overlapscope.views.diff import tables
from overlapscope.views.diff.words import NOISE, device_title, standing
from overlapscope.views.tables import Table
from overlapscope.views.terminal import GAP, lay_out, table_grid
from overlapscope.words import clean

_STYLES = {"good": "green", "poor": "red", "muted": ""}
_LEAST_NAME = 30
"""Columns that have names keep so many cells, as long as there is anything else to leave out."""


def render(diff: Diff, *, width: int, encoding: str = "utf-8", color: str | None = None, verbose: bool = False) -> str:
    """The diff as lines of at most `width` columns; `encoding` and `color` as for `terminal.render`."""
    return lay_out(_parts(diff, width, verbose), width=width, encoding=encoding, color=color)


def _parts(diff: Diff, width: int, verbose: bool) -> Iterator[RenderableType]:
    stands = standing(diff)
    yield Text(clean(diff.verdict), style=f"bold {_STYLES[stands.level]}".strip())
    yield ""
    yield _grid(tables.sides(diff), width)
    yield ""
    doubts = tables.doubts(diff)
    if doubts:
        yield Text("Compare with care", style="bold yellow")
        listed = Grid.grid(padding=(0, 1, 0, 0))
        for detail, holds in doubts:
            listed.add_row("!", Group(Text(detail), Text(holds, style="dim")))
        yield listed
        yield ""
    several = len(diff.devices) > 1
    if several:
        yield _grid(tables.summary(diff), width)
        yield ""
    for device in diff.devices:
        if several:
            yield Text(f"{device_title(diff, device)}: {clean(device.verdict)}", style="bold")
            yield ""
        for table in tables.of_device(device, verbose=verbose):
            yield _grid(table, width)
            yield ""


def _grid(table: Table, width: int) -> RenderableType:
    styles = {word: _STYLES[level] for word, level in tables.tones(table).items()} | {NOISE: "dim"}
    return table_grid(_fitted(table, width), width, styles)


def _fitted(table: Table, width: int) -> Table:
    """The table without what it can do without where there is not enough room."""
    for title in tables.DROPPABLE:
        if _least(table) <= width:
            break
        table = tables.without(table, title)
    return table


def _least(table: Table) -> int:
    """How wide it is with names as short as they may be."""
    widths = []
    for number, column in enumerate(table.columns):
        widest = max(len(line[number]) for line in ([one.title for one in table.columns], *table.rows))
        widths.append(min(widest, _LEAST_NAME) if column.flexible else widest)
    return sum(widths) + GAP * (len(widths) - 1)

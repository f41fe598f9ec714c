"""A report for a terminal: rich lays it out, colours it where there is colour, and cuts what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.base import output as streams
from overlapscope.base import words
from overlapscope.trace.model import Kind
from overlapscope.views.old_tables import Table, without

_LEVEL = {"good": "bold green", "fair": "bold yellow", "poor": "bold red", "unusable": "bold"}
_STATUS = {"ok": "green", "warn": "yellow", "fail": "red"}
_SEVERITY = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_KIND = {
    Kind.COMPUTE: "green",
    Kind.COMM: "magenta",
    Kind.H2D: "cyan",
    Kind.D2H: "yellow",
    Kind.OTHER: "blue",
}
_FALLBACK = str.maketrans({"…": "~", "─": "-", "·": ".", "→": ">"})
GAP = 2
"""Columns between the columns of a table."""
LEAST = 8
"""A flexible column is not cut below this width."""
LEAST_NAME = 30
"""Flexible columns keep so many cells, as long as there is anything else to leave out."""
BESIDE = 78
"""From this width on, two short tables stand side by side."""


def lay_out(parts: Iterable[RenderableType], *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """Anything of rich's as text; see `render`."""
    console = Console(
        file=StringIO(),
        width=width,
        force_terminal=color is not None,
        color_system=color,  # type: ignore[arg-type]
        no_color=None if color else True,
        markup=False,
        highlight=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    with console.capture() as captured:
        for part in parts:
            console.print(part)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())
    if _unicode(encoding):
        return text
    return text.translate(_FALLBACK).encode(encoding, "replace").decode(encoding)


def describe(stream: TextIO | None) -> tuple[int, str | None, str]:
    """Width, colour system and encoding of a stream, as rich finds them (NO_COLOR, FORCE_COLOR, COLUMNS)."""
    console = Console(file=stream, _environ=streams.environment())
    color = console.color_system if console.is_terminal and not console.no_color else None
    return streams.bounded(console.width), color, getattr(stream, "encoding", None) or "utf-8"


def _unicode(encoding: str) -> bool:
    """Whether an encoding has the characters that are drawn with."""
    try:
        "░▒▓█▁▂▃▄▅▆▇─·…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def table_grid(table: Table, width: int, styles: dict[str, str] | None = None) -> RenderableType:
    """A table, cut to the width; cells found in `styles` get theirs."""
    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    widths = _widths(table, width)
    for column, limit in zip(table.columns, widths, strict=True):
        grid.add_column(
            Text(words.shorten(column.title, limit)),
            justify="right" if column.number else "left",
            width=limit,
            overflow="fold",
        )
    for number, row in enumerate(table.rows, 1):
        cells = [
            cell if column.prose else words.shorten(cell, limit)
            for cell, column, limit in zip(row, table.columns, widths, strict=True)
        ]
        style = "bold" if table.total and number == len(table.rows) else ""
        grid.add_row(*(Text(cell, style=(styles or {}).get(cell, "")) for cell in cells), style=style)
    return Group(grid, Text(table.note, style="dim")) if table.note else grid


def fitted(table: Table, droppable: Sequence[str], width: int) -> Table:
    """The table without what it can do without, in the order given, where there is not enough room."""
    for title in droppable:
        if _least(table) <= width:
            break
        table = without(table, title)
    return table


def _least(table: Table) -> int:
    """How wide it is with names as short as they may be."""
    widths = []
    for number, column in enumerate(table.columns):
        widest = max(len(line[number]) for line in ([one.title for one in table.columns], *table.rows))
        widths.append(min(widest, LEAST_NAME) if column.flexible else widest)
    return sum(widths) + GAP * (len(widths) - 1)


def _widths(table: Table, width: int) -> list[int]:
    """Columns as wide as their cells; where that is too much, flexible ones give way, the widest first."""
    lines = [[column.title for column in table.columns], *table.rows]
    widths = [max(cell_len(line[number]) for line in lines) for number in range(len(table.columns))]
    flexible = [number for number, column in enumerate(table.columns) if column.flexible]
    while sum(widths) + GAP * (len(widths) - 1) > width:
        widest = max(flexible, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= LEAST:
            break
        widths[widest] -= 1
    return widths

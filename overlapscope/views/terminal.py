"""A report for a terminal: rich lays it out, colours it where there is colour, and cuts what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from io import StringIO
from typing import TextIO

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.analysis.strip import Strip
from overlapscope.base import output as streams
from overlapscope.base import words
from overlapscope.base.words import clean
from overlapscope.report import strip as strips
from overlapscope.report import tables
from overlapscope.report.host import host_tables
from overlapscope.report.page import Page, Section, section_of
from overlapscope.report.tables import Table
from overlapscope.report.verdict import judge
from overlapscope.trace.model import Kind

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


def render(page: Page, *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The report as lines of at most `width` columns.

    `color` is a colour system of rich ("standard", "256", "truecolor"); without one there is no control code.
    Characters that `encoding` lacks are replaced.
    """
    glyphs = strips.UNICODE if _unicode(encoding) else strips.ASCII
    return lay_out(_parts(page, width, glyphs), width=width, encoding=encoding, color=color)


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


def _parts(page: Page, width: int, glyphs: strips.Glyphs) -> Iterator[RenderableType]:
    sections = list(page.sections())
    if page.report.notes:
        yield from (Text(clean(note), style="bold yellow") for note in page.report.notes)
        yield ""
    if len(sections) > 1:
        yield table_grid(tables.summary(page), width)
        yield ""
    for section in sections:
        verdict = judge(section)
        yield Text(verdict.text, style=_LEVEL[verdict.level])
        if verdict.plain:
            yield Text(verdict.plain)
        yield ""
        trust = tables.checks(section)
        if trust.rows:
            yield table_grid(trust, width, _STATUS)
            yield ""
        if section.device is None or verdict.level == "unusable":
            for table in host_tables(section):
                yield table_grid(table, width)
                yield ""
            continue
        for block in _blocks(tables.device_tables(section, section.device), width):
            yield block
            yield ""
        if section.strip is not None:
            yield from _strip(section, section.strip, glyphs)
            yield ""
    yield from _findings(page)


def _blocks(shown: Iterable[Table], width: int) -> Iterator[RenderableType]:
    """The tables, with the pairs that belong together side by side."""
    pending = list(shown)
    partners = {"Where the time goes": "Overlap", "Exposed copy by cause": "Idle by cause"}
    while pending:
        table = pending.pop(0)
        if width >= BESIDE and pending and partners.get(table.title) == pending[0].title:
            pair = Grid.grid(padding=(0, 4, 0, 0))
            pair.add_row(table_grid(table, width), table_grid(pending.pop(0), width))
            yield pair
        else:
            yield table_grid(table, width)


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
        table = tables.without(table, title)
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


def _strip(section: Section, measured: Strip, glyphs: strips.Glyphs) -> Iterator[RenderableType]:
    drawing = strips.draw(measured, section.unit, glyphs)
    yield Text(drawing.title, style="bold")
    for line in drawing.lanes:
        text = Text(f"{line.label:<{strips.LABEL_WIDTH}}", no_wrap=True)
        for character, kind in zip(line.text, line.kinds, strict=True):
            text.append(character, style="dim" if kind is None else _KIND[kind])
        yield text
    for line, style in zip(drawing.totals, ("red", "dim"), strict=True):
        yield Text.assemble(f"{line.label:<{strips.LABEL_WIDTH}}", (line.text, style), no_wrap=True)
    yield Text(drawing.scale, style="dim", no_wrap=True)
    yield Padding(Text(drawing.legend, style="dim"), (0, 0, 0, strips.LABEL_WIDTH))


def _findings(page: Page) -> Iterator[RenderableType]:
    findings = page.report.findings
    if not findings:
        if page.report.devices:
            yield Text(f"No findings{tables.where_none_found(page.report.traces)}.", style="bold")
        return
    yield Text("Findings, costliest first", style="bold")
    if note := tables.costs_note(findings):
        yield Text(note, style="dim")
    several = sum(1 for _ in page.sections()) > 1
    for number, finding in enumerate(findings, 1):
        section = section_of(page, finding)
        head = Text.assemble(
            (finding.severity, _SEVERITY[finding.severity]),
            f" {clean(finding.rule)}: ",
            (clean(finding.title, 500), "bold"),
        )
        cost = tables.cost(section, finding)
        lines = [head]
        lines += [Text(section.title, style="dim")] if several and section else []
        lines += [Text(clean(cost), style="bold")] if cost else []
        lines += [Text(line) for block in tables.evidence(finding) for line in tables.prose(block)]
        lines += [Text(f"at {line}", style="dim") for line in tables.places(finding)]
        lines += [Text(line, style="cyan") for line in tables.prose(finding.advice)]
        numbered = Grid.grid(padding=(0, 1, 0, 0))
        numbered.add_row(Text(f"{number:>2}."), Group(*lines))
        yield numbered

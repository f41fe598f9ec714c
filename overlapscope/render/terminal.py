"""Documents for a terminal: rich lays them out, adds color if the terminal has it, and shortens what doesn't fit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import singledispatch
from io import StringIO
from typing import TextIO

from msgspec import Struct
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text as RichText

from overlapscope.base import output, words
from overlapscope.documents import model
from overlapscope.documents.model import Block, Document, Words, pieces
from overlapscope.documents.table import Table, Tone
from overlapscope.trace.model import Kind

FILE_WIDTH = 100
"""Width of a text file, in characters."""
_TONES: dict[Tone, str] = {
    "": "",
    "good": "green",
    "fair": "yellow",
    "poor": "red",
    "muted": "dim",
    "accent": "cyan",
}
_BADGES = {"good": "bold green", "fair": "bold yellow", "poor": "bold red"}
_SEVERITY = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_KIND = {
    Kind.COMPUTE: "green",
    Kind.COMM: "magenta",
    Kind.H2D: "cyan",
    Kind.D2H: "yellow",
    Kind.OTHER: "blue",
    Kind.P2P: "red",
}
_COMMAND = re.compile(r"^(\s*)(::|##)", re.MULTILINE)
"""Begin of a line that GitHub Actions or Azure Pipelines takes for a command, although a name stands there."""
_FALLBACK = str.maketrans({"…": "~", "─": "-", "·": ".", "→": ">"})
_COLUMN_GAP = 2
"""Characters between the columns of a table."""
_MIN_FLEXIBLE_WIDTH = 8
"""Minimum width of a flexible column."""
_MIN_NAME_WIDTH = 30
"""Width that flexible columns keep as long as another column can be left out."""
_MIN_WIDTH_FOR_TWO_TABLES = 78
"""Minimum width for two short tables side by side."""
_MAX_COLUMNS_OF_SHORT_TABLE = 3
"""Maximum number of columns of a short table."""


def render(document: Document, *, width: int = FILE_WIDTH, encoding: str = "utf-8", color: str | None = None) -> str:
    """Return the document as lines of at most `width` characters, except those of code.

    `color` is a color system of rich ("standard", "256", "truecolor"); without one, the text has no control codes.
    Characters that `encoding` lacks are replaced.
    """
    screen = _Screen(width, model.UNICODE if _unicode(encoding) else model.ASCII)
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
        for part in _drawn(document.blocks, screen):
            console.print(part, crop=False)
    text = "".join(f"{line.rstrip()}\n" for line in captured.get().rstrip().splitlines())
    text = _COMMAND.sub(r"\1\\\2", text)
    if _unicode(encoding):
        return text
    return text.translate(_FALLBACK).encode(encoding, "replace").decode(encoding)


def to_stream(document: Document, stream: TextIO | None) -> bytes:
    """Return the document's bytes for a stream, in its width, colors and encoding.

    Rich finds these (NO_COLOR, FORCE_COLOR, COLUMNS). None stands for a file.
    """
    if stream is None:
        return render(document).encode("utf-8", "replace")
    width, color, encoding = _describe(stream)
    return render(document, width=width, encoding=encoding, color=color).encode(encoding, "replace")


def width_of(stream: TextIO | None) -> int:
    """Return the width of text for a stream; None stands for a file."""
    return FILE_WIDTH if stream is None else _describe(stream)[0]


def _describe(stream: TextIO) -> tuple[int, str | None, str]:
    """Return width, color system and encoding of a stream."""
    console = Console(file=stream, _environ=output.environment())
    color = console.color_system if console.is_terminal and not console.no_color else None
    return output.bounded_width(console.width), color, getattr(stream, "encoding", None) or "utf-8"


def _unicode(encoding: str) -> bool:
    """Return whether an encoding has the characters of drawings."""
    try:
        "░▒▓█▁▂▃▄▅▆▇─·…".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


# -- Tables ----------------------------------------------------------------------------------------


def table_grid(table: Table, width: int) -> RenderableType:
    """Return a table that fits the width: expendable columns are left out first, then cells are shortened."""
    table = table.read()
    while _least(table) > width and (narrower := table.without_spare()) is not None:
        table = narrower
    widths = _widths(table, width)
    grid = Grid(box=None, padding=(0, _COLUMN_GAP, 0, 0), pad_edge=False, header_style="dim")
    for column, limit in zip(table.columns, widths, strict=True):
        grid.add_column(
            RichText(words.shorten(column.title, limit)),
            justify="right" if column.number else "left",
            width=limit,
            overflow="fold",
        )
    for number, row in enumerate(table.rows, 1):
        cells = [
            RichText(cell.text if column.prose else words.shorten(cell.text, limit), style=_TONES[cell.tone])
            for cell, column, limit in zip(row.cells, table.columns, widths, strict=True)
        ]
        grid.add_row(*cells, style="bold" if table.total and number == len(table.rows) else "")
    titled = [] if not table.title or (table.columns and table.columns[0].heads) else [RichText(table.title, "bold")]
    return Group(*titled, grid, *([RichText(table.note, style="dim")] if table.note else []))


def _lines(table: Table) -> list[list[str]]:
    return [[column.title for column in table.columns], *table.texts()]


def _least(table: Table) -> int:
    """Return the width of a table with names as short as allowed."""
    lines, widths = _lines(table), []
    for number, column in enumerate(table.columns):
        widest = max(len(line[number]) for line in lines)
        widths.append(min(widest, _MIN_NAME_WIDTH) if column.flexible else widest)
    return sum(widths) + _COLUMN_GAP * (len(widths) - 1)


def _widths(table: Table, width: int) -> list[int]:
    """Return the widths of columns. If their cells don't fit, flexible columns shrink, the widest first."""
    lines = _lines(table)
    widths = [max(cell_len(line[number]) for line in lines) for number in range(len(table.columns))]
    flexible = [number for number, column in enumerate(table.columns) if column.flexible]
    while sum(widths) + _COLUMN_GAP * (len(widths) - 1) > width:
        widest = max(flexible, key=lambda number: widths[number], default=None)
        if widest is None or widths[widest] <= _MIN_FLEXIBLE_WIDTH:
            break
        widths[widest] -= 1
    return widths


# -- Blocks ----------------------------------------------------------------------------------------


class _Screen(Struct, frozen=True):
    """What blocks are drawn for."""

    width: int
    glyphs: model.Glyphs


def _drawn(blocks: Iterable[Block], screen: _Screen) -> Iterator[RenderableType]:
    """Yield each block that a terminal can show, with an empty line where a new subject begins."""
    previous: Block | None = None
    for block in _flat(blocks):
        if previous is not None and _apart(previous, block):
            yield ""
        previous = block
        yield from _draw(block, screen)


def _flat(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield the blocks of sections, since a terminal has no boxes, without those that only HTML can show."""
    for block in blocks:
        if isinstance(block, model.Section):
            if block.kind == "columns" and all(
                isinstance(part, Table) and len(part.read().columns) <= _MAX_COLUMNS_OF_SHORT_TABLE
                for part in block.blocks
            ):
                yield block
                continue
            if block.title and block.kind != "article" and not _named(block.blocks):
                yield model.Heading(block.title, 3, tone=block.tone)
            yield from _flat(block.blocks)
        elif isinstance(block, model.Heading):
            if block.level > 1:
                yield block
        elif not isinstance(block, model.Links | model.Chart | model.Bar | model.TimelineBlock):
            yield block


def _named(blocks: Sequence[Block]) -> bool:
    """Return whether a table's own title names the blocks."""
    return len(blocks) == 1 and isinstance(blocks[0], Table) and any(column.heads for column in blocks[0].columns)


def _apart(previous: Block, block: Block) -> bool:
    """Return whether an empty line separates two blocks."""
    if isinstance(previous, model.Heading):
        return False
    if isinstance(block, model.FindingBlock):
        return not isinstance(previous, model.Text | model.FindingBlock)
    return not (isinstance(previous, model.Text) and isinstance(block, model.Text))


@singledispatch
def _draw(block: Block, screen: _Screen) -> Iterator[RenderableType]:
    raise TypeError(type(block).__name__)


@_draw.register
def _(block: model.Heading, screen: _Screen) -> Iterator[RenderableType]:
    yield RichText(block.text, style=f"bold {_TONES[block.tone]}".strip())


@_draw.register
def _(block: model.Text, screen: _Screen) -> Iterator[RenderableType]:
    style = f"{'bold ' if block.strong or block.badge else ''}{_TONES[block.tone]}"
    if block.badge and not block.tone:
        style = _BADGES.get(block.badge, "bold")
    yield _text(block.words, style.strip())


@_draw.register
def _(block: model.Items, screen: _Screen) -> Iterator[RenderableType]:
    grid = Grid.grid(padding=(0, 1, 0, 0))
    for item in block.items:
        grid.add_row(block.sign, _text(item, _TONES[block.tone]))
    yield grid


@_draw.register
def _(block: model.Code, screen: _Screen) -> Iterator[RenderableType]:
    if block.title:
        yield RichText(block.title, style="bold")
    # Code that is broken into further lines can't be copied.
    yield Group(*(RichText(f"    {line}", no_wrap=True, overflow="ignore") for line in block.text.split("\n")))


@_draw.register
def _(block: Table, screen: _Screen) -> Iterator[RenderableType]:
    yield table_grid(block, screen.width)


@_draw.register
def _(block: model.Section, screen: _Screen) -> Iterator[RenderableType]:
    tables = [part for part in block.blocks if isinstance(part, Table)]
    # Two side by side if there is room.
    beside = 2 if screen.width >= _MIN_WIDTH_FOR_TWO_TABLES else 1
    for first in range(0, len(tables), beside):
        if first:
            yield ""
        pair = Grid.grid(padding=(0, 4, 0, 0))
        pair.add_row(*(table_grid(table, screen.width) for table in tables[first : first + beside]))
        yield pair


@_draw.register
def _(block: model.StripBlock, screen: _Screen) -> Iterator[RenderableType]:
    drawn = block.draw(screen.glyphs)
    yield RichText(drawn.title, style="bold")
    for line in drawn.lanes:
        text = RichText(f"{line.label:<{model.LABEL_WIDTH}}", no_wrap=True)
        for character, kind in zip(line.text, line.kinds, strict=True):
            text.append(character, style="dim" if kind is None else _KIND[kind])
        yield text
    for line, style in zip(drawn.totals, ("red", "dim"), strict=False):
        yield RichText.assemble(f"{line.label:<{model.LABEL_WIDTH}}", (line.text, style), no_wrap=True)
    yield RichText(drawn.scale, style="dim", no_wrap=True)
    if drawn.legend:
        yield Padding(RichText(drawn.legend, style="dim"), (0, 0, 0, model.LABEL_WIDTH))


@_draw.register
def _(block: model.FindingBlock, screen: _Screen) -> Iterator[RenderableType]:
    saves = f": {block.cost}" if block.cost else ""
    lines = [
        RichText.assemble((block.severity, _SEVERITY[block.severity]), (f" {block.rule}{saves}", "bold")),
        *([RichText(block.where, style="dim")] if block.where else []),
        RichText(block.title),
        *(RichText(part) for part in block.evidence),
        *([RichText(f"at {block.place}", style="dim")] if block.place else []),
        *([RichText(block.advice, style="cyan")] if block.advice else []),
        *([RichText(block.proof, style="dim")] if block.proof else []),
    ]
    numbered = Grid.grid(padding=(0, 1, 0, 0))
    numbered.add_column()
    # A command with a long path stays whole.
    numbered.add_column(overflow="fold")
    numbered.add_row(RichText(f"{block.number:>2}." if block.number else "- "), Group(*lines))
    yield numbered


def _text(sentence: Words, style: str = "") -> RichText:
    text = RichText(style=style)
    for piece in pieces(sentence):
        tone = f"{'bold ' if piece.strong else ''}{_TONES[piece.tone]}".strip()
        text.append(f"`{piece.text}`" if piece.code else piece.text, style=tone)
    return text

"""A diff for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.base.words import clean
from overlapscope.compare.difference import Diff
from overlapscope.views.diff import tables
from overlapscope.views.diff.words import NOISE, device_title, standing
from overlapscope.views.old_tables import Table
from overlapscope.views.terminal import fitted, lay_out, table_grid

_STYLES = {"good": "green", "poor": "red", "muted": ""}


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
    return table_grid(fitted(table, tables.DROPPABLE, width), width, styles)

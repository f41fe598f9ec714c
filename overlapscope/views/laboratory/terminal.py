"""The laboratory's report for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from overlapscope.base.words import clean, plural
from overlapscope.laboratory.comparison import Comparison
from overlapscope.views.laboratory.content import Chapter, Line, Overview, chapter, overview
from overlapscope.views.laboratory.tables import sentence
from overlapscope.views.old_tables import Column, Table, text
from overlapscope.views.terminal import lay_out, table_grid

if TYPE_CHECKING:
    from overlapscope.laboratory.experiment import Experiment

_LEVEL = {"good": "bold green", "fair": "bold yellow", "poor": "bold red", "unusable": "bold"}
_STANDING = {"holds": "green", "does not hold": "bold red", "unknown": "yellow"}


def render(comparisons: Sequence[Comparison], *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """The report as lines of at most `width` columns."""
    return lay_out(_parts(comparisons, width), width=width, encoding=encoding, color=color)


def listing(experiments: Iterable[Experiment], *, width: int, encoding: str = "utf-8", color: str | None = None) -> str:
    """Which experiments there are."""
    rows = tuple((clean(one.name, 40), str(one.gpus), clean(_said_of(one), 2000)) for one in experiments)
    columns = (text("experiment"), Column("GPUs"), Column("what it shows", number=False, flexible=True, prose=True))
    return lay_out([table_grid(Table("", columns, rows), width)], width=width, encoding=encoding, color=color)


def _said_of(experiment: Experiment) -> str:
    names = ", ".join(variant.name for variant in experiment.variants)
    return f"{sentence(experiment.shows)} Variants: {names}."


def _parts(comparisons: Sequence[Comparison], width: int) -> Iterator[RenderableType]:
    yield from _overview(overview(comparisons), width)
    for comparison in comparisons:
        yield from _chapter(chapter(comparison), width)


def _overview(shown: Overview, width: int) -> Iterator[RenderableType]:
    yield from (Text(machine) for machine in shown.machines)
    yield ""
    yield table_grid(shown.claims, width)
    yield ""
    if shown.contradicted:
        yield Text("What does not hold, or cannot be told", style="bold")
        yield from _lines(shown.contradicted)
        yield ""
    if shown.troubles:
        yield Text("Not run to the end", style="bold")
        yield from (_hanging(Text(trouble)) for trouble in shown.troubles)
        yield ""


def _chapter(shown: Chapter, width: int) -> Iterator[RenderableType]:
    yield Text(shown.title, style="bold")
    yield from (Text(fact) for fact in shown.facts)
    yield ""
    for table in shown.tables:
        yield Text(table.title, style="dim")
        yield table_grid(table, width)
        yield ""
    for name, level, sentences in shown.verdicts:
        yield _hanging(Text.assemble((name, _LEVEL[level]), f" ({level}): {sentences}"))
    if shown.verdicts:
        yield ""
    counted = sum(line.expected for line in shown.claims)
    lines = [line for line in shown.claims if not line.expected]
    if counted:
        lines.append(
            Line("holds", f"{plural(counted, 'claim')} on what the analysis must find; a written report lists them.")
        )
    yield from _lines(lines)
    yield from (_hanging(Text(note, style="dim")) for note in shown.notes)
    if shown.claims or shown.notes:
        yield ""


def _lines(lines: Iterable[Line]) -> Iterator[RenderableType]:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    for line in lines:
        grid.add_row(Text(line.standing, style=_STANDING[line.standing], no_wrap=True), Text(line.text))
    yield grid


def _hanging(line: Text) -> RenderableType:
    return Padding(line, (0, 0, 0, 2))

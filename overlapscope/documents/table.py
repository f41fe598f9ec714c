"""The one table: columns with ids; cells with the text to show and the value to sort and export by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")

Tone = Literal["", "good", "fair", "poor", "muted", "accent"]
"""What a colour says; a word beside it always says the same. The palette has a colour of each name."""


class Column(Struct, frozen=True):
    """A column's title and how it is set."""

    title: str
    number: bool = True
    flexible: bool = False
    """Free text that gives way where there is not enough room."""
    prose: bool = False
    """Sentences, which are wrapped; any other text is cut in its middle."""
    id: str = ""
    """By which code finds it; its title is for people."""
    spare: int = 0
    """Where there is not enough room, columns with a number are left out: the lowest first, of equal ones the first."""
    heads: bool = False
    """It names what the table is, so that a terminal needs no title above it."""
    extra: bool = False
    """Shown only in a table that can be sorted."""
    long: str = ""
    """Its title in a table that can be sorted, if that differs."""
    width: int | None = None
    """CSS pixels in a table that can be sorted."""


class Cell(Struct, frozen=True):
    """What stands in one place of a table."""

    text: str
    value: float | int | str | None = None
    """What it is sorted and exported by; None where that is the text."""
    tone: Tone = ""


class Row(Struct, frozen=True):
    """A row's cells, as many as there are columns."""

    cells: tuple[Cell, ...]
    place: tuple[int, int] | None = None
    """Where in the trace's timeline it is: start and end in ns."""


class Table(Struct, frozen=True):
    """Rows of cells."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    note: str = ""
    total: bool = False
    """The last row is what the others add up to."""
    id: str = ""
    few: int | None = None
    """So many rows are the answer, the others a detail; None: all are."""

    def texts(self) -> list[list[str]]:
        """The rows as text."""
        return [[cell.text for cell in row.cells] for row in self.rows]

    def read(self) -> Table:
        """Return the table as it is read, without the columns that only sorting needs."""
        if not any(column.extra for column in self.columns):
            return self
        return self._with([number for number, column in enumerate(self.columns) if not column.extra])

    def without(self, ids: Collection[str]) -> Table:
        """The table without the columns of those ids."""
        kept = [number for number, column in enumerate(self.columns) if column.id not in ids or not column.id]
        return self._with(kept)

    def without_spare(self) -> Table | None:
        """The table without the first column that can be left out; None where there is none."""
        spare = [(column.spare, number) for number, column in enumerate(self.columns) if column.spare]
        if not spare:
            return None
        _, first = min(spare)
        return self._with([number for number in range(len(self.columns)) if number != first])

    def _with(self, kept: Sequence[int]) -> Table:
        rows = tuple(replace(row, cells=tuple(row.cells[number] for number in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows)


def words(title: str, *, flexible: bool = False, heads: bool = False, id: str = "") -> Column:
    """A column of words."""
    return Column(title, number=False, flexible=flexible, heads=heads, id=id)


def prose(title: str, *, spare: int = 0) -> Column:
    """A column of sentences, which may take several lines."""
    return Column(title, number=False, flexible=True, prose=True, spare=spare)


def rows(lines: Iterable[Iterable[str | Cell]]) -> tuple[Row, ...]:
    """Rows of plain text, or of cells where there is more to say than that."""
    return tuple(Row(tuple(Cell(part) if isinstance(part, str) else part for part in line)) for line in lines)


def table_of(
    items: Iterable[T],
    *columns: tuple[Column, Callable[[T], Cell]] | None,
    title: str = "",
    place: Callable[[T], tuple[int, int] | None] = lambda item: None,
) -> Table:
    """A row for each item: what each column says of it, and where it is in the timeline. None is no column."""
    shown = [column for column in columns if column is not None]
    lines = tuple(Row(tuple(cell(item) for _, cell in shown), place(item)) for item in items)
    return Table(title, tuple(column for column, _ in shown), lines)

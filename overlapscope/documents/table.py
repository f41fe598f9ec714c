"""Tables: columns have ids; cells have a text to show, and a value to sort and export by."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal, TypeVar

from msgspec import Struct
from msgspec.structs import replace

T = TypeVar("T")

Tone = Literal["", "good", "fair", "poor", "muted", "accent"]
"""Meaning of a color, which also is its name in the palette. A word beside it always says the same."""


class Column(Struct, frozen=True):
    """A column's title and layout."""

    title: str
    number: bool = True
    flexible: bool = False
    """Text that is shortened if there is not enough room."""
    prose: bool = False
    """Sentences, which are wrapped; other text is cut in its middle."""
    id: str = ""
    """Name for code; the title is for people."""
    spare: int = 0
    """If there is not enough room, the columns with the lowest number are left out first. 0 keeps a column."""
    heads: bool = False
    """True if the column's title names the table, so that a terminal needs no title above it."""
    extra: bool = False
    """True if it shows only in a table that can be sorted, which has more room."""
    long: str = ""
    """Title in a table that can be sorted, if different."""
    width: int | None = None
    """Width in a table that can be sorted, in CSS pixels."""


class Cell(Struct, frozen=True):
    """A field of a table."""

    text: str
    value: float | int | str | None = None
    """Value to sort and export by; None if that is the text."""
    tone: Tone = ""
    color: str = ""
    """Name in the palette of a mark before the text, on a page that can show it."""


class Row(Struct, frozen=True):
    """Cells of a row, one for each column."""

    cells: tuple[Cell, ...]
    place: tuple[int, int] | None = None
    """Start and end in the trace's timeline, in nanoseconds."""


class Table(Struct, frozen=True):
    """Rows of cells."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...] = ()
    note: str = ""
    total: bool = False
    """True if the last row is the sum of the others."""
    id: str = ""
    few: int | None = None
    """Number of rows that belong to the answer, the rest being details; None if all do."""

    def texts(self) -> list[list[str]]:
        """Return the texts of the rows."""
        return [[cell.text for cell in row.cells] for row in self.rows]

    def read(self) -> Table:
        """Return the table without the columns that only a sortable table shows."""
        if not any(column.extra for column in self.columns):
            return self
        return self._with([number for number, column in enumerate(self.columns) if not column.extra])

    def without(self, ids: Collection[str]) -> Table:
        """Return the table without the columns with those ids."""
        kept = [number for number, column in enumerate(self.columns) if column.id not in ids or not column.id]
        return self._with(kept)

    def without_spare(self) -> Table | None:
        """Return the table without its most expendable column; None if none can be left out."""
        spare = [(column.spare, number) for number, column in enumerate(self.columns) if column.spare]
        if not spare:
            return None
        _, first = min(spare)
        return self._with([number for number in range(len(self.columns)) if number != first])

    def _with(self, kept: Sequence[int]) -> Table:
        rows = tuple(replace(row, cells=tuple(row.cells[number] for number in kept)) for row in self.rows)
        return replace(self, columns=tuple(self.columns[number] for number in kept), rows=rows)


def words(title: str, *, flexible: bool = False, heads: bool = False, id: str = "") -> Column:
    """Return a column of words."""
    return Column(title, number=False, flexible=flexible, heads=heads, id=id)


def prose(title: str, *, spare: int = 0) -> Column:
    """Return a column of sentences, which may take several lines."""
    return Column(title, number=False, flexible=True, prose=True, spare=spare)


def rows(lines: Iterable[Iterable[str | Cell]]) -> tuple[Row, ...]:
    """Return rows of plain text, or of cells where a value or tone is needed."""
    return tuple(Row(_cells(line)) for line in lines)


def _cells(line: Iterable[str | Cell]) -> tuple[Cell, ...]:
    return tuple(Cell(part) if isinstance(part, str) else part for part in line)


def table_of(
    items: Iterable[T],
    *columns: tuple[Column, Callable[[T], str | Cell]] | None,
    title: str = "",
    place: Callable[[T], tuple[int, int] | None] = lambda item: None,
    note: str = "",
    id: str = "",
) -> Table:
    """Return a table with a row for each item. Columns that are None are left out."""
    shown = [column for column in columns if column is not None]
    lines = tuple(Row(_cells(cell(item) for _, cell in shown), place(item)) for item in items)
    return Table(title, tuple(column for column, _ in shown), lines, note, id=id)

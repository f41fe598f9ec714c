"""The tables of views that are no documents yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from overlapscope.base.words import clean
from overlapscope.documents import table as tables
from overlapscope.documents.table import Tone

FEW = 5
NAME_LIMIT = 200


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title and how it is set."""

    title: str
    number: bool = True
    flexible: bool = False
    prose: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    total: bool = False


def text(title: str, *, flexible: bool = False) -> Column:
    """A column of words."""
    return Column(title, number=False, flexible=flexible)


def without(table: Table, title: str) -> Table:
    """The table without the column of that title, where it has one."""
    left = [number for number, column in enumerate(table.columns) if column.title != title]
    columns = tuple(table.columns[number] for number in left)
    return replace(table, columns=columns, rows=tuple(tuple(row[number] for number in left) for row in table.rows))


def prose(text: str) -> list[str]:
    """The lines of a text, each made harmless; its line breaks are its own."""
    return [clean(line, 2000) for line in text.split("\n")]


def as_table(table: Table, tones: Mapping[str, Tone]) -> tables.Table:
    """The same as one of documents; cells found in `tones` have that tone."""
    columns = tuple(tables.Column(one.title, one.number, one.flexible, one.prose) for one in table.columns)
    lines = ([tables.Cell(text, tone=tones.get(text, "")) for text in row] for row in table.rows)
    return tables.Table(table.title, columns, tables.rows(lines), table.note, table.total)

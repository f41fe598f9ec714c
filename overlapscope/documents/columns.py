"""Columns of tables with a row per item: each has a function that makes an item's cell, with the value to sort by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from overlapscope.base.words import NOTHING, Unit, bandwidth, bare_percent, clean, each, size
from overlapscope.documents.table import Cell, Column, Tone

NAME_LIMIT = 200

T = TypeVar("T")
ColumnOf = tuple[Column, Callable[[T], Cell]]
"""A column and the function that makes its cell for an item.

The functions below pass `fields` on to `Column`. A column's id is its title by default.
"""
_NUMBER_WIDTH = 80
"""Width of a narrow column of numbers, in CSS pixels."""


def _column(title: str, fields: dict[str, Any], **defaults: Any) -> Column:
    return Column(**{"title": title, "id": title, **defaults, **fields})


def text(
    title: str,
    say: Callable[[T], str | None],
    *,
    when: bool = True,
    tone: Callable[[T], Tone] = lambda _: "",
    limit: int = NAME_LIMIT,
    **fields: Any,
) -> ColumnOf[T] | None:
    """Return a column of text from a trace, empty where it is unknown; None unless `when`."""

    def cell(item: T) -> Cell:
        return Cell(clean(say(item) or "", limit), tone=tone(item))

    return (_column(title, fields, number=False), cell) if when else None


def figure(title: str, say: Callable[[T], str], **fields: Any) -> ColumnOf[T]:
    """Return a column of numbers that `say` has formatted."""
    return _column(title, fields), lambda item: Cell(say(item))


def count(title: str, say: Callable[[T], int | None], *, among: int = 1, **fields: Any) -> ColumnOf[T]:
    """Return a column of counts. Counts over several steps, `among` of them, are shown as those of an average step."""
    steps = max(1, among)

    def cell(item: T) -> Cell:
        number = say(item)
        return Cell(NOTHING) if number is None else Cell(each(number, steps), number / steps)

    return _column(title, fields, width=_NUMBER_WIDTH), cell


def number(title: str, say: Callable[[T], int | None], *, when: bool = True, **fields: Any) -> ColumnOf[T] | None:
    """Return a column of numbers that identify something, such as a stream; None unless `when`."""

    def cell(item: T) -> Cell:
        value = say(item)
        return Cell(NOTHING if value is None else str(value), value)

    return (_column(title, fields, width=_NUMBER_WIDTH), cell) if when else None


def time(title: str, unit: Unit, say: Callable[[T], int | None], *, short: str = "", **fields: Any) -> ColumnOf[T]:
    """Return a column of times, sorted and exported in `unit`. `short` is its title where the unit is obvious."""
    titles = {"title": short or f"{title} {unit.name}", "long": f"{title}, {unit.name}"}

    def cell(item: T) -> Cell:
        ns = say(item)
        return Cell(unit.number(ns), None if ns is None else ns / unit.ns)

    return _column(title, titles | fields), cell


def percent(title: str, say: Callable[[T], float | None], **fields: Any) -> ColumnOf[T]:
    """Return a column of percentages, without the sign."""
    return _column(title, fields), lambda item: Cell(bare_percent(say(item)), say(item))


def share(title: str, part: Callable[[T], int], whole: Callable[[T], int], **fields: Any) -> ColumnOf[T]:
    """Return a column of `part` as a percentage of `whole`."""
    return percent(title, lambda item: 100 * part(item) / whole(item) if whole(item) else None, **fields)


def bytes_of(title: str, say: Callable[[T], int | None], **fields: Any) -> ColumnOf[T]:
    """Return a column of sizes in bytes."""
    return _column(title, fields), lambda item: Cell(size(say(item)), say(item))


def rate(say: Callable[[T], float | None]) -> ColumnOf[T]:
    """Return a column of bandwidths in GB/s."""

    def cell(item: T) -> Cell:
        value = say(item)
        return Cell(NOTHING if value is None else bandwidth(value), value)

    return Column("GB/s", id="rate", width=_NUMBER_WIDTH), cell

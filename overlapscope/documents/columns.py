"""Columns of tables with a row per item: each has a function that makes an item's cell, with the value to sort by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from overlapscope.base.words import NOTHING, Unit, bandwidth, bare_percent, clean, size
from overlapscope.documents.table import Cell, Column

NAME_LIMIT = 200

T = TypeVar("T")
ColumnOf = tuple[Column, Callable[[T], Cell]]
"""A column and the function that makes its cell for an item. The functions below pass `fields` on to `Column`."""


def text(title: str, say: Callable[[T], str | None], *, when: bool = True, **fields: Any) -> ColumnOf[T] | None:
    """Return a column of text from a trace, empty where it is unknown; None unless `when`."""

    def cell(thing: T) -> Cell:
        return Cell(clean(say(thing) or "", NAME_LIMIT))

    return (Column(title, number=False, **fields), cell) if when else None


def count(title: str, say: Callable[[T], int], **fields: Any) -> ColumnOf[T]:
    """Return a column of counts."""
    return Column(title, **fields), lambda thing: Cell(f"{say(thing):,}", say(thing))


def number(title: str, say: Callable[[T], int], **fields: Any) -> ColumnOf[T]:
    """Return a column of numbers that identify something, such as a stream."""
    return Column(title, **fields), lambda thing: Cell(str(say(thing)), say(thing))


def time(title: str, unit: Unit, say: Callable[[T], int], *, long: str, **fields: Any) -> ColumnOf[T]:
    """Return a column of times, sorted and exported in `unit`, which this adds to the long title."""
    return Column(title, long=f"{long}, {unit.name}", **fields), lambda thing: Cell(
        unit.number(say(thing)), say(thing) / unit.ns
    )


def percent(title: str, say: Callable[[T], float | None], **fields: Any) -> ColumnOf[T]:
    """Return a column of percentages, without the sign."""
    return Column(title, **fields), lambda thing: Cell(bare_percent(say(thing)), say(thing))


def share(title: str, part: Callable[[T], int], whole: Callable[[T], int], **fields: Any) -> ColumnOf[T]:
    """Return a column of `part` as a percentage of `whole`."""
    return percent(title, lambda thing: 100 * part(thing) / whole(thing) if whole(thing) else None, **fields)


def bytes_of(title: str, say: Callable[[T], int | None], **fields: Any) -> ColumnOf[T]:
    """Return a column of sizes in bytes."""
    return Column(title, **fields), lambda thing: Cell(size(say(thing)), say(thing))


def rate(title: str, say: Callable[[T], float | None], **fields: Any) -> ColumnOf[T]:
    """Return a column of bandwidths in GB/s."""

    def cell(thing: T) -> Cell:
        value = say(thing)
        return Cell(NOTHING if value is None else bandwidth(value), value)

    return Column(title, **fields), cell

"""Changes as the rows of a table: one shape for all of them, and which are worth a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from overlapscope.base.words import Unit, plural
from overlapscope.compare.difference import Change, Standing
from overlapscope.views.diff.words import Good, interval, mark, number, relative, signed, worth_showing
from overlapscope.views.old_tables import Column, Table, text

MOST = 10
"""Rows of a list that can be long."""

RELATIVE = "change %"
INTERVAL = "interval"
NOISE_FLOOR = "noise up to"
"""Titles of columns."""

_MORE = "overlapscope diff --verbose lists all"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Line:
    """A change as a row."""

    name: str
    change: Change
    good: Good | None = None
    standing: str = ""
    """Instead of what the change is worth."""


@dataclass(frozen=True, slots=True)
class Group:
    """What belongs together as several rows."""

    name: str
    standing: Standing
    lines: tuple[Line, ...]


def there_is(change: Change) -> bool:
    """Whether there is anything of it on either side."""
    return bool(change.before) or bool(change.after)


def change_table(
    title: str,
    first: str,
    lines: Sequence[Line],
    unit: Unit,
    *,
    note: str = "",
    mixed: bool = False,
    total: bool = False,
) -> Table:
    """A row for each change. Of `mixed` units, which the rows name themselves."""
    suffix = "" if mixed else f" {unit.name}"
    columns = [text(first, flexible=bool(first)), *map(Column, (f"before{suffix}", "after", "change", RELATIVE))]
    known = [interval(line.change, unit) for line in lines]
    told = any(known)
    columns += [Column(INTERVAL), Column(NOISE_FLOOR)] if told else []
    rows = []
    for line, between in zip(lines, known, strict=True):
        one = line.change
        sides = (number(one.unit, one.before, unit), number(one.unit, one.after, unit))
        row = (line.name, *sides, signed(one.unit, one.change, unit), relative(one))
        noise = (between, number(one.unit, one.noise_floor, unit) if between and one.noise_floor else "")
        rows.append((*row, *(noise if told else ()), line.standing or mark(one, line.good)))
    return Table(title, (*columns, text("")), tuple(rows), note if rows else "", total=total)


def group_table(title: str, first: str, groups: Sequence[Group], unit: Unit, verbose: bool, noun: str) -> Table:
    """Several rows for each group; its name stands in its first."""
    moved = [group for group in groups if verbose or any(worth_showing(line.change) for line in group.lines)]
    shown = moved if verbose else moved[:MOST]
    names, lines = [], []
    for group in shown:
        # What is new or gone is neither better nor worse by itself: other copies may have taken its place.
        standing = "" if group.standing == "both" else group.standing
        told = [line for line in group.lines if there_is(line.change) and (verbose or line.change.change != 0)]
        names += [group.name, *[""] * (len(told) - 1)] if told else []
        lines += [replace(line, standing=standing) for line in told]
    table = change_table(title, "", lines, unit, note=left_out(groups, shown, noun), mixed=True)
    rows = tuple((name, *row) for name, row in zip(names, table.rows, strict=True))
    return replace(table, columns=(text(first, flexible=True), *table.columns), rows=rows)


def kept(
    found: Sequence[T],
    change: Callable[[T], Change],
    verbose: bool,
    noun: str,
    also: Callable[[T], bool] = lambda _: False,
) -> tuple[Sequence[T], str]:
    """Those that changed; those left out in words."""
    if verbose:
        return [one for one in found if there_is(change(one)) or also(one)], ""
    shown = [one for one in found if worth_showing(change(one)) or also(one)]
    return shown, left_out([one for one in found if there_is(change(one))], shown, noun)


def longest(found: Sequence[T], verbose: bool, noun: str) -> tuple[Sequence[T], str]:
    """The first of a list that is sorted; those left out in words."""
    shown = found if verbose else found[:MOST]
    return shown, left_out(found, shown, noun)


def left_out(found: Sequence[object], shown: Sequence[object], noun: str) -> str:
    """How many are not shown; empty where all are, or none is."""
    left = len(found) - len(shown)
    return f"{plural(left, f'more {noun}')} changed less or not at all: {_MORE}." if left > 0 and shown else ""

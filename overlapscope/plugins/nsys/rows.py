"""Rows of a Trace's tables under construction: impossible rows are dropped, the others sorted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.plugins.nsys.database import Database
from overlapscope.trace.model import I32, I64, Bool

Rows = dict[str, NDArray[Any]]
"""Columns of a Trace's table by name, except the string table and `place`."""


def joined(parts: Iterable[Rows]) -> Rows:
    """Return the rows of tables with the same columns, table after table."""
    parts = list(parts)
    parts = [part for part in parts if len(part["start_ns"])] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def kept(rows: Rows, keep: Bool) -> Rows:
    """Return the rows that a mask selects."""
    return {name: column[keep] for name, column in rows.items()} if not keep.all() else rows


def ordered(rows: Rows, first_place: int) -> Rows:
    """Return rows by start, longest first, with places numbered from `first_place`."""
    start, end = rows["start_ns"], rows["end_ns"]
    place = np.arange(first_place, first_place + len(start), dtype=np.int32)
    order = np.lexsort((-end, start))
    return {name: column[order] for name, column in (rows | {"place": place}).items()}


# -- String table of a Trace under construction ------------------------------------------------------


class Names:
    """Distinct names, numbered in the order of appearance."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """Return the number of a name."""
        return self._numbers.setdefault(name, len(self._numbers))

    def from_ids(self, ids: I64, shown: Callable[[str], str] = str) -> I32:
        """Return the numbers of strings that the database stores by id; `shown` converts the strings to names."""
        distinct, back = np.unique(ids, return_inverse=True)
        numbers = [self.number(shown(self._database.string(id)) or "unnamed") for id in distinct.tolist()]
        return np.array(numbers, np.int32)[back] if numbers else np.empty(0, np.int32)

    def numbers(self, prefix: str) -> list[int]:
        """Return the numbers of all names with a prefix."""
        return [number for name, number in self._numbers.items() if name.startswith(prefix)]

    def all(self) -> tuple[str, ...]:
        """Return the string table."""
        return tuple(self._numbers)

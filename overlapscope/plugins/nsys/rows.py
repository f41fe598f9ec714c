"""Rows of a Trace's tables under construction: impossible rows are dropped, the others sorted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.trace.model import Bool

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

"""Rows of a Trace's tables while they are made: what cannot have happened left out, the rest sorted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapscope.trace.model import Bool

Rows = dict[str, NDArray[Any]]
"""The columns of a Trace's table, by name, but for the string table and `place`."""


def joined(parts: Iterable[Rows]) -> Rows:
    """The rows of tables with the same columns, one after another."""
    parts = list(parts)
    parts = [part for part in parts if len(part["start_ns"])] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def kept(rows: Rows, keep: Bool) -> Rows:
    """Those of a mask."""
    return {name: column[keep] for name, column in rows.items()} if not keep.all() else rows


def ordered(rows: Rows, first_place: int) -> Rows:
    """By start, longest first within equal starts, with places numbered from `first_place`."""
    start, end = rows["start_ns"], rows["end_ns"]
    place = np.arange(first_place, first_place + len(start), dtype=np.int32)
    order = np.lexsort((-end, start))
    return {name: column[order] for name, column in (rows | {"place": place}).items()}

"""Rows of a Trace from recordings of other formats, under the categories and names that Kineto uses."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct

from overlapscope.reading._arguments import DecodedArguments
from overlapscope.reading._batch import Batch, batch_of_rows, rows_of
from overlapscope.reading._categories import table_of
from overlapscope.reading._times import UNREADABLE

_LARGEST_NS: Final = 1 << 62


class NamedRow(Struct, gc=False):
    """An event as Kineto would write it."""

    category: str
    name: str
    tid: int
    start_ns: int
    dur_ns: int
    pid: int = -1
    args: Any = None
    """`OpArgs` of a GPU op, `CallArgs` of a runtime call, None for others."""


def batch_of_named(rows: list[NamedRow]) -> Batch:
    """Return all rows of a Trace, as a batch."""
    categories = tuple(dict.fromkeys(row.category for row in rows))
    number = {category: place for place, category in enumerate(categories)}
    batch = batch_of_rows(
        rows,
        categories,
        category=np.fromiter((number[row.category] for row in rows), np.int32, len(rows)),
        place=np.arange(len(rows), dtype=np.int32),
        start_ns=np.fromiter((_time(row.start_ns) for row in rows), np.int64, len(rows)),
        dur_ns=np.fromiter((_time(row.dur_ns) for row in rows), np.int64, len(rows)),
        count=len(rows),
    )
    tables = np.array([table_of[category] for category in categories], np.int32)
    for table, at in rows_of(tables[batch.category]):
        chosen = [rows[row] for row in at.tolist()]
        batch.parts[table] = at, DecodedArguments(chosen, [row.args for row in chosen])
    return batch


def _time(ns: int) -> int:
    return ns if abs(ns) < _LARGEST_NS else int(UNREADABLE)

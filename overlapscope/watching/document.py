"""The table of watched processes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

from overlapscope.base.words import clean, duration
from overlapscope.documents.model import Block, Document, Text, with_code
from overlapscope.documents.table import Cell, Column, table_of, words
from overlapscope.watching.protocol import Status

_NONE: Final = (
    "No process of this user is watched here. Start one with `overlapscope run --on-demand`, call overlapscope.watch() "
    "in it, or set OVERLAPSCOPE_WATCH=1 for it."
)
_NS_PER_S: Final = 1_000_000_000


def document(statuses: Sequence[Status]) -> Document:
    """Return a table with a row for each process."""
    now_ns = time.time_ns()
    table = table_of(
        statuses,
        (Column("pid", id="pid"), lambda status: Cell(str(status.pid), status.pid)),
        (words("script", flexible=True, heads=True), lambda status: Cell(clean(status.script))),
        (words("rank"), lambda status: Cell("" if status.rank is None else f"{status.rank} of {status.world_size}")),
        (Column("steps"), lambda status: Cell(f"{status.steps:,}", status.steps)),
        (
            Column("plain step"),
            lambda status: Cell(
                "" if status.plain_step_ns is None else duration(status.plain_step_ns), status.plain_step_ns
            ),
        ),
        (words("last recording"), lambda status: Cell(_last(status, now_ns))),
        title="Watched processes",
    )
    blocks: tuple[Block, ...] = (table,) if statuses else (Text(with_code(_NONE)),)
    return Document("overlapscope record --list", blocks)


def _last(status: Status, now_ns: int) -> str:
    if status.recording:
        return "now"
    if status.recorded_at_ns is None:
        return ""
    ago_s = max(0, now_ns - status.recorded_at_ns) // _NS_PER_S
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if ago_s >= unit_s:
            return f"{ago_s // unit_s} {name} ago"
    return f"{ago_s} s ago"

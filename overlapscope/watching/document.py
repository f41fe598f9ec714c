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


def document(found: Sequence[Status]) -> Document:
    """A row for each."""
    now_ns = time.time_ns()
    table = table_of(
        found,
        (Column("pid", id="pid"), lambda one: Cell(str(one.pid), one.pid)),
        (words("script", flexible=True, heads=True), lambda one: Cell(clean(one.script))),
        (words("rank"), lambda one: Cell("" if one.rank is None else f"{one.rank} of {one.world_size}")),
        (Column("steps"), lambda one: Cell(f"{one.steps:,}", one.steps)),
        (
            Column("plain step"),
            lambda one: Cell("" if one.plain_step_ns is None else duration(one.plain_step_ns), one.plain_step_ns),
        ),
        (words("last recording"), lambda one: Cell(_last(one, now_ns))),
        title="Watched processes",
    )
    blocks: tuple[Block, ...] = (table,) if found else (Text(with_code(_NONE)),)
    return Document("overlapscope ps", blocks)


def _last(one: Status, now_ns: int) -> str:
    if one.recording:
        return "now"
    if one.recorded_at_ns is None:
        return ""
    ago_s = max(0, now_ns - one.recorded_at_ns) // _NS_PER_S
    for unit_s, name in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if ago_s >= unit_s:
            return f"{ago_s // unit_s} {name} ago"
    return f"{ago_s} s ago"

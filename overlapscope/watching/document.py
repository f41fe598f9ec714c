"""The table of watched processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from overlapscope.base.words import clean, duration
from overlapscope.documents.model import Block, Document, Text, with_code
from overlapscope.documents.table import Cell, Column, table_of, words
from overlapscope.watching.ask import SilentProcess
from overlapscope.watching.protocol import Status

_NONE: Final = (
    "No process of this user is watched here. Start one with `overlapscope run --on-demand`, call overlapscope.watch() "
    "in it, or set OVERLAPSCOPE_WATCH=1 for it."
)
_NS_PER_S: Final = 1_000_000_000


def document(processes: Sequence[Status | SilentProcess]) -> Document:
    """Return a table with a row for each process."""
    now_ns = time.time_ns()
    table = table_of(
        processes,
        (Column("pid", id="pid"), lambda process: Cell(str(process.pid), process.pid)),
        (words("script", flexible=True, heads=True), lambda process: Cell(_script(process))),
        (words("rank"), _of_status(lambda status: Cell(_rank(status)))),
        (Column("steps"), _of_status(lambda status: Cell(f"{status.steps:,}", status.steps))),
        (Column("plain step"), _of_status(_plain_step)),
        (words("last recording"), _of_status(lambda status: Cell(_last(status, now_ns)))),
        title="Watched processes",
    )
    blocks: tuple[Block, ...] = (table,) if processes else (Text(with_code(_NONE)),)
    return Document("overlapscope record --list", blocks)


def _of_status(cell: Callable[[Status], Cell]) -> Callable[[Status | SilentProcess], Cell]:
    """Return a function for all processes, whose cell is empty for those that don't answer."""
    return lambda process: cell(process) if isinstance(process, Status) else Cell("")


def _script(process: Status | SilentProcess) -> str:
    if isinstance(process, Status):
        return clean(process.script)
    return "(stopped)" if process.stopped else "(does not answer)"


def _rank(status: Status) -> str:
    return "" if status.rank is None else f"{status.rank} of {status.world_size}"


def _plain_step(status: Status) -> Cell:
    return Cell("" if status.plain_step_ns is None else duration(status.plain_step_ns), status.plain_step_ns)


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

"""Evidence: the calls, ops and lines a cause's time comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.exposed import ExposedCopies
from overlapscope.analysis.grouping import groups_of
from overlapscope.analysis.host import line_ids_around, line_text, op_ids_around, op_text
from overlapscope.analysis.late_launch import IdleTime
from overlapscope.analysis.results import Evidence, Window
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import pick
from overlapscope.base.intervals import Intervals, cut
from overlapscope.catalog.causes import COPY_CAUSES, EXPOSED_COPY, IDLE, IDLE_CAUSES, Subject
from overlapscope.trace.model import Memory, Trace

MOST = 40
"""Rows of evidence kept per device and subject; the largest. The causes' totals are always complete."""

Column = NDArray[np.signedinteger[Any]]
Pieces = TypeVar("Pieces", ExposedCopies, IdleTime)


def copy_evidence(trace: Trace, timeline: Timeline, exposed: ExposedCopies, windows: Intervals) -> list[Evidence]:
    """Exposed copies inside the given windows by cause and by what issued them."""
    exposed = _inside(exposed, windows)
    ops, calls, copy = timeline.ops, trace.runtime_calls, exposed.copy
    launch = ops.launch[copy]
    known = launch >= 0
    thread = pick(calls.thread, launch)
    at = pick(calls.start_ns, launch)
    columns: dict[str, Column] = {
        "cause": exposed.cause,
        "source": ops.source_kind[copy],
        "target": ops.target_kind[copy],
        "stream": ops.stream[copy],
        "call": pick(calls.name_id, launch),
        "op": np.where(known, op_ids_around(trace, thread, at), -1),
        "line": np.where(known, line_ids_around(trace, thread, at), -1),
    }

    def detail(row: dict[str, int]) -> str:
        memory = f"{Memory(row['source']).name.lower()} to {Memory(row['target']).name.lower()}"
        return f"{memory} on stream {row['stream']}: {EXPOSED_COPY[COPY_CAUSES[row['cause']]].evidence}"

    return _ranked(trace, "exposed-copy", exposed, columns, [str(c) for c in COPY_CAUSES], detail)


def idle_evidence(trace: Trace, idle: IdleTime, windows: Intervals) -> list[Evidence]:
    """Idle time inside the given windows by cause and by what the host was doing."""
    idle = _inside(idle, windows)
    columns: dict[str, Column] = {
        "cause": idle.cause,
        "call": pick(trace.runtime_calls.name_id, idle.call),
        "op": op_ids_around(trace, idle.thread, idle.host_ns),
        "line": line_ids_around(trace, idle.thread, idle.host_ns),
    }

    def detail(row: dict[str, int]) -> str:
        return IDLE[IDLE_CAUSES[row["cause"]]].evidence

    return _ranked(trace, "idle", idle, columns, [str(c) for c in IDLE_CAUSES], detail)


def _inside(pieces: Pieces, windows: Intervals) -> Pieces:
    """The parts of the pieces inside the windows."""
    row, start, end = cut(pieces.start_ns, pieces.end_ns, windows)
    columns = {f.name: getattr(pieces, f.name)[row] for f in fields(pieces)}
    return replace(pieces, **(columns | {"start_ns": start, "end_ns": end}))


def _ranked(
    trace: Trace,
    subject: Subject,
    pieces: ExposedCopies | IdleTime,
    columns: Mapping[str, Column],
    causes: list[str],
    detail: Callable[[dict[str, int]], str],
) -> list[Evidence]:
    """The pieces grouped by equal columns, the `MOST` groups with the most time."""
    length = pieces.end_ns - pieces.start_ns
    if not len(length):
        return []
    group = groups_of(list(columns.values()))
    time = np.bincount(group, weights=length).astype(np.int64)
    count = np.bincount(group)
    # Within a group longest first, so that the first row of each is its example.
    order = np.lexsort((pieces.start_ns, -length, group))
    example = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    sure = np.full(len(time), EXACT, np.int64)
    np.minimum.at(sure, group, pieces.confidence)
    evidence = []
    for number in np.lexsort((pieces.start_ns[example], -time))[:MOST].tolist():
        first = int(example[number])
        row = {name: int(column[first]) for name, column in columns.items()}
        evidence.append(
            Evidence(
                subject=subject,
                cause=causes[row["cause"]],
                time_ns=int(time[number]),
                count=int(count[number]),
                op=op_text(trace, row["op"]),
                call=op_text(trace, row["call"]),
                where=line_text(trace, row["line"]),
                detail=detail(row),
                confidence="exact" if sure[number] == EXACT else "rebuilt",
                example=Window(start_ns=int(pieces.start_ns[first]), end_ns=int(pieces.end_ns[first])),
            )
        )
    return evidence

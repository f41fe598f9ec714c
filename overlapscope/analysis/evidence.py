"""Evidence for causes: the calls, ops and lines that their time comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import numpy as np

from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.grouping import groups_of
from overlapscope.analysis.host import Sites, sites, sites_of_calls
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.pieces import ExposedCopies, IdleTime, Pieces
from overlapscope.analysis.results import Evidence, EvidenceByStep, Window
from overlapscope.analysis.steps import step_at, sums_by_step, times_by_step
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Integers
from overlapscope.base.intervals import Intervals
from overlapscope.catalog.causes import COPY_CAUSES, EXPOSED_COPY, IDLE, IDLE_CAUSES, Cause, Subject
from overlapscope.trace.model import Memory, Trace

MOST = 40
"""Maximum number of rows of evidence per device and subject; the largest are kept. Totals of causes are always
complete."""


def copy_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedCopies, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed copies inside the windows, by cause and by what issued them."""
    pieces, ops = exposed.inside(windows), timeline.ops
    copy = pieces.copy

    def moved(piece: int) -> str:
        row = copy[piece]
        source, target = (Memory(kinds[row]).name.lower() for kinds in (ops.source_kind, ops.target_kind))
        return f"{source} to {target} on stream {ops.stream[row]}"

    alike = (ops.source_kind[copy], ops.target_kind[copy], ops.stream[copy])
    sites = sites_of_calls(trace, ops.launch[copy])
    return _ranked(trace, "exposed-copy", EXPOSED_COPY, COPY_CAUSES, pieces, steps, alike, sites, moved)


def idle_evidence(trace: Trace, idle: IdleTime, steps: Periods, windows: Intervals) -> list[Evidence]:
    """Return the evidence for idle time inside the windows, by cause and by activity of the host."""
    pieces = idle.inside(windows)
    where = sites(trace, pieces.call, pieces.thread, pieces.host_ns)
    return _ranked(trace, "idle", IDLE, IDLE_CAUSES, pieces, steps, (), where, lambda _: None)


def _ranked(
    trace: Trace,
    subject: Subject,
    catalog: Mapping[str, Cause],
    causes: Sequence[StrEnum],
    pieces: Pieces,
    steps: Periods,
    alike: Sequence[Integers],
    sites: Sites,
    moved: Callable[[int], str | None],
) -> list[Evidence]:
    """Return the `MOST` largest groups of pieces with equal cause, site and further columns.

    `moved` returns the copies of a piece, and is called for the longest piece of each.
    """
    length = pieces.length_ns
    if not len(length):
        return []
    group = groups_of((pieces.cause, *alike, sites.call, sites.op, sites.line))
    time = np.bincount(group, weights=length).astype(np.int64)
    count = np.bincount(group)
    # Within a group, the longest piece comes first and is its example.
    order = np.lexsort((pieces.start_ns, -length, group))
    example = order[np.flatnonzero(np.diff(group[order], prepend=-1))]
    sure = np.full(len(time), EXACT, np.int64)
    np.minimum.at(sure, group, pieces.confidence)
    begun = step_at(steps, pieces.start_ns)
    counts = sums_by_step(group, begun, np.ones_like(begun), (len(time), len(steps))).tolist()
    times = times_by_step(group, pieces.start_ns, pieces.end_ns, steps, len(time))
    evidence = []
    for number in np.lexsort((pieces.start_ns[example], -time))[:MOST].tolist():
        first = int(example[number])
        site = sites.site_at(trace, first)
        cause, copies = str(causes[pieces.cause[first]]), moved(first)
        reason = catalog[cause].evidence
        evidence.append(
            Evidence(
                subject=subject,
                cause=cause,
                time_ns=int(time[number]),
                count=int(count[number]),
                op=site.op,
                call=site.call,
                where=site.line,
                detail=reason if copies is None else f"{copies}: {reason}",
                copies=copies,
                confidence="exact" if sure[number] == EXACT else "rebuilt",
                example=Window(start_ns=int(pieces.start_ns[first]), end_ns=int(pieces.end_ns[first])),
                by_step=EvidenceByStep(count=tuple(counts[number]), time_ns=tuple(times[number])),
            )
        )
    return evidence

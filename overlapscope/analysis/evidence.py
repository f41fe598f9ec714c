"""Evidence for causes: the calls, ops and lines that their time comes from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np

from overlapscope.analysis.comm_kinds import comm_kinds
from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.figures import Window
from overlapscope.analysis.group_results import Evidence, EvidenceByStep
from overlapscope.analysis.host import Sites, sites, sites_of_calls
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.pieces import ExposedComm, ExposedCopies, ExposedOther, IdleTime, Pieces
from overlapscope.analysis.steps import step_at, sums_by_step, times_by_step
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Integers
from overlapscope.base.grouping import distinct, groups_of
from overlapscope.base.intervals import Intervals
from overlapscope.base.words import clean
from overlapscope.catalog.causes import CAUSES, COMM_CAUSES, COPY_CAUSES, IDLE_CAUSES, OTHER_CAUSES, Subject
from overlapscope.trace.model import Memory, Trace
from overlapscope.trace.op_names import short_kernel

MOST = 40
"""Maximum number of rows of evidence per device and subject; the largest are kept. Totals of causes are always
complete."""


def copy_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedCopies, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed copies inside the windows, by cause and by what issued them."""
    pieces, ops = exposed.inside(windows), timeline.ops
    copy = pieces.copy

    def facts(piece: int) -> dict[str, str | None]:
        row = copy[piece]
        source, target = (Memory(kinds[row]).name.lower() for kinds in (ops.source_kind, ops.target_kind))
        return {"copies": f"{source} to {target} on stream {ops.stream[row]}"}

    alike = (ops.source_kind[copy], ops.target_kind[copy], ops.stream[copy])
    sites = sites_of_calls(trace, ops.launch[copy])
    return _ranked(trace, "exposed-copy", COPY_CAUSES, pieces, steps, alike, sites, facts)


def comm_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedComm, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed communication inside the windows, by cause, collective and group."""
    pieces, ops = exposed.inside(windows), timeline.ops
    collectives = distinct(pieces.op)
    described = comm_kinds(trace, ops.take(collectives))
    kind = described.kind[np.searchsorted(collectives, pieces.op)]

    def facts(piece: int) -> dict[str, str | None]:
        held_by = int(pieces.held_by[piece])
        return {
            "collective": described.kinds[kind[piece]].words,
            "waited_for": clean(short_kernel(ops.name(held_by)), 120) if held_by >= 0 else None,
        }

    sites = sites_of_calls(trace, pieces.call)
    return _ranked(trace, "exposed-comm", COMM_CAUSES, pieces, steps, (kind,), sites, facts)


def other_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedOther, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed memory work in and between GPUs inside the windows, by kind and origin."""
    pieces = exposed.inside(windows)
    sites = sites_of_calls(trace, timeline.ops.launch[pieces.op])
    return _ranked(trace, "exposed-other", OTHER_CAUSES, pieces, steps, (), sites, lambda _: {})


def idle_evidence(trace: Trace, idle: IdleTime, steps: Periods, windows: Intervals) -> list[Evidence]:
    """Return the evidence for idle time inside the windows, by cause and by activity of the host."""
    pieces = idle.inside(windows)
    where = sites(trace, pieces.call, pieces.thread, pieces.host_ns)
    return _ranked(trace, "idle", IDLE_CAUSES, pieces, steps, (), where, lambda _: {})


def _ranked(
    trace: Trace,
    subject: Subject,
    causes: Sequence[StrEnum],
    pieces: Pieces,
    steps: Periods,
    alike: Sequence[Integers],
    sites: Sites,
    facts: Callable[[int], dict[str, str | None]],
) -> list[Evidence]:
    """Return the `MOST` largest groups of pieces with equal cause, site and further columns.

    `facts` returns further fields of `Evidence`, and is called for the longest piece of each. The first says what the
    piece is.
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
        cause, more = str(causes[pieces.cause[first]]), facts(first)
        what, reason = next(iter(more.values()), None), CAUSES[subject][cause].words.evidence
        evidence.append(
            Evidence(
                subject=subject,
                cause=cause,
                time_ns=int(time[number]),
                count=int(count[number]),
                op=site.op,
                call=site.call,
                where=site.line,
                detail=reason if what is None else f"{what}: {reason}",
                confidence="exact" if sure[number] == EXACT else "rebuilt",
                example=Window(start_ns=int(pieces.start_ns[first]), end_ns=int(pieces.end_ns[first])),
                by_step=EvidenceByStep(count=tuple(counts[number]), time_ns=tuple(times[number])),
                **more,
            )
        )
    return evidence

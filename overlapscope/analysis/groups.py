"""Groups of copies, kernels, blocking calls and cases of a cause, with the time of each group in each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import numpy as np
from msgspec import UNSET

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.figures import Window
from overlapscope.analysis.graphs import modules_of, sites_of_ops
from overlapscope.analysis.host import (
    Blocking,
    Sites,
    sites,
    sites_of_calls,
    wait_for_other_devices,
)
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.pieces import ExposedComm, ExposedCopies, ExposedOther, IdleTime, Pieces
from overlapscope.analysis.results import (
    CopiesByStep,
    CopyDirection,
    CopyGroup,
    Evidence,
    EvidenceByStep,
    HostStall,
    KernelGroup,
    KernelsByStep,
    StallsByStep,
)
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import Integers, pick
from overlapscope.base.grouping import among, distinct, first_of_each, groups_of, rows_by
from overlapscope.base.intervals import I64, Bool, Intervals, clip, covered, cut, intersect, total, union
from overlapscope.base.words import clean
from overlapscope.catalog.causes import (
    CAUSES,
    COMM_CAUSES,
    COPY_CAUSES,
    IDLE_CAUSES,
    IDLE_RANK,
    OTHER_CAUSES,
    STALL_CAUSES,
    Subject,
)
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.trace.model import GpuOps, Kind, Memory, Trace
from overlapscope.trace.op_names import looks_like_communication, short_kernel

LARGE_BYTES = 1 << 20
"""Minimum size at which latency is negligible and bandwidths can be compared."""


_NEVER = np.iinfo(np.int64).max
_DIRECTIONS: dict[Kind, CopyDirection] = {Kind.H2D: "h2d", Kind.D2H: "d2h", Kind.P2P: "p2p"}


def says_bandwidth(group: CopyGroup) -> bool:
    """Return whether the group's bandwidth is meaningful: that of mostly tiny copies only shows their latency."""
    return group.bytes is not None and group.bytes >= TINY_BYTES * group.count


def group_copies(timeline: Timeline, steps: Periods, windows: Intervals) -> tuple[CopyGroup, ...]:
    """Return copies inside disjoint windows by direction, memory kinds, devices and stream, the longest group first.

    Copies within the device are left out.

    Times are cut at the windows' edges; counts, bytes and bandwidth are of whole copies.
    """
    ops = timeline.ops
    copies = np.flatnonzero(ops.is_copy | (ops.kind == Kind.P2P))
    copies = copies[_runs_inside(ops.start_ns[copies], ops.end_ns[copies], windows)]
    if not len(copies):
        return ()
    memory, peers = (ops.source_kind[copies], ops.target_kind[copies]), _peers(ops.take(copies))
    alike = (ops.kind[copies], *memory, *peers, ops.stream[copies])
    groups = [_copy_group(timeline, copies[which], steps, windows) for _, which in rows_by(groups_of(alike))]
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.direction, group.stream)))


def _peers(ops: GpuOps) -> tuple[I64, I64]:
    """Return the devices that each peer copy reads and writes; -1 for other ops, and if not recorded."""
    is_peer = ops.kind == Kind.P2P
    return np.where(is_peer, ops.source_device, -1), np.where(is_peer, ops.target_device, -1)


def _runs_inside(start: I64, end: I64, windows: Intervals) -> Bool:
    """Select intervals that share an instant with a window; an empty interval may lie on either edge of it."""
    # The first window that ends after the interval's start must begin before its end.
    following = pick(windows.starts, np.searchsorted(windows.ends, start, side="right"), _NEVER)
    ended_at_once = pick(windows.ends, np.searchsorted(windows.ends, start, side="left")) == start
    inside: Bool = (following < end) | (start == end) & ((following <= start) | ended_at_once)
    return inside


def _copy_group(timeline: Timeline, rows: I64, steps: Periods, windows: Intervals) -> CopyGroup:
    """Return a group of similar copies, given as rows of `Timeline.ops`."""
    ops, first = timeline.ops, int(rows[0])
    ran = intersect(union(ops.start_ns[rows], ops.end_ns[rows]), windows)
    size, duration, sized = ops.bytes[rows], ops.end_ns[rows] - ops.start_ns[rows], ops.bytes[rows] >= 0
    moved, took = int(size[sized].sum()), int(duration[sized].sum())
    begun_judged = ops.start_ns[rows] >= timeline.judged_from_ns
    judged = sized & begun_judged
    direction = _DIRECTIONS[Kind(ops.kind[first])]
    source, target = (int(devices[0]) for devices in _peers(ops.take(rows[:1])))
    exposed = intersect(ran, timeline.exposed_p2p if direction == "p2p" else timeline.exposed_copy)
    step = steps.at(ops.start_ns[rows])

    def after_lead_in(times: Intervals) -> int:
        return total(clip(times, timeline.judged_from_ns, timeline.end_ns))

    def in_steps(weight: I64) -> tuple[int, ...]:
        return tuple(sums_by_step(np.zeros_like(step), step, weight, (1, len(steps)))[0].tolist())

    return CopyGroup(
        direction=direction,
        source_kind=Memory(ops.source_kind[first]).name.lower(),
        target_kind=Memory(ops.target_kind[first]).name.lower(),
        source_device=source if source >= 0 else None,
        target_device=target if target >= 0 else None,
        stream=int(ops.stream[first]),
        count=len(rows),
        bytes=moved if sized.any() else None,
        time_ns=total(ran),
        exposed_ns=total(exposed),
        gb_per_s=moved / took if sized.any() and took else None,
        judged_bytes=int(size[judged].sum()),
        judged_duration_ns=int(duration[judged].sum()),
        judged_count=int(begun_judged.sum()),
        judged_time_ns=after_lead_in(ran),
        judged_exposed_ns=after_lead_in(exposed),
        by_step=CopiesByStep(
            count=in_steps(np.ones_like(step)),
            bytes=in_steps(np.where(sized, size, 0)),
            duration_ns=in_steps(np.where(sized, duration, 0)),
            time_ns=tuple(covered(ran, steps.start_ns, steps.end_ns).tolist()),
            exposed_ns=tuple(covered(exposed, steps.start_ns, steps.end_ns).tolist()),
        ),
    )


def group_kernels(trace: Trace, timeline: Timeline, steps: Periods, windows: Intervals) -> tuple[KernelGroup, ...]:
    """Return kernels that begin inside disjoint windows, by name, stream, op, module and line, the longest first.

    Durations are added up in full, even for kernels that ran side by side.
    """
    ops = timeline.ops
    window = np.searchsorted(windows.starts, ops.start_ns, side="right") - 1
    # An empty kernel also counts at the end of a window.
    inside = (window >= 0) & ((windows.ends[window] > ops.start_ns) | (windows.ends[window] == ops.end_ns))
    rows = np.flatnonzero(inside & ((ops.kind == Kind.COMPUTE) | (ops.kind == Kind.COMM)))
    if not len(rows):
        return ()
    begun = ops.take(rows)
    site, (module, modules) = sites_of_ops(trace, begun), modules_of(trace, begun)
    group = groups_of((ops.name_id[rows], site.op, module, site.line, ops.stream[rows], ops.kind[rows]))
    duration, step = ops.end_ns[rows] - ops.start_ns[rows], steps.at(ops.start_ns[rows])
    # The example is the longest kernel of each group, the first of several. Sorting would take ten times as long.
    longest, examples = np.full((2, int(group.max()) + 1), -1)
    np.maximum.at(longest, group, duration)
    is_longest = np.flatnonzero(duration == longest[group])[::-1]
    examples[group[is_longest]] = is_longest
    judged = np.where(ops.start_ns[rows] >= timeline.judged_from_ns, 0, -1)
    weights = np.ones_like(step), duration, _exposed(timeline, rows)
    whole, after_lead_in, by_step = (
        [sums_by_step(group, at, weight, (len(examples), columns)) for weight in weights]
        for at, columns in ((np.zeros_like(step), 1), (judged, 1), (step, len(steps)))
    )
    unclear = (ops.kind[rows] == Kind.COMPUTE) & ops.named(looks_like_communication)[rows]
    groups = []
    for number, example in enumerate(examples.tolist()):
        row, place = int(rows[example]), site.site_at(trace, example)
        count, time_ns, exposed_ns = (int(sums[number, 0]) for sums in whole)
        judged_count, judged_time_ns, judged_exposed_ns = (int(sums[number, 0]) for sums in after_lead_in)
        count_by_step, time_by_step, exposed_by_step = (tuple(sums[number].tolist()) for sums in by_step)
        groups.append(
            KernelGroup(
                kernel=ops.name(row),
                op=place.op,
                module=modules[module[example]] if module[example] >= 0 else UNSET,
                where=place.line,
                stream=int(ops.stream[row]),
                comm=bool(ops.kind[row] == Kind.COMM),
                unclear=bool(unclear[example]),
                count=count,
                time_ns=time_ns,
                exposed_ns=exposed_ns,
                example=Window(start_ns=int(ops.start_ns[row]), end_ns=int(ops.end_ns[row])),
                judged_count=judged_count,
                judged_time_ns=judged_time_ns,
                judged_exposed_ns=judged_exposed_ns,
                by_step=KernelsByStep(count=count_by_step, time_ns=time_by_step, exposed_ns=exposed_by_step),
            )
        )
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.kernel, group.op or "", group.module or "")))


def _exposed(timeline: Timeline, rows: I64) -> I64:
    """Return the time of each kernel, given as rows of `Timeline.ops`, in which no other kernel computed."""
    ops = timeline.ops
    computing = np.flatnonzero(ops.kind == Kind.COMPUTE)
    start, end = ops.start_ns[computing], ops.end_ns[computing]
    # Several kernels compute from the start of each kernel until it ends, or until all earlier kernels have ended.
    beside = union(start[1:], np.minimum(end[1:], np.maximum.accumulate(end)[:-1]))
    exposed = ops.end_ns[rows] - ops.start_ns[rows]
    for kind, hiding in ((Kind.COMPUTE, beside), (Kind.COMM, timeline.compute)):
        which = np.flatnonzero(ops.kind[rows] == kind)
        exposed[which] -= covered(hiding, ops.start_ns[rows[which]], ops.end_ns[rows[which]])
    return exposed


def caused_by_calls(trace: Trace, idle: IdleTime) -> I64:
    """Return the idle time that each runtime call is blamed for."""
    caused = np.zeros(len(trace.runtime_calls), np.int64)
    blamed = _blamed(idle)
    np.add.at(caused, blamed.call, blamed.length_ns)
    return caused


def _blamed(idle: IdleTime) -> IdleTime:
    """Return the idle time that is blamed on calls."""
    return idle.take(among(idle.cause, [IDLE_RANK[cause] for cause in STALL_CAUSES]) & (idle.call >= 0))


def find_stalls(
    trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime, steps: Periods, windows: Intervals
) -> tuple[HostStall, ...]:
    """Return blocking calls inside the windows by call, op, thread and line, costliest first.

    Over all stalls, `idle_caused_ns` adds up to the idle time of the causes host-sync, allocation and host-staging
    inside the windows, except for time that `pin_memory` spent outside any call.
    """
    calls = trace.runtime_calls
    caused = caused_by_calls(trace, idle.inside(windows))
    elsewhere, start, end = (
        wait_for_other_devices(trace, timeline)[blocking.row],
        calls.start_ns[blocking.row],
        calls.end_ns[blocking.row],
    )
    # The first window that ends after the call's start must begin before its end.
    inside = pick(windows.starts, np.searchsorted(windows.ends, start, side="right"), _NEVER) < end
    rows = blocking.row[(inside & ~elsewhere) | (caused[blocking.row] > 0)]
    sites = sites_of_calls(trace, rows)
    alike = (sites.call, sites.op, calls.thread[rows], sites.line)
    groups = [which for _, which in rows_by(groups_of(alike))] if len(rows) else []
    groups.sort(key=lambda which: int(which[0]))
    group_of = np.full(len(calls), -1, np.int64)
    for number, which in enumerate(groups):
        group_of[rows[which]] = number
    blamed, begun = _blamed(idle), steps.at(calls.start_ns[rows])
    counts = sums_by_step(group_of[rows], begun, np.ones_like(begun), (len(groups), len(steps))).tolist()
    waits = times_by_step(group_of[rows], calls.start_ns[rows], calls.end_ns[rows], steps, len(groups))
    costs = times_by_step(group_of[blamed.call], blamed.start_ns, blamed.end_ns, steps, len(groups))
    stalls = []
    for number, which in enumerate(groups):
        site, members = sites.site_at(trace, int(which[0])), rows[which]
        called_ns, returned_ns = calls.start_ns[members], calls.end_ns[members]
        stalls.append(
            HostStall(
                call=site.call or "",
                op=site.op,
                thread=int(calls.thread[members[0]]),
                count=len(members),
                host_wait_ns=int((returned_ns - called_ns).sum()),
                idle_caused_ns=int(caused[members].sum()),
                judged_count=int((called_ns >= timeline.judged_from_ns).sum()),
                judged_wait_ns=int((returned_ns - np.maximum(called_ns, timeline.judged_from_ns)).clip(0).sum()),
                where=site.line,
                by_step=StallsByStep(
                    count=tuple(counts[number]),
                    host_wait_ns=tuple(waits[number]),
                    idle_caused_ns=tuple(costs[number]),
                ),
            )
        )
    return tuple(
        sorted(stalls, key=lambda stall: (-stall.idle_caused_ns, -stall.host_wait_ns, stall.call, stall.thread))
    )


def times_by_step(group: I64, start: I64, end: I64, steps: Periods, groups: int) -> list[list[int]]:
    """Return the time of each group's intervals in each step, with shape (groups, steps), cut at the steps' edges.

    Intervals of group -1 don't count.
    """
    piece, begin, stop = cut(start, end, Intervals(steps.start_ns, steps.end_ns))
    step = np.where(group[piece] >= 0, steps.at(begin), -1)
    sums: list[list[int]] = sums_by_step(group[piece], step, stop - begin, (groups, len(steps))).tolist()
    return sums


def sums_by_step(group: I64, step: I64, weight: I64, shape: tuple[int, int]) -> I64:
    """Return the weights of each group's members in each step, with `shape` (groups, steps).

    Members in no step (-1) are left out.
    """
    inside = step >= 0
    sums = np.zeros(shape, np.int64)
    np.add.at(sums, (group[inside], step[inside]), weight[inside])
    return sums


# -- Evidence for causes -----------------------------------------------------------------------------

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
    sites = sites_of_ops(trace, ops.take(copy))
    return _ranked(trace, "exposed-copy", COPY_CAUSES, pieces, steps, alike, sites, facts)


def comm_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedComm, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed communication inside the windows, by cause, collective and group."""
    pieces, ops = exposed.inside(windows), timeline.ops
    if not len(pieces):
        return []
    from overlapscope.analysis.comm_kinds import comm_kinds

    collectives = distinct(pieces.op)
    described = comm_kinds(trace, ops.take(collectives))
    kind = described.kind[np.searchsorted(collectives, pieces.op)]

    def facts(piece: int) -> dict[str, str | None]:
        held_by = int(pieces.held_by[piece])
        return {
            "collective": described.kinds[kind[piece]].words,
            "waited_for": clean(short_kernel(ops.name(held_by)), 120) if held_by >= 0 else None,
        }

    sites = sites_of_ops(trace, ops.take(pieces.op), pieces.call)
    return _ranked(trace, "exposed-comm", COMM_CAUSES, pieces, steps, (kind,), sites, facts)


def other_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedOther, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for exposed memory work in and between GPUs inside the windows, by kind and origin."""
    pieces = exposed.inside(windows)
    sites = sites_of_ops(trace, timeline.ops.take(pieces.op))
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
    example = first_of_each(group, -length, pieces.start_ns)
    sure = np.full(len(time), EXACT, np.int64)
    np.minimum.at(sure, group, pieces.confidence)
    begun = steps.at(pieces.start_ns)
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

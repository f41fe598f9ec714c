"""Places that launched ops, and groups of copies, kernels, blocking calls and cases of a cause, with times by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import UNSET

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.figures import Window
from overlapscope.analysis.missing_ops import wait_for_other_devices
from overlapscope.analysis.periods import Periods
from overlapscope.analysis.pieces import Exposed, IdleTime
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
from overlapscope.base.columns import pick
from overlapscope.base.grouping import distinct, distinct_rows, first_of_each, groups_of, rows_by
from overlapscope.base.intervals import I64, Bool, Intervals, covered, cut, intersect, side_by_side, union
from overlapscope.base.words import clean
from overlapscope.catalog.causes import FOUND, Subject
from overlapscope.trace.host import (
    MODULE,
    Blocking,
    Sites,
    around,
    launches_graphs,
    modules_called,
    sites,
    sites_of_calls,
)
from overlapscope.trace.model import GpuOps, Kind, Memory, Trace
from overlapscope.trace.op_names import looks_like_communication, short_kernel

LARGE_BYTES = 1 << 20
"""Minimum size at which latency is negligible and bandwidths can be compared."""


_NEVER = np.iinfo(np.int64).max
_DIRECTIONS: dict[Kind, CopyDirection] = {Kind.H2D: "h2d", Kind.D2H: "d2h", Kind.P2P: "p2p"}


# -- Places of ops, launched or captured ---------------------------------------------------------------


def sites_of_ops(trace: Trace, ops: GpuOps, call: I64 | None = None) -> Sites:
    """Return the sites of the calls that launched some ops, or of other calls that are to blame for them.

    If an op's graph was launched by that call, its op and line are those of the capture, as far as known.
    """
    call = ops.launch if call is None else call
    sites = sites_of_calls(trace, call)
    if not launches_graphs(trace):
        return sites
    from overlapscope.analysis.graphs import origins_of

    captured, own = origins_of(trace, ops), call == ops.launch
    op, line = (
        np.where(own & (mine >= 0), mine, theirs)
        for mine, theirs in ((captured.op, sites.op), (captured.line, sites.line))
    )
    return Sites(op, sites.call, line)


def modules_of(trace: Trace, ops: GpuOps) -> tuple[I64, tuple[str, ...]]:
    """Return the classes of the modules in which ops were launched or captured.

    Returns:
        The class of each op's module, such as `Linear`, as a row of the second value; -1 if unknown.
    """
    calls, modules = trace.runtime_calls, modules_called(trace)
    if not len(modules) and not trace.captures:
        return np.full(len(ops), -1, np.int64), ()
    name = pick(modules.name_id, around(modules, pick(calls.thread, ops.launch), pick(calls.start_ns, ops.launch)))
    if launches_graphs(trace):
        from overlapscope.analysis.graphs import origins_of

        captured = origins_of(trace, ops).module
        name = np.where(captured >= 0, captured, name)
    ids = distinct(name[name >= 0])
    classes = [trace.names[number].removeprefix(MODULE).rpartition("_")[0] for number in ids.tolist()]
    different = tuple(dict.fromkeys(classes))
    number = np.array([different.index(each) for each in classes], np.int64)
    return pick(number, np.where(name >= 0, np.searchsorted(ids, name), -1)), different


# -- Groups ------------------------------------------------------------------------------------------


def group_copies(timeline: Timeline, steps: Periods, windows: Intervals) -> tuple[CopyGroup, ...]:
    """Return copies inside disjoint windows by direction, memory kinds, devices and stream, the longest group first.

    Copies within the device are left out.

    Times are cut at the windows' edges; counts, bytes and bandwidth are of whole copies.
    """
    ops = timeline.ops
    rows = np.flatnonzero(ops.is_copy | (ops.kind == Kind.P2P))
    rows = rows[_runs_inside(ops.start_ns[rows], ops.end_ns[rows], windows)]
    if not len(rows):
        return ()
    start, end, kind, size = ops.start_ns[rows], ops.end_ns[rows], ops.kind[rows], ops.bytes[rows]
    peers = (np.where(kind == Kind.P2P, device[rows], -1) for device in (ops.source_device, ops.target_device))
    alike = (kind, ops.source_kind[rows], ops.target_kind[rows], *peers, ops.stream[rows])
    group, keys = groups_of(alike), distinct_rows(alike)
    ran = [intersect(union(start[which], end[which]), windows) for _, which in rows_by(group)]
    alone = timeline.exposed_copy, timeline.exposed_p2p
    exposed = [intersect(when, alone[key[0] == Kind.P2P]) for key, when in zip(keys, ran, strict=True)]
    sums, sized = _Sums(len(keys), timeline.judged_from_ns, steps), size >= 0
    figures = {
        "count": sums.begun(group, start, np.ones_like(start)),
        "bytes": sums.begun(group, start, np.where(sized, size, 0)),
        "duration_ns": sums.begun(group, start, np.where(sized, end - start, 0)),
        "time_ns": sums.lasting(*_numbered(ran)),
        "exposed_ns": sums.lasting(*_numbered(exposed)),
    }
    groups, has_size = [], np.bincount(group, sized, len(keys)) > 0
    for number, (of_kind, source_kind, target_kind, source, target, stream) in enumerate(keys):
        fields = _fields(number, CopiesByStep, figures)
        moved, took, known = fields.pop("bytes"), fields.pop("duration_ns"), bool(has_size[number])
        groups.append(
            CopyGroup(
                direction=_DIRECTIONS[Kind(of_kind)],
                source_kind=Memory(source_kind).name.lower(),
                target_kind=Memory(target_kind).name.lower(),
                source_device=source if source >= 0 else None,
                target_device=target if target >= 0 else None,
                stream=stream,
                bytes=moved if known else None,
                gb_per_s=moved / took if known and took else None,
                **fields,
            )
        )
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.direction, group.stream)))


def _numbered(sets: Sequence[Intervals]) -> tuple[I64, I64, I64]:
    """Return the number of the set of each interval of several sets, its start and its end."""
    number = np.repeat(np.arange(len(sets)), [len(each.starts) for each in sets])
    return number, np.concatenate([each.starts for each in sets]), np.concatenate([each.ends for each in sets])


def _runs_inside(start: I64, end: I64, windows: Intervals) -> Bool:
    """Select intervals that share an instant with a window; an empty interval may lie on either edge of it."""
    # The first window that ends after the interval's start must begin before its end.
    following = pick(windows.starts, np.searchsorted(windows.ends, start, side="right"), _NEVER)
    ended_at_once = pick(windows.ends, np.searchsorted(windows.ends, start, side="left")) == start
    inside: Bool = (following < end) | (start == end) & ((following <= start) | ended_at_once)
    return inside


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
    duration = ops.end_ns[rows] - ops.start_ns[rows]
    examples = _longest(group, duration)
    sums = _Sums(len(examples), timeline.judged_from_ns, steps)
    weights = {"count": np.ones_like(duration), "time_ns": duration, "exposed_ns": _exposed(timeline, rows)}
    figures = {name: sums.begun(group, ops.start_ns[rows], weight) for name, weight in weights.items()}
    unclear = (ops.kind[rows] == Kind.COMPUTE) & ops.named(looks_like_communication)[rows]
    groups = []
    for number, example in enumerate(examples.tolist()):
        row, place = int(rows[example]), site.site_at(trace, example)
        groups.append(
            KernelGroup(
                kernel=ops.name(row),
                op=place.op,
                module=modules[module[example]] if module[example] >= 0 else UNSET,
                where=place.line,
                stream=int(ops.stream[row]),
                comm=bool(ops.kind[row] == Kind.COMM),
                unclear=bool(unclear[example]),
                example=Window(start_ns=int(ops.start_ns[row]), end_ns=int(ops.end_ns[row])),
                **_fields(number, KernelsByStep, figures),
            )
        )
    return tuple(sorted(groups, key=lambda group: (-group.time_ns, group.kernel, group.op or "", group.module or "")))


def _longest(group: I64, length: I64) -> I64:
    """Return the longest member of each group, the first of several. Sorting would take ten times as long."""
    longest, first = np.full((2, int(group.max()) + 1), -1)
    np.maximum.at(longest, group, length)
    is_longest = np.flatnonzero(length == longest[group])[::-1]
    first[group[is_longest]] = is_longest
    return first


def _exposed(timeline: Timeline, rows: I64) -> I64:
    """Return the time of each kernel, given as rows of `Timeline.ops`, in which no other kernel computed."""
    ops = timeline.ops
    computing = np.flatnonzero(ops.kind == Kind.COMPUTE)
    beside = side_by_side(ops.start_ns[computing], ops.end_ns[computing])
    exposed = ops.end_ns[rows] - ops.start_ns[rows]
    for kind, hiding in ((Kind.COMPUTE, beside), (Kind.COMM, timeline.compute)):
        which = np.flatnonzero(ops.kind[rows] == kind)
        exposed[which] -= covered(hiding, ops.start_ns[rows[which]], ops.end_ns[rows[which]])
    return exposed


def caused_by_calls(trace: Trace, idle: IdleTime) -> I64:
    """Return the idle time that each runtime call is blamed for."""
    caused = np.zeros(len(trace.runtime_calls), np.int64)
    blamed = idle.take(idle.blames_call)
    np.add.at(caused, blamed.call, blamed.length_ns)
    return caused


def find_stalls(
    trace: Trace, timeline: Timeline, blocking: Blocking, idle: IdleTime, steps: Periods, windows: Intervals
) -> tuple[HostStall, ...]:
    """Return blocking calls inside the windows by call, op, thread and line, costliest first.

    Over all stalls, `idle_caused_ns` adds up to the idle time of the causes host-sync, allocation and host-staging
    inside the windows, except for time that `pin_memory` spent outside any call.
    """
    calls = trace.runtime_calls
    idle = idle.inside(windows)
    caused, blamed = caused_by_calls(trace, idle), idle.take(idle.blames_call)
    elsewhere, start = wait_for_other_devices(trace, timeline)[blocking.row], calls.start_ns[blocking.row]
    # The first window that ends after the call's start must begin before its end.
    following = pick(windows.starts, np.searchsorted(windows.ends, start, side="right"), _NEVER)
    rows = blocking.row[(following < calls.end_ns[blocking.row]) & ~elsewhere | (caused[blocking.row] > 0)]
    sites, start, end = sites_of_calls(trace, rows), calls.start_ns[rows], calls.end_ns[rows]
    group_of = np.full(len(calls), -1, np.int64)
    group_of[rows] = group = groups_of((sites.call, sites.op, calls.thread[rows], sites.line))
    first = first_of_each(group)
    sums = _Sums(len(first), timeline.judged_from_ns, steps)
    counts, waits = sums.begun(group, start, np.ones_like(start)), sums.lasting(group, start, end)
    costs = sums.lasting(group_of[blamed.call], blamed.start_ns, blamed.end_ns)
    figures = {"count": counts, "host_wait_ns": waits, "idle_caused_ns": costs}
    stalls = []
    for number in np.argsort(first).tolist():
        row = int(first[number])
        site = sites.site_at(trace, row)
        stalls.append(
            HostStall(
                call=site.call or "",
                op=site.op,
                thread=int(calls.thread[rows[row]]),
                judged_count=counts[number][1],
                judged_wait_ns=waits[number][1],
                where=site.line,
                **_fields(number, StallsByStep, figures, judged=False),
            )
        )
    return tuple(
        sorted(stalls, key=lambda stall: (-stall.idle_caused_ns, -stall.host_wait_ns, stall.call, stall.thread))
    )


class _Sums(NamedTuple):
    """Sums over groups. A group's row has the sum over all time, that after the lead-in, and that of each step."""

    groups: int
    judged_from_ns: int
    steps: Periods

    def begun(self, group: I64, at_ns: I64, weight: I64) -> list[list[int]]:
        """Return the weights of each group's members, which count where they begin."""
        judged = np.where(at_ns >= self.judged_from_ns, weight, 0)
        return self._rows((group, weight, judged), (group, self.steps.at(at_ns), weight))

    def lasting(self, group: I64, start_ns: I64, end_ns: I64) -> list[list[int]]:
        """Return the time of each group's intervals, cut at the end of the lead-in and at the steps' edges."""
        piece, begin, stop = cut(start_ns, end_ns, Intervals(self.steps.start_ns, self.steps.end_ns))
        judged = np.maximum(end_ns - np.maximum(start_ns, self.judged_from_ns), 0)
        return self._rows((group, end_ns - start_ns, judged), (group[piece], self.steps.at(begin), stop - begin))

    def _rows(self, whole: tuple[I64, I64, I64], by_step: tuple[I64, I64, I64]) -> list[list[int]]:
        """Return the rows. Members of group -1, and those outside of steps, are left out."""
        group, weight, judged = whole
        sums, known = np.zeros((self.groups, 2 + len(self.steps)), np.int64), group >= 0
        np.add.at(sums[:, 0], group[known], weight[known])
        np.add.at(sums[:, 1], group[known], judged[known])
        group, step, weight = by_step
        inside = (group >= 0) & (step >= 0)
        np.add.at(sums, (group[inside], 2 + step[inside]), weight[inside])
        rows: list[list[int]] = sums.tolist()
        return rows


def _fields(
    number: int, by_step: Callable[..., Any], figures: Mapping[str, list[list[int]]], *, judged: bool = True
) -> dict[str, Any]:
    """Return the figures of a group as fields of its structure, of which `by_step` is one."""
    rows = {name: figure[number] for name, figure in figures.items()}
    fields: dict[str, Any] = {name: row[0] for name, row in rows.items()}
    if judged:
        fields |= {f"judged_{name}": row[1] for name, row in rows.items()}
    return fields | {"by_step": by_step(**{name: tuple(row[2:]) for name, row in rows.items()})}


# -- Evidence for causes -----------------------------------------------------------------------------

MAX_EVIDENCE_ROWS = 40
"""Maximum number of rows of evidence per device and subject; the largest are kept. Totals of causes are always
complete."""


def find_evidence(
    trace: Trace, timeline: Timeline, subject: Subject, pieces: Exposed | IdleTime, steps: Periods, windows: Intervals
) -> list[Evidence]:
    """Return the evidence for the causes of time inside the windows: the largest groups of its pieces.

    Pieces are grouped by cause, by the call, op and line to blame, and by memory kinds and stream of copies, or by
    collective and process group of communication.
    """
    pieces, ops, causes = pieces.inside(windows), timeline.ops, FOUND[subject]
    if not len(pieces):
        return []
    if isinstance(pieces, IdleTime):
        where, held_by = sites(trace, pieces.call, pieces.thread, pieces.host_ns), np.full(len(pieces), -1)
    else:
        where, held_by = sites_of_ops(trace, ops.take(pieces.op), pieces.call), pieces.held_by
    label, labels = _labels(trace, ops, subject, pieces)
    length = pieces.length_ns
    group = groups_of((pieces.cause, label, where.call, where.op, where.line))
    sums = _Sums(int(group.max()) + 1, timeline.judged_from_ns, steps)
    counts = sums.begun(group, pieces.start_ns, np.ones_like(length))
    times = sums.lasting(group, pieces.start_ns, pieces.end_ns)
    example = _longest(group, length)
    sure = np.full(sums.groups, EXACT, np.int64)
    np.minimum.at(sure, group, pieces.confidence)
    evidence = []
    for number in np.lexsort((pieces.start_ns[example], np.array([-row[0] for row in times])))[
        :MAX_EVIDENCE_ROWS
    ].tolist():
        first = int(example[number])
        site, cause, what = where.site_at(trace, first), causes[pieces.cause[first]], labels[label[first]]
        evidence.append(
            Evidence(
                subject=subject,
                cause=cause,
                op=site.op,
                call=site.call,
                where=site.line,
                detail=f"{what}: {cause.words.evidence}" if what else cause.words.evidence,
                copies=what if subject == "exposed-copy" else None,
                collective=what if subject == "exposed-comm" else None,
                waited_for=clean(short_kernel(ops.name(held_by[first])), 120) if held_by[first] >= 0 else None,
                confidence="exact" if sure[number] == EXACT else "rebuilt",
                example=Window(start_ns=int(pieces.start_ns[first]), end_ns=int(pieces.end_ns[first])),
                **_fields(number, EvidenceByStep, {"count": counts, "time_ns": times}, judged=False),
            )
        )
    return evidence


def _labels(
    trace: Trace, ops: GpuOps, subject: Subject, pieces: Exposed | IdleTime
) -> tuple[I64, Sequence[str | None]]:
    """Return the number of what runs in each piece, and its words: memory kinds and stream, or the collective."""
    if isinstance(pieces, IdleTime) or subject == "exposed-other":
        return np.zeros(len(pieces), np.int64), [None]
    if subject == "exposed-copy":
        columns = [column[pieces.op] for column in (ops.source_kind, ops.target_kind, ops.stream)]
        names = [name.lower() for name in Memory.__members__]
        return groups_of(columns), [
            f"{names[source]} to {names[target]} on stream {stream}"
            for source, target, stream in distinct_rows(columns)
        ]
    from overlapscope.analysis.collectives import comm_kinds

    collectives = distinct(pieces.op)
    found = comm_kinds(trace, ops.take(collectives))
    return found.kind[np.searchsorted(collectives, pieces.op)], [kind.words for kind in found.kinds]

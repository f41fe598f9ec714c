"""Assignment of exposed copies, exposed memory work of the GPU and idle time to rules.

All are cut into pieces, and each piece goes to at most one rule, so that the costs of the rules never count the same
time twice. Time in the lead-in goes to none.

Exposed copies:

- one of many tiny copies, whatever the cause: `tiny-copies`;
- `no-compute`: none, because no order of the same work hides it;
- `pageable-memory`, `same-stream`: the rule for that cause;
- `event-wait`, `engine-busy`, `late-issue`: `late-prefetch`;
- `host-sync`: `blocking-copy` if the host waited for a copy it had just made, `pageable-memory` if that copy reads
  pageable memory, otherwise `host-sync`.

Exposed memory work in and between GPUs: the rule of its kind. Memsets and copies of unknown direction have none.

Idle time:

- launch-latency, dispatch or Python from op to op, and ended by one of many tiny copies: `tiny-copies`;
- while the host page-locks memory, or fills it inside `pin_memory`: `pin-in-loop`;
- `host-sync`: as for copies; other `host-staging`: `pageable-memory`;
- every other cause of the host's: the rule of its name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.average import judged_steps
from overlapscope.analysis.device import DeviceAnalysis, judged_windows
from overlapscope.analysis.facts import select, together
from overlapscope.analysis.figures import Window
from overlapscope.analysis.idle import LAUNCH_PACE_NS
from overlapscope.analysis.measured import Buckets, Engines, Overlap, figures_of
from overlapscope.analysis.timeline import Timeline, lengths
from overlapscope.base.columns import Columns, mask_of, pick
from overlapscope.base.grouping import among, distinct, groups_of, rows_by
from overlapscope.base.intervals import EMPTY, I64, Bool, Intervals, covered, cut, expand, join, union
from overlapscope.base.words import duration, each, fill, size
from overlapscope.catalog.causes import (
    CAUSES,
    COPY_CAUSES,
    COPY_RANK,
    IDLE_CAUSES,
    IDLE_RANK,
    OTHER_CAUSES,
    CopyCause,
    IdleCause,
)
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.rules.finding import MIN_COST_SHARE
from overlapscope.trace import calls as call_kinds
from overlapscope.trace.host import Sites, Where, around, inside_named, op_of, pinning, place_edges, sites
from overlapscope.trace.model import Kind, Memory, Trace
from overlapscope.trace.op_names import op_words

MIN_TINY_COPIES = 32
"""Minimum number of tiny copies that are worth joining."""

_LOOKED_UP = 2000
"""Maximum number of pieces whose op and line are looked up; the longest ones are taken."""

_RULES = sorted(
    {cause.rule for causes in CAUSES.values() for cause in causes.values() if cause.rule}
    | {"tiny-copies", "blocking-copy", "pin-in-loop"}
)
_NUMBER = {rule: number for number, rule in enumerate(_RULES)}
_NO_RULE = -1


class Place(Struct, frozen=True, eq=False):
    """An op, call and line, and the time claimed there."""

    where: Where
    time_ns: int
    count: int
    """Number of calls, or of pieces where no call is known."""


class ClaimedPieces(Columns, frozen=True):
    """Pieces of exposed copies, exposed memory work of the GPU and idle time, one row each."""

    start_ns: I64
    end_ns: I64
    rule: I64
    """Index into the rules; -1 for none."""
    cause: I64
    """Index into `COPY_CAUSES`, `OTHER_CAUSES` or `IDLE_CAUSES`."""
    copy: I64
    """Row of `Timeline.ops` of the exposed copy; -1 for anything else."""
    call: I64
    """Row in `Trace.runtime_calls` of the call that explains it; -1 if unknown."""
    at_ns: I64
    """Host time at which to look up the op and the line."""
    thread: I64
    """Thread on which to look them up; -1 if unknown."""
    blames_call: Bool
    """True for copies and blocking calls, whose place is `call`; other places are looked up at `at_ns`."""
    gap: I64
    """Row of `Timeline.idle` of the idle gap; -1 for anything else."""

    @classmethod
    def of_calls(cls, trace: Trace, call: I64, **columns: Any) -> ClaimedPieces:
        """Return pieces of exposed time, each explained by a call. Unless `columns` have it, they are of no copy."""
        calls = trace.runtime_calls
        at, thread = pick(calls.start_ns, call, 0), pick(calls.thread, call)
        usual: dict[str, Any] = {"copy": -1, "gap": -1, "blames_call": True}
        return cls.filled(**usual | {"call": call, "at_ns": at, "thread": thread} | columns)

    @property
    def length_ns(self) -> I64:
        return self.end_ns - self.start_ns

    @property
    def time_ns(self) -> int:
        return int(self.length_ns.sum())

    @property
    def exposed_ns(self) -> int:
        """Exposed copy time."""
        return int(self.length_ns[self.copy >= 0].sum())

    @property
    def idle_ns(self) -> int:
        """Idle time."""
        return int(self.length_ns[self.gap >= 0].sum())

    @property
    def copies(self) -> I64:
        """Rows of `Timeline.ops` of the exposed copies, each once."""
        return distinct(self.copy[self.copy >= 0])

    @property
    def gaps(self) -> int:
        """Number of idle gaps that any of the pieces is in."""
        return _gaps(self.gap)

    @property
    def example(self) -> Window | None:
        """The longest piece."""
        if not len(self.start_ns):
            return None
        row = int(np.argmax(self.length_ns))
        return Window(start_ns=int(self.start_ns[row]), end_ns=int(self.end_ns[row]))

    def with_copy_cause(self, cause: CopyCause) -> ClaimedPieces:
        """Return the exposed copies with the given cause."""
        return self.take((self.copy >= 0) & (self.cause == COPY_RANK[cause]))

    def places(self, trace: Trace, elsewhere: I64) -> tuple[Place, ...]:
        """Return the places in the program, costliest first. Calls `elsewhere` are in no count."""
        # Look-ups in order of time are faster.
        rows = np.sort(np.argsort(-self.length_ns, kind="stable")[:_LOOKED_UP])
        placed = rows[self.thread[rows] >= 0] if (trace.runtime_calls.thread >= 0).all() else rows
        if not len(placed):
            return ()
        blames_call = self.blames_call[placed]
        parts = ClaimedPieces.joined(
            [self.take(placed[blames_call]), _cut_by_place(self.take(placed[~blames_call]), trace)]
        )
        where = sites(trace, parts.call, parts.thread, parts.at_ns)
        # Places whose names look the same in words are one place.
        rows_by_site: dict[Where, list[I64]] = {}
        for _, alike in rows_by(groups_of((where.op, where.call, where.line, parts.blames_call.astype(np.int64)))):
            site = where.site_at(trace, int(alike[0]))
            call = site.call if parts.blames_call[alike[0]] or not site.op else None
            in_words = replace(site, op=op_words(site.op), call=call)
            rows_by_site.setdefault(in_words, []).append(alike)
        length_ns = parts.length_ns
        places = [_place(trace, parts, length_ns, where, groups, elsewhere) for groups in rows_by_site.values()]
        return tuple(sorted(places, key=lambda p: (-p.time_ns, str(p.where))))


def _place(
    trace: Trace, parts: ClaimedPieces, length_ns: I64, where: Sites, groups: list[I64], elsewhere: I64
) -> Place:
    """Return the place of rows of pieces, in groups of the same names. Its names are those that took most time."""

    def time_ns(rows: I64) -> int:
        return int(length_ns[rows].sum())

    rows = np.concatenate(groups)
    site = where.site_at(trace, int(max(groups, key=time_ns)[0]))
    called = rows[parts.call[rows] >= 0]
    call = parts.call[called]
    if site.call is None and len(called):
        # The op spent time in calls, and more time around them.
        names = trace.runtime_calls.name_id[call]
        site = replace(site, call=trace.names[int(np.argmax(np.bincount(names, weights=length_ns[called])))])
    if parts.blames_call[rows].all() and len(called):
        count = max(1, len(distinct(call[~among(call, elsewhere)])))
    else:
        count = _gaps(parts.gap[rows]) or len(rows)
    return Place(site, time_ns(rows), count)


def _gaps(gap: I64) -> int:
    return len(distinct(gap[gap >= 0]))


def _cut_by_place(pieces: ClaimedPieces, trace: Trace) -> ClaimedPieces:
    """Return the pieces cut where the op, the call or the user's line of their thread changes, with the call of each.

    A piece of host time may be long, and hold more than the place at which it begins.
    """
    row, at = [np.arange(len(pieces.start_ns))], [pieces.at_ns]
    for thread, of_thread in rows_by(pieces.thread):
        begin = pieces.at_ns[of_thread]
        end = begin + pieces.length_ns[of_thread]
        edges = place_edges(trace, thread, union(begin, end))
        which, edge = expand(np.searchsorted(edges, begin, side="right"), np.searchsorted(edges, end, side="left"))
        row.append(of_thread[which])
        at.append(edges[edge])
    rows, ats = np.concatenate(row), np.concatenate(at)
    order = np.lexsort((ats, rows))
    rows, ats = rows[order], ats[order]
    start = pieces.start_ns[rows] + ats - pieces.at_ns[rows]
    last = np.append(rows[1:] != rows[:-1], True)[: len(rows)]
    end = np.where(last, pieces.end_ns[rows], np.append(start, 0)[1:])
    call = around(trace.runtime_calls, pieces.thread[rows], ats)
    return replace(pieces.take(rows), start_ns=start, end_ns=end, at_ns=ats, call=call)


class Claims(Struct, frozen=True, eq=False, weakref=True):
    """All pieces of one device inside the judged windows, as given to the rules."""

    analysis: TraceAnalysis
    device: DeviceAnalysis
    pieces: ClaimedPieces
    windows: Intervals
    """Judged windows: the judged steps, or else the analyzed windows without the lead-in."""
    steps: int
    """Number of judged steps; 0 if the windows are not divided into steps."""
    judged_ns: int
    """Length of the judged windows."""
    buckets: Buckets
    """Buckets of the judged windows together."""
    engines: Engines
    """Engines in the judged windows together."""
    overlap: Overlap
    """Overlap in an average step; without steps, in the judged windows."""
    tiny: I64
    """Rows of `Timeline.ops` of tiny copies in the windows; empty if there are fewer than `MIN_TINY_COPIES`."""
    blocking: I64
    """Rows of `Timeline.ops` of copies of pinned memory that the host waited for at once."""
    copies: I64
    """Rows of `Timeline.ops` of the copies that run in the windows."""

    @property
    def trace(self) -> Trace:
        return self.analysis.trace

    @property
    def gpu(self) -> str:
        return self.trace.gpu

    def filled(self, text: str) -> str:
        """Return a text with the words for the device in its fields."""
        return fill(text, self.gpu)

    def matters(self, cost_ns: int) -> bool:
        """Return whether a cost is high enough to be worth a warning."""
        return cost_ns > 0 and cost_ns >= MIN_COST_SHARE * self.judged_ns

    @property
    def a_step(self) -> str:
        """The words ` a step` after a figure of an average step; empty without steps."""
        return " a step" if self.steps else ""

    def time(self, ns: int) -> str:
        """Return a time of an average step, in words; without steps, the time itself."""
        return duration(ns / max(1, self.steps))

    def time_a_step(self, ns: int) -> str:
        """Return `time`, with the words ` a step` where it is of a step."""
        return f"{self.time(ns)}{self.a_step}"

    def waits(self, pieces: ClaimedPieces) -> str:
        """Return how long the device waits in pieces, such as `The GPU waits 1.20 ms a step`."""
        return f"The {self.gpu} waits {self.time_a_step(pieces.time_ns)}"

    def times_a_step(self, count: int, noun: str) -> str:
        """Return `times`, with the words ` a step` where it is of a step."""
        return f"{self.times(count, noun)}{self.a_step}"

    def times(self, count: int, noun: str) -> str:
        """Return how many of something an average step has: `2 gaps`, `2.5 gaps`; without steps, how many there are."""
        return each(count, max(1, self.steps), noun)

    def size(self, count: int) -> str:
        """Return the bytes of an average step, in words; without steps, all bytes."""
        return size(round(count / max(1, self.steps)))

    def places(self, pieces: ClaimedPieces) -> tuple[Place, ...]:
        """Return the places of pieces in the program, costliest first."""
        # The call of a step's first copy may begin in the step before, on the device's clock.
        launch = self.device.timeline.ops.launch
        launched = launch[self.device.timeline.ops.is_copy]
        return pieces.places(self.trace, launched[~among(launched, launch[self.copies])])

    def ran(self, ops: I64) -> I64:
        """Return those of the given rows of `Timeline.ops` that run at any moment of the windows."""
        of_device = self.device.timeline.ops
        row, _, _ = cut(of_device.start_ns[ops], of_device.end_ns[ops], self.windows)
        return ops[distinct(row)]

    def copies_of(self, pieces: ClaimedPieces) -> I64:
        """Return the copies that are exposed in pieces, or that a call launched which pieces blame."""
        launch = self.device.timeline.ops.launch[self.copies]
        blamed = among(launch, pieces.call[pieces.blames_call]) & (launch >= 0)
        return self.copies[blamed | among(self.copies, pieces.copies)]

    def of(self, rule: str) -> ClaimedPieces:
        """Return the pieces of a rule."""
        return self.pieces.take(self.pieces.rule == _NUMBER[rule])

    def concern(self, rule: str) -> bool:
        """Return whether a rule may have findings: not if it is only about time of which it was assigned none."""
        if rule == "exposed-comm":
            return self.buckets.exposed_comm_ns > 0
        # Migrations cost time beside kernels, too.
        return rule not in _NUMBER or rule == "page-migration" or bool((self.pieces.rule == _NUMBER[rule]).any())

    def unhideable(self) -> ClaimedPieces:
        """Exposed copies with cause no-compute that belong to no rule."""
        exposed = self.pieces.with_copy_cause(CopyCause.NO_COMPUTE)
        return exposed.take(exposed.rule == _NO_RULE)


def share_out(analysis: TraceAnalysis, device: DeviceAnalysis) -> Claims:
    """Assign a device's exposed copies, exposed memory work and idle time to rules."""
    trace, timeline = analysis.trace, device.timeline
    windows, per_step = judged_windows(device), device.result.per_step
    waits = _find_copy_waits(trace, timeline)
    ops = timeline.ops
    copies = np.flatnonzero(ops.is_copy)
    copies = copies[covered(windows, ops.start_ns[copies], ops.end_ns[copies]) > 0]
    tiny = _tiny_copies(trace, timeline, copies)
    claims = [claim(trace, device, windows, waits, tiny) for claim in (_claim_other, _claim_copies, _claim_idle)]
    pieces = ClaimedPieces.joined(claims)
    pieces = pieces.take(np.argsort(pieces.start_ns, kind="stable"))
    judged = int((windows.ends - windows.starts).sum())
    steps = judged_steps(device.result) if per_step is not None else ()
    figures = figures_of(together(select(device.facts, [*steps]) if steps else lengths(timeline, *windows)))
    return Claims(
        analysis,
        device,
        pieces,
        windows,
        0 if per_step is None else per_step.steps,
        judged,
        figures["buckets"],
        figures["engines"],
        figures["overlap"] if per_step is None else per_step.overlap,
        tiny,
        np.flatnonzero(waits.copy),
        copies,
    )


class _CopyWaits(Struct, frozen=True, eq=False):
    """Calls in which `copy_` waits for the copy it has just made."""

    pinned: Bool
    """Mask of the runtime calls that wait for a copy that need not block."""
    pageable: Bool
    """Mask of the runtime calls that wait for an upload from pageable memory."""
    copy: Bool
    """Mask of the ops that are copies of pinned memory that the host waits for."""


def _find_copy_waits(trace: Trace, timeline: Timeline) -> _CopyWaits:
    """Find the calls in which a copy waits for itself.

    PyTorch synchronizes the stream inside `aten::copy_` if `non_blocking` is not set
    (aten/src/ATen/native/cuda/Copy.cu). Other runtimes call a copy that blocks by itself.

    Reading a value into ordinary memory (`.item()`, `.cpu()`) doesn't count, because the program needs the value there.

    Returns:
        Masks of those calls and copies.
    """
    ops, calls = timeline.ops, trace.runtime_calls
    rows = np.flatnonzero((ops.launch >= 0) & ops.is_copy)
    launch = ops.launch[rows]
    owner = np.full(len(calls), -1, np.int64)
    blocks = call_kinds.copies_blocking(calls)[launch] if len(calls) else np.zeros(0, np.bool_)
    owner[launch[blocks]] = rows[blocks]

    is_copying = trace.cpu_ops.named(lambda name: name == "aten::copy_")
    if is_copying.any():
        syncs = np.flatnonzero(call_kinds.synchronises(calls))
        order = np.argsort(calls.start_ns[launch], kind="stable")
        op_of_copy = op_of(trace, launch)[order]
        last = np.full(len(trace.cpu_ops) + 1, -1, np.int64)
        inside_op = op_of_copy >= 0
        last[op_of_copy[inside_op]] = rows[order][inside_op]
        op_of_sync = op_of(trace, syncs)
        copying = (op_of_sync >= 0) & pick(is_copying, op_of_sync, False)
        owner[syncs[copying]] = last[op_of_sync[copying]]

    owned = owner >= 0
    upload = ops.kind[owner] == Kind.H2D
    host_side = ops.host_memory[owner]
    pageable = owned & upload & (host_side == Memory.PAGEABLE)
    pinned = owned & ((host_side == Memory.PINNED) | upload & (host_side == Memory.UNKNOWN))
    return _CopyWaits(pinned, pageable, mask_of(owner[pinned], len(ops)))


def _tiny_copies(trace: Trace, timeline: Timeline, copies: I64) -> I64:
    ops, calls = timeline.ops, trace.runtime_calls
    rows = copies[(ops.bytes[copies] >= 0) & (ops.bytes[copies] < TINY_BYTES)]
    if len(rows) < MIN_TINY_COPIES:
        return rows[:0]
    # Single values that are read are a matter of synchronization, whatever their size.
    kept = ops.launch[rows] < 0
    launch = ops.launch[rows[~kept]]
    kept[~kept] = ~inside_named(trace, "aten::_local_scalar_dense", calls.thread[launch], calls.start_ns[launch])
    rows = rows[kept]
    return rows if len(rows) >= MIN_TINY_COPIES else rows[:0]


def _claim_copies(
    trace: Trace, device: DeviceAnalysis, windows: Intervals, waits: _CopyWaits, tiny: I64
) -> ClaimedPieces:
    exposed, ops, calls = device.exposed, device.timeline.ops, trace.runtime_calls
    row, start, end = cut(exposed.start_ns, exposed.end_ns, windows)
    cause, copy, call = exposed.cause[row].astype(np.int64), exposed.op[row], exposed.call[row]
    rule = np.array([_NUMBER.get(c.rule, _NO_RULE) for c in COPY_CAUSES])[cause]

    blocked = np.flatnonzero(cause == COPY_RANK[CopyCause.HOST_SYNC])
    if len(blocked):
        begin, stop = start[blocked], end[blocked]
        for rows, name in ((waits.pageable, "pageable-memory"), (waits.pinned, "blocking-copy")):
            waiting = union(calls.start_ns[rows], calls.end_ns[rows])
            rule[blocked[2 * covered(waiting, begin, stop) >= stop - begin]] = _NUMBER[name]
        rule[blocked[waits.copy[copy[blocked]]]] = _NUMBER["blocking-copy"]
        # The place to look at is the wait, not the copy.
        syncs = np.flatnonzero(call_kinds.synchronises(calls))
        last = np.searchsorted(calls.start_ns[syncs], stop, side="left") - 1
        call[blocked] = np.where(last >= 0, pick(syncs, last), call[blocked])

    judged = cause != COPY_RANK[CopyCause.LEAD_IN]
    rule[judged & mask_of(tiny, len(ops))[copy]] = _NUMBER["tiny-copies"]
    return ClaimedPieces.of_calls(trace, call, start_ns=start, end_ns=end, rule=rule, cause=cause, copy=copy)


def _claim_other(
    trace: Trace, device: DeviceAnalysis, windows: Intervals, waits: _CopyWaits, tiny: I64
) -> ClaimedPieces:
    pieces = device.exposed_other.inside(windows)
    rule = np.array([_NUMBER.get(cause.rule, _NO_RULE) for cause in OTHER_CAUSES])[pieces.cause]
    times = {"start_ns": pieces.start_ns, "end_ns": pieces.end_ns}
    return ClaimedPieces.of_calls(trace, pieces.call, rule=rule, cause=pieces.cause, **times)


def _claim_idle(
    trace: Trace, device: DeviceAnalysis, windows: Intervals, waits: _CopyWaits, tiny: I64
) -> ClaimedPieces:
    ops, calls = device.timeline.ops, trace.runtime_calls
    row, *parts = cut(device.idle.start_ns, device.idle.end_ns, windows)
    idle = device.idle.parts(row, *parts)
    cause, call, thread, start = idle.cause.astype(np.int64), idle.call, idle.thread, idle.start_ns
    rule = np.array([_NUMBER.get(c.rule, _NO_RULE) for c in IDLE_CAUSES])[cause]

    at_call = idle.blames_call
    sync = (cause == IDLE_RANK[IdleCause.HOST_SYNC]) & (call >= 0)
    rule[sync & pick(waits.pinned, call, False)] = _NUMBER["blocking-copy"]
    rule[sync & pick(waits.pageable, call, False)] = _NUMBER["pageable-memory"]
    rule[at_call & pick(call_kinds.pins(calls), call, False)] = _NUMBER["pin-in-loop"]
    launching = [IDLE_RANK[c] for c in (IdleCause.DISPATCH, IdleCause.LAUNCH_LATENCY)]
    tiny_launch = mask_of(ops.launch[tiny], len(calls) + 1)
    tiny_launch[-1] = False
    before_tiny = among(cause, launching) & tiny_launch[call]
    gaps = device.timeline.idle
    gap = np.searchsorted(gaps.starts, start, side="right") - 1
    if len(tiny):
        ended_by_tiny = among(gaps.ends, ops.start_ns[tiny])[gap]
        op_to_op = (cause == IDLE_RANK[IdleCause.PYTHON]) & (device.idle.length_ns[row] <= LAUNCH_PACE_NS)
        before_tiny |= op_to_op & ended_by_tiny
    rule[before_tiny] = _NUMBER["tiny-copies"]

    pins = around(pinning(trace), thread, idle.host_ns) >= 0
    rule[pins & (cause == IDLE_RANK[IdleCause.HOST_STAGING])] = _NUMBER["pin-in-loop"]
    at = np.where(at_call, pick(calls.start_ns, call, 0), idle.host_ns)
    where = np.where(at_call, pick(calls.thread, call), thread)
    of_copy = np.full(len(start), -1, np.int64)
    return ClaimedPieces(start, idle.end_ns, rule, cause, of_copy, call, at, where, at_call, gap)


def streams_of(timeline: Timeline, kind: Kind, windows: Intervals) -> dict[int, Intervals]:
    """Return the busy times of each stream that runs ops of the kind inside the windows."""
    ops = timeline.ops
    busy = {}
    for stream in distinct(ops.stream[ops.kind == kind]):
        on_stream = (ops.kind == kind) & (ops.stream == stream)
        _, start, end = cut(ops.start_ns[on_stream], ops.end_ns[on_stream], windows)
        if len(start):
            busy[int(stream)] = join(EMPTY, union(start, end))
    return busy

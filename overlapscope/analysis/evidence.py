"""Evidence: the calls, ops and lines a cause's time comes from."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import numpy as np

from overlapscope.analysis.causes import COPY_CAUSES, IDLE_CAUSES, CopyCause, IdleCause
from overlapscope.analysis.edges import EXACT
from overlapscope.analysis.exposed import ExposedCopies
from overlapscope.analysis.host import lines_around, ops_around
from overlapscope.analysis.idle import IdleTime
from overlapscope.analysis.results import Evidence, Window
from overlapscope.analysis.timeline import Timeline
from overlapscope.intervals import I64
from overlapscope.trace import Memory, Trace

MOST = 40
"""Rows of evidence kept per device and subject; the largest. The causes' totals are always complete."""

_COPY_DETAIL = {
    CopyCause.LEAD_IN: "ran while the device still worked off what was queued before the recording",
    CopyCause.PAGEABLE_MEMORY: "the host side is pageable: the driver stages it and the call blocks",
    CopyCause.NO_COMPUTE: "copies outlast compute in this step; this much cannot be hidden",
    CopyCause.SAME_STREAM: "runs in order with the compute of its own stream",
    CopyCause.EVENT_WAIT: "an event wait orders it against compute",
    CopyCause.HOST_SYNC: "the next compute was launched only after a blocking call had returned",
    CopyCause.ENGINE_BUSY: "queued behind copies of the same direction until compute had run out",
    CopyCause.LATE_ISSUE: "started right when it was issued, after the compute that could hide it",
    CopyCause.UNKNOWN: "no cause could be shown",
}
_IDLE_DETAIL = {
    IdleCause.HOST_SYNC: "launching resumed only after this call returned",
    IdleCause.LAUNCH_BOUND: "launches followed one another as fast as the host could issue them",
    IdleCause.DATA_LOADING: "the launching thread was inside the DataLoader's next",
    IdleCause.HOST_STAGING: "the host was pinning memory or staging a pageable copy",
    IdleCause.ALLOCATION: "the host was inside a memory call of the driver",
    IdleCause.HOST_COMPUTE: "the host ran CPU ops or Python without launching",
    IdleCause.EVENT_WAIT: "the next op was queued behind an event wait",
    IdleCause.PROFILER_OVERHEAD: "the profiler itself held the host",
    IdleCause.LAUNCH_LATENCY: "the time between a launch and its start, or between two queued ops",
    IdleCause.LEAD_IN: "in the lead-in, where ops may be missing",
    IdleCause.UNKNOWN: "no cause could be shown",
}


@dataclass
class _Group:
    time_ns: int = 0
    count: int = 0
    sure: int = EXACT
    longest: tuple[int, int] = (0, 0)

    def add(self, start: int, end: int, sure: int) -> None:
        self.time_ns += end - start
        self.count += 1
        self.sure = min(self.sure, sure)
        if end - start > self.longest[1] - self.longest[0]:
            self.longest = (start, end)


Pieces = TypeVar("Pieces", ExposedCopies, IdleTime)
_Key = tuple[int, str | None, str | None, str | None, str]


def copy_evidence(
    trace: Trace, timeline: Timeline, exposed: ExposedCopies, starts: I64, ends: I64
) -> list[Evidence]:
    """Exposed copies inside the given windows by cause and by what issued them."""
    exposed = _inside(exposed, starts, ends)
    ops, calls = timeline.ops, trace.runtime_calls
    launch = ops.launch[exposed.copy]
    op, line = _looked_up(trace, launch, np.append(calls.start_ns, 0)[launch], np.append(calls.thread, -1)[launch])
    groups: dict[_Key, _Group] = {}
    for i, (start, end, cause, copy) in enumerate(
        zip(
            exposed.start_ns.tolist(),
            exposed.end_ns.tolist(),
            exposed.cause.tolist(),
            exposed.copy.tolist(),
            strict=True,
        )
    ):
        memory = f"{Memory(ops.source_kind[copy]).name.lower()} to {Memory(ops.target_kind[copy]).name.lower()}"
        what = f"{memory} on stream {ops.stream[copy]}: {_COPY_DETAIL[COPY_CAUSES[cause]]}"
        key = (cause, op[i], calls.name(launch[i]) if launch[i] >= 0 else None, line[i], what)
        groups.setdefault(key, _Group()).add(start, end, int(exposed.confidence[i]))
    return _ranked("exposed-copy", [str(c) for c in COPY_CAUSES], groups)


def idle_evidence(trace: Trace, idle: IdleTime, starts: I64, ends: I64) -> list[Evidence]:
    """Idle time inside the given windows by cause and by what the host was doing."""
    idle = _inside(idle, starts, ends)
    calls = trace.runtime_calls
    op, line = _looked_up(trace, idle.thread, idle.host_ns, idle.thread)
    groups: dict[_Key, _Group] = {}
    for i, (start, end, cause, call) in enumerate(
        zip(idle.start_ns.tolist(), idle.end_ns.tolist(), idle.cause.tolist(), idle.call.tolist(), strict=True)
    ):
        key = (
            cause,
            op[i],
            calls.name(call) if call >= 0 else None,
            line[i],
            _IDLE_DETAIL[IDLE_CAUSES[cause]],
        )
        groups.setdefault(key, _Group()).add(start, end, int(idle.confidence[i]))
    return _ranked("idle", [str(c) for c in IDLE_CAUSES], groups)


def _inside(pieces: Pieces, starts: I64, ends: I64) -> Pieces:
    """The pieces that begin or end inside the windows, cut at their edges."""
    parts = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        rows = np.flatnonzero((pieces.end_ns > start) & (pieces.start_ns < end))
        columns = {f.name: getattr(pieces, f.name)[rows] for f in fields(pieces)}
        columns["start_ns"] = np.maximum(columns["start_ns"], start)
        columns["end_ns"] = np.minimum(columns["end_ns"], end)
        parts.append(columns)
    return replace(pieces, **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


def _looked_up(trace: Trace, known: I64, at: I64, thread: I64) -> tuple[list[str | None], list[str | None]]:
    """Op and line around each host instant; None where `known` is negative."""
    rows = np.flatnonzero(known >= 0)
    op: list[str | None] = [None] * len(known)
    line: list[str | None] = [None] * len(known)
    ops = ops_around(trace, thread[rows], at[rows])
    lines = lines_around(trace, thread[rows], at[rows])
    for row, one_op, one_line in zip(rows.tolist(), ops, lines, strict=True):
        op[row], line[row] = one_op, one_line
    return op, line


def _ranked(
    subject: Literal["exposed-copy", "idle"], causes: list[str], groups: dict[_Key, _Group]
) -> list[Evidence]:
    largest = sorted(groups.items(), key=lambda item: (-item[1].time_ns, str(item[0])))[:MOST]
    return [
        Evidence(
            subject=subject,
            cause=causes[cause],
            time_ns=group.time_ns,
            count=group.count,
            op=op,
            call=call,
            where=line,
            detail=detail,
            confidence="exact" if group.sure == EXACT else "rebuilt",
            example=Window(start_ns=group.longest[0], end_ns=group.longest[1]),
        )
        for (cause, op, call, line, detail), group in largest
    ]

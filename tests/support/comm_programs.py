"""Recordings of programs that compute and communicate, played as a device would run them, and what each one shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from overlapscope.catalog.causes import CommCause
from overlapscope.trace.model import Kind, Memory, Trace
from tests.support.helpers import MS, US, Host, Op, Wait, make_trace

CALL_NS = 4 * US
MAIN, COMM, OTHER = 7, 20, 30
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


class HostAct(NamedTuple):
    """What the host does: it launches, records or waits for an event on a stream, waits for a stream, or is busy."""

    what: str
    """`compute`, `comm`, `upload`, `record`, `wait`, `sync` or `busy`."""
    stream: int = MAIN
    ns: int = MS
    """Length of the op, or of the time in which the host is busy."""
    event: int = 0
    name: str = ""


_KINDS = {"compute": Kind.COMPUTE, "comm": Kind.COMM, "upload": Kind.H2D}


class Played(NamedTuple):
    """A recording, and which ops each op waited for, given by their numbers in the order of launches."""

    trace: Trace
    ops: list[Op]
    after: list[set[int]]
    """Ops that the program orders before each: by its stream and by events, without what follows from these."""


def play(program: Sequence[HostAct], **rest: Any) -> Played:
    """Return the recording of a program: each op begins once it is launched and everything before it has ended."""
    ops: list[Op] = []
    after: list[set[int]] = []
    calls, waits = [], []
    events: dict[int, tuple[int, int, int]] = {}
    """Stream, last op (or -1) and row of the call that recorded each event last."""
    last: dict[int, int] = {}
    pending: dict[int, set[int]] = {}
    now, row = 0, 0
    for act in program:
        begin, now = now, now + CALL_NS
        if act.what in _KINDS:
            before = {last[act.stream]} if act.stream in last else set[int]()
            before |= pending.pop(act.stream, set())
            start = max([now, *(ops[number].end + US for number in before)])
            size = 1 << 20 if act.what == "upload" else -1
            name = act.name or (NCCL if act.what == "comm" else act.what)
            last[act.stream] = len(ops)
            ops.append(
                Op(
                    _KINDS[act.what],
                    start,
                    start + act.ns,
                    act.stream,
                    (begin, now),
                    "cudaMemcpyAsync" if act.what == "upload" else "cudaLaunchKernel",
                    source=Memory.PINNED,
                    size=size,
                    name=name,
                )
            )
            after.append(before)
        elif act.what == "record":
            events[act.event] = (act.stream, last.get(act.stream, -1), row)
            calls.append(Host("cudaEventRecord", begin, now))
        elif act.what == "wait":
            # A wait for an event before which nothing ran can't be told from a wait for an unknown event.
            if act.event not in events or events[act.event][1] < 0:
                now = begin
                continue
            stream, op, recorded = events[act.event]
            waits.append(Wait(begin, act.stream, source_stream=stream, record_correlation=1000 + recorded))
            if stream != act.stream:
                pending.setdefault(act.stream, set()).add(op)
        elif act.what == "sync":
            now = max(now, ops[last[act.stream]].end + US if act.stream in last else now)
            calls.append(Host("cudaStreamSynchronize", begin, now))
        else:
            now = begin + act.ns
            continue
        row += 1
    return Played(make_trace(ops, calls=calls, waits=waits, **rest), ops, after)


def after(stream: int, source: int, event: int) -> list[HostAct]:
    """Return the acts that make a stream wait for all that was launched on another."""
    return [HostAct("record", source, event=event), HostAct("wait", stream, event=event)]


BEGIN = HostAct("compute", ns=MS, name="first")
LAST = HostAct("compute", ns=MS, name="last")

PLANTED: dict[CommCause, list[HostAct]] = {
    CommCause.SAME_STREAM: [BEGIN, HostAct("comm", MAIN), LAST],
    # The next compute needs nothing of the collective, but the host waits for it before it launches that.
    CommCause.HOST_SYNC: [BEGIN, *after(COMM, MAIN, 1), HostAct("comm", COMM), HostAct("sync", COMM), LAST],
    # The host does something else.
    CommCause.LATE_COMPUTE: [BEGIN, *after(COMM, MAIN, 1), HostAct("comm", COMM), HostAct("busy", ns=2 * MS), LAST],
    # Nothing keeps the collective from running beside the first kernel, but it is launched when that has ended.
    CommCause.LATE_ISSUE: [
        BEGIN,
        HostAct("busy", ns=MS),
        HostAct("comm", COMM),
        *after(MAIN, COMM, 1),
        LAST,
    ],
    # An earlier collective keeps it from running beside the first kernel.
    CommCause.BLOCKED_BEHIND: [
        BEGIN,
        HostAct("comm", COMM, 900 * US, name="ncclDevKernel_AllGather"),
        HostAct("comm", COMM, 800 * US),
        *after(MAIN, COMM, 1),
        LAST,
    ],
    # It waits for an upload that runs beside the first kernel.
    CommCause.WAITING_FOR_INPUT: [
        BEGIN,
        HostAct("upload", OTHER, 950 * US),
        *after(COMM, OTHER, 1),
        HostAct("comm", COMM, 800 * US),
        *after(MAIN, COMM, 2),
        LAST,
    ],
    # It runs beside a kernel that is shorter.
    CommCause.WAITING_OR_TRANSFER: [
        BEGIN,
        *after(COMM, MAIN, 1),
        HostAct("comm", COMM, 2 * MS),
        HostAct("compute", ns=MS // 2),
        *after(MAIN, COMM, 2),
        LAST,
    ],
    # Its input comes from the first kernel, and its result goes to the last one.
    CommCause.NO_COMPUTE: [BEGIN, *after(COMM, MAIN, 1), HostAct("comm", COMM), *after(MAIN, COMM, 2), LAST],
}
"""Programs whose communication is exposed for a single reason."""

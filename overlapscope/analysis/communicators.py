"""Order that a communicator keeps between its collectives, whatever their streams.

NCCL runs the collectives of a communicator one after the other. If they are on different streams, it makes the later
one's stream wait while the program launches it; such a wait is no wish of the program.
"""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.blockers import DeviceRecording
from overlapscope.analysis.comm_kinds import comm_kinds
from overlapscope.analysis.host import around
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.kept import kept
from overlapscope.trace.model import GpuOps, HostEvents, Kind, Trace


@kept()
def by_communicator(recording: DeviceRecording) -> Bool:
    """Select edges between collectives of one group whose wait was made by the launch of the later one."""
    trace, ops, edges = recording.trace, recording.timeline.ops, recording.edges
    source = edges.source
    both = (pick(ops.kind, source) == Kind.COMM) & (ops.kind[edges.held] == Kind.COMM)
    result: Bool = both & (ops.stream[source] != ops.stream[edges.held])
    rows = np.flatnonzero(result)
    if len(rows):
        group = _groups(trace, ops)
        held, calls = edges.held[rows], trace.runtime_calls
        inside = [
            around(_launching(trace), pick(calls.thread, call), pick(calls.start_ns, call))
            for call in (edges.wait[rows], ops.launch[held])
        ]
        result[rows] = (group[source[rows]] == group[held]) & (group[held] >= 0)
        result[rows] &= (inside[0] == inside[1]) & (inside[0] >= 0)
    return result


def _groups(trace: Trace, ops: GpuOps) -> I64:
    """Return the process group of each op, as a row of `Trace.names`; -1 where unknown."""
    comm = np.flatnonzero(ops.kind == Kind.COMM)
    group = np.full(len(ops), -1, np.int64)
    group[comm] = pick(trace.collectives.group, comm_kinds(trace, ops.take(comm)).row)
    return group


@kept()
def _launching(trace: Trace) -> HostEvents:
    """Return the ranges on the host in which PyTorch launches collectives (`nccl:all_reduce`, `nccl:coalesced`)."""
    notes = trace.annotations
    return notes.take(notes.named(lambda name: name.startswith("nccl:")))

"""Communication kernels that only their launch, their stream or the user's list of names shows.

A kernel's name is judged first (`trace/op_names.py`). A kernel of another name communicates if

- its own metadata states a collective, or the innermost op or range around its launch does nothing but communicate;
- or its name doesn't decide, and its stream runs nothing else but communication, or the op that launched it is named
  after a collective;
- or its name matches a regular expression of `communication` in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, Bool, Index, Intervals, expand, subtract, union
from overlapscope.reading.patterns import Patterns
from overlapscope.trace.model import Kind, Trace, stream_keys
from overlapscope.trace.op_names import looks_like_communication, may_communicate, names_collective, op_communicates


def with_communication(trace: Trace, patterns: Patterns) -> Trace:
    """Return the trace with all kernels as communication that are known to communicate."""
    ops = trace.gpu_ops
    kernels = ops.kind == Kind.COMPUTE
    known = _launched_in(trace, op_communicates) | among(ops.place, trace.collectives.place)
    if known.any():
        known &= ops.named(may_communicate)
    if patterns:
        known |= ops.named(lambda name: any(pattern.search(name) for pattern in patterns))
    known &= kernels
    unclear = kernels & ~known & ops.named(looks_like_communication)
    if unclear.any():
        stream = stream_keys(ops.device, ops.stream)
        beside = among(stream, stream[(ops.kind == Kind.COMM) | known])
        alone = beside & ~among(stream, stream[kernels & ~known & ~unclear])
        known |= unclear & (alone | _launched_in(trace, names_collective))
    if not known.any():
        return trace
    return replace(trace, gpu_ops=replace(ops, kind=np.where(known, np.int8(Kind.COMM), ops.kind)))


def _launched_in(trace: Trace, judge: Callable[[str], bool]) -> Bool:
    """Return a mask of the GPU ops whose launch lies directly in an op that passes, or in a range of a collective."""
    calls, ops, notes = trace.runtime_calls, trace.cpu_ops, trace.annotations
    passes, is_range = ops.named(judge), notes.named(lambda name: name.startswith("nccl:"))
    inside = np.zeros(len(calls), np.bool_)
    for thread in distinct(np.concatenate([ops.thread[passes], notes.thread[is_range]])).tolist():
        rows, ranges = np.flatnonzero(ops.thread == thread), np.flatnonzero(is_range & (notes.thread == thread))
        start, end, passing = ops.start_ns[rows], ops.end_ns[rows], passes[rows]
        around = union(
            np.concatenate([start[passing], notes.start_ns[ranges]]),
            np.concatenate([end[passing], notes.end_ns[ranges]]),
        )
        nested = _begun_in(around, start)
        nested = nested[~passing[nested]]
        directly = subtract(around, union(start[nested], end[nested]))
        of_thread = np.flatnonzero(calls.thread == thread)
        inside[of_thread[_begun_in(directly, calls.start_ns[of_thread])]] = True
    return pick(inside, trace.gpu_ops.launch, False)


def _begun_in(times: Intervals, start_ns: I64) -> Index:
    """Return the rows of a sorted column that lie inside some times. There are far fewer times than rows."""
    return expand(np.searchsorted(start_ns, times.starts), np.searchsorted(start_ns, times.ends))[1]

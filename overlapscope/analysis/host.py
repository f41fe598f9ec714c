"""What the host was doing: the op, call and Python line around an instant of a thread."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.periods import is_step
from overlapscope.intervals import I64, Bool, Index, Intervals, enclosing, union
from overlapscope.trace import HostEvents, Kind, Memory, Trace

_PYTHON_LINE = re.compile(r"(?P<file>.+\.py)\((?P<line>\d+)\): (?P<function>.+)", re.DOTALL)
_LIBRARY = re.compile(
    r"(^|/)(torch|importlib|threading\.py|contextlib\.py|functools\.py|runpy\.py)(/|\(|$)"
    r"|site-packages|dist-packages|/lib(64)?/python\d|^<"
)


@dataclass(frozen=True, slots=True, eq=False)
class Blocking:
    """Runtime calls in which the host waits. Rows of `Trace.runtime_calls`, by start."""

    row: I64
    allocation: Bool
    staging: Bool
    """Pageable copies and page-locking: the driver works on host memory."""


def find_blocking(trace: Trace) -> Blocking:
    """Every blocking call of the program; the profiler's own last synchronize is none of them.

    A copy call blocks by contract (`cudaMemcpy`), because its host side is pageable (CUDA Runtime API, "API
    synchronization behavior"), or, where the memory kind is not recorded, if it returned only after its copy
    had ended.
    """
    calls, ops = trace.runtime_calls, trace.gpu_ops
    sync = call_kinds.synchronises(calls)
    own = _profilers_own_sync(trace, sync)
    if own >= 0:
        sync[own] = False
    allocation = call_kinds.allocates(calls)
    blocking_copy = call_kinds.copies_blocking(calls)
    copies = np.flatnonzero((ops.launch >= 0) & ((ops.kind == Kind.H2D) | (ops.kind == Kind.D2H)))
    launch = ops.launch[copies]
    host_side = np.where(ops.kind[copies] == Kind.H2D, ops.source_kind[copies], ops.target_kind[copies])
    waited = (host_side == Memory.UNKNOWN) & (calls.end_ns[launch] >= ops.end_ns[copies])
    pageable = np.zeros(len(calls), np.bool_)
    pageable[launch[host_side == Memory.PAGEABLE]] = True
    blocking_copy[launch[waited]] = True
    pageable &= blocking_copy | call_kinds.copies_async(calls)
    pins = call_kinds.pins(calls) & _inside_pin_memory(trace)
    rows = np.flatnonzero(sync | allocation | blocking_copy | pageable)
    staging = (pageable | pins)[rows]
    return Blocking(rows.astype(np.int64), allocation[rows] & ~staging, staging)


def _profilers_own_sync(trace: Trace, sync: Bool) -> int:
    """Row of the device synchronize with which the profiler stops; -1 if the trace has none.

    It is the last call of all, a device synchronize, and lies outside every step, CPU op and Python frame of
    the program.
    """
    calls = trace.runtime_calls
    if not sync.any():
        return -1
    row = int(np.flatnonzero(sync)[-1])
    if "DeviceSynchronize" not in calls.name(row) or row != int(np.argmax(calls.end_ns)):
        return -1
    at, thread = calls.start_ns[row : row + 1], calls.thread[row : row + 1]
    inside = [trace.cpu_ops, trace.annotations.take(is_step(trace.annotations))]
    if any(around(table, thread, at)[0] >= 0 for table in inside):
        return -1
    frame = around(trace.python_frames, thread, at)[0]
    return -1 if frame >= 0 and "synchronize" in trace.python_frames.name(int(frame)) else row


def _inside_pin_memory(trace: Trace) -> Bool:
    names = trace.cpu_ops.names
    wanted = [i for i, name in enumerate(names) if name in ("aten::pin_memory", "aten::_pin_memory")]
    inside = trace.cpu_ops.take(np.isin(trace.cpu_ops.name_id, wanted))
    calls = trace.runtime_calls
    return around(inside, calls.thread, calls.start_ns) >= 0


def around(table: HostEvents, thread: I64, at: I64) -> I64:
    """Row of the innermost event of each thread around each instant; -1 if there is none."""
    result = np.full(len(at), -1, np.int64)
    if not len(table):
        return result
    for one in np.unique(thread):
        rows = np.flatnonzero(table.thread == one)
        mine = thread == one
        found = enclosing(table.start_ns[rows], table.end_ns[rows], at[mine])
        result[mine] = np.where(found >= 0, np.append(rows, -1)[found], -1)
    return result


def on_thread(table: HostEvents, thread: int, rows: Index | None = None) -> Intervals:
    """When a thread was inside any of the given events (all if None)."""
    chosen = np.arange(len(table)) if rows is None else rows
    mine = chosen[table.thread[chosen] == thread]
    return union(table.start_ns[mine], table.end_ns[mine])


def ops_around(trace: Trace, thread: I64, at: I64) -> list[str | None]:
    """Name of the innermost CPU op around each instant."""
    return [trace.cpu_ops.name(row) if row >= 0 else None for row in around(trace.cpu_ops, thread, at).tolist()]


def lines_around(trace: Trace, thread: I64, at: I64) -> list[str | None]:
    """Python line around each instant: `file.py:12 in function`, the user's own code before a library's."""
    frames = trace.python_frames
    if not len(frames):
        return [None] * len(at)
    own = np.zeros(len(frames.names), np.bool_)
    own[frames.name_id] = True
    for name_id in np.flatnonzero(own):
        match = _PYTHON_LINE.fullmatch(frames.names[name_id])
        own[name_id] = match is not None and _LIBRARY.search(match["file"]) is None
    mine = frames.take(own[frames.name_id])
    chosen = around(mine, thread, at)
    fallback = around(frames, thread, at)
    result: list[str | None] = []
    for row, other in zip(chosen.tolist(), fallback.tolist(), strict=True):
        name = mine.name(row) if row >= 0 else frames.name(other) if other >= 0 else None
        match = _PYTHON_LINE.fullmatch(name) if name is not None else None
        result.append(f"{match['file']}:{match['line']} in {match['function']}" if match else name)
    return result

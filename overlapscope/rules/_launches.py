"""Launches by what makes them: optimizers, the backward pass, ranges of the program, ops."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from overlapscope.analysis.grouping import distinct
from overlapscope.analysis.host import around, inside_any, outermost_around
from overlapscope.analysis.host_work import backward_threads
from overlapscope.analysis.periods import is_step
from overlapscope.base.intervals import I64, Bool, cut
from overlapscope.rules._claims import Claims
from overlapscope.trace import host_ops
from overlapscope.trace.host_ops import OPTIMIZER_STEP
from overlapscope.trace.model import HostEvents, Trace

BACKWARD = "the backward pass"
FUSED = frozenset({"Adagrad", "Adam", "AdamW", "SGD"})
"""Optimizers of torch that take `fused=True` on a GPU."""


class Maker(Struct, frozen=True):
    """Origin of launches in the judged windows."""

    name: str
    """Name of an optimizer's range or of a range of the program, or `BACKWARD`."""
    launches: int
    optimizer: bool
    how: str
    """`fused` or `foreach` for an optimizer with such ops; empty otherwise."""


def launches(claims: Claims) -> I64:
    """Return the rows of the runtime calls that launch ops in the judged windows, each once."""
    ops = claims.device.timeline.ops
    row, _, _ = cut(ops.start_ns, ops.end_ns, claims.windows)
    launch = ops.launch[distinct(row)]
    return distinct(launch[launch >= 0])


def makers(claims: Claims, rows: I64) -> list[Maker]:
    """Return what makes the given launches, the most first: optimizers, the backward pass, then ranges."""
    trace = claims.trace
    calls = trace.runtime_calls
    thread, at = calls.thread[rows], calls.start_ns[rows]
    notes = HostEvents.joined([trace.annotations, trace.cpu_ops.take(_of_optimizers(trace.cpu_ops))])
    notes = notes.take(np.argsort(notes.start_ns, kind="stable"))
    left = np.ones(len(rows), np.bool_)
    found = []
    for name in sorted({notes.names[id] for id in distinct(notes.name_id[_of_optimizers(notes)]).tolist()}):
        inside = left & inside_any(notes.take(notes.named(name.__eq__)), thread, at)
        left &= ~inside
        found.append(Maker(name, int(inside.sum()), True, _how(trace, thread[inside], at[inside])))
    nodes = trace.cpu_ops.take(trace.cpu_ops.named(host_ops.is_engine))
    backward = left & (np.isin(thread, backward_threads(trace)) & inside_any(nodes, thread, at))
    found.append(Maker(BACKWARD, int(backward.sum()), False, ""))
    left &= ~backward
    ranges = trace.annotations.take(~is_step(trace.annotations))
    outer = outermost_around(ranges, thread[left], at[left])
    for row in distinct(ranges.name_id[outer[outer >= 0]]).tolist():
        count = int((ranges.name_id[outer[outer >= 0]] == row).sum())
        # A range around every launch tells nothing.
        if count < len(rows):
            found.append(Maker(ranges.names[row], count, False, ""))
    return sorted((maker for maker in found if maker.launches), key=lambda maker: (-maker.launches, maker.name))


def optimizers(trace: Trace) -> set[str] | None:
    """Return the classes of the optimizers that ranges show; None if nothing of the host was recorded."""
    if not len(trace.cpu_ops):
        return None
    return {
        optimizer_class(table.names[row])
        for table in (trace.annotations, trace.cpu_ops)
        for row in distinct(table.name_id[_of_optimizers(table)]).tolist()
    }


def optimizer_class(name: str) -> str:
    """Return the class in the name of an optimizer's range, such as `Optimizer.step#AdamW.step`."""
    return name.removeprefix(OPTIMIZER_STEP).partition(".")[0]


def _of_optimizers(events: HostEvents) -> Bool:
    return events.named(lambda name: name.startswith(OPTIMIZER_STEP))


def _how(trace: Trace, thread: I64, at: I64) -> str:
    """Return `fused` or `foreach` if ops of that kind make any of the launches."""
    ops = trace.cpu_ops
    inside = around(ops, thread, at)
    names = [ops.names[id] for id in distinct(ops.name_id[inside[inside >= 0]]).tolist()]
    for how, word in (("fused", "_fused_"), ("foreach", "_foreach_")):
        if any(word in name for name in names):
            return how
    return ""

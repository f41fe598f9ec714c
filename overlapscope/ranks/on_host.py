"""Reduction of a rank that was recorded without a GPU, whose collectives are ranges on the host.

PyTorch puts a range such as `gloo:all_reduce` around the work of a collective on the host, on a thread of the backend.
It takes the place of a kernel: it begins when the rank arrives, and ends when the data has. Ops take the place of
compute, except those that only start a collective.

Exposed communication is `late-compute` while the thread that starts collectives doesn't wait for any, since its next op
could have run meanwhile. Else it is waiting or transfer. The recording doesn't show waiting, only that the thread does
nothing until the collective ends. So a time without ops in which a collective ends is a wait for it. If the thread goes
on long after that, it may as well have worked all that time, so the cause is unknown.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average
from overlapscope.analysis.collectives import CommKind
from overlapscope.analysis.facts import select, together
from overlapscope.analysis.figures import TimeFigures
from overlapscope.analysis.host_use import host_timeline
from overlapscope.analysis.measured import figures_of
from overlapscope.analysis.periods import is_step, judged_steps
from overlapscope.analysis.timeline import lengths
from overlapscope.analysis.trust import judge_host
from overlapscope.base.columns import Columns, mask_of, pick
from overlapscope.base.grouping import among, distinct, numbered
from overlapscope.base.intervals import EMPTY, I64, Bool, Intervals, contains, expand, intersect, join, subtract, union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.catalog.measures import PARTS_OF_SPAN
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.messages import UNRECORDED, CommKernels, step_numbers
from overlapscope.ranks.messages import on_host as messages_on_host
from overlapscope.ranks.reduced import RankSteps, ReducedRank, lost_events, reduce, spent_ns, without_invalid_rank
from overlapscope.reading.op_args import ITEM_BYTES, read_inputs
from overlapscope.reading.own_period import without_period
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import is_collective_range, starts_collective

HOST = -1
"""Device of a rank without a GPU."""
_WAITED_NS = 20_000
"""Minimum time without ops before a collective's end for a wait."""
_LATE_NS, _LATE = 200_000, 0.05
"""A thread that goes on later than this, or than this fraction of the time without ops, may have worked in between."""
_AUTOGRAD = ("autograd::", "torch::autograd")
"""Beginnings of the names of autograd's own ops."""


def reduce_any(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace to one rank for each of its devices, or to one of the host if it has collectives but no device.

    Periods of two ranks may differ in length and number, so they are no steps to compare.

    Returns:
        The reduced ranks.

    Raises:
        UnreadableTrace: If there is nothing to compare.
    """
    trace = without_period(trace)
    host = reduce_host(trace)
    return (host,) if host is not None else reduce(trace)


def reduce_host(trace: Trace) -> ReducedRank | None:
    """Reduce a rank without a GPU.

    Returns:
        The reduced rank; None if it has a GPU or no collectives on the host.

    Raises:
        UnreadableTrace: If it has collectives, but no steps that other ranks have, too.
    """
    if trace.devices:
        return None
    trace = without_invalid_rank(trace)
    timeline = host_timeline(trace)
    marked = trace.period is None and is_step(trace.annotations).any()
    if not marked and trace.annotations.named(is_collective_range).any():
        # Periods of ranks may differ.
        raise UnreadableTrace(
            trace.source,
            "was recorded without a GPU, and has collectives but no steps; call profiler.step() after each iteration, "
            "so that the steps of all ranks can be compared.",
        )
    if timeline is None or not timeline.names or not len(timeline.collectives):
        return None
    collectives, begin, end = timeline.collectives, timeline.start_ns, timeline.end_ns
    window = figures_of(together(lengths(timeline, np.array([begin]), np.array([end]))))
    # No GPU idled, so there are no causes.
    no_causes = {key: dict[str, int]() for key in ("exposed_copy_by_cause", "exposed_comm_by_cause", "idle_by_cause")}
    names, facts = timeline.names, timeline.facts()
    unexplained = {**facts, **dict.fromkeys(PARTS_OF_SPAN[1:], np.zeros_like(facts["span"]))}
    judged = timeline.judged
    judged_mask = mask_of(np.array(judged, np.int64), len(names))
    average_step = average(select(facts, list(judged)), range(len(judged)), [names[number] for number in judged])
    comm = _comm(trace, collectives)
    messages, exposed = messages_on_host(trace, comm, collectives), subtract(timeline.comm, timeline.compute)
    return ReducedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=HOST,
        device_name=None,
        trust=judge_host(trace),
        span_ns=end - begin,
        lead_in_ns=0,
        judged_from_ns=begin,
        end_ns=end,
        step_ns=average_step.span_ns if average_step is not None else None,
        steps=RankSteps(tuple(names), judged_mask, timeline.starts, facts["span"]),
        window=TimeFigures(span_ns=end - begin, **window, **no_causes, exposed_other_by_cause={}),
        judged=None if average_step is None else replace(average_step, **no_causes),
        spent_ns=spent_ns(unexplained),
        findings=(),
        comm=comm,
        exposed_comm=exposed,
        comm_causes=_causes(trace, exposed),
        messages=messages,
        compute=timeline.compute if len(messages) else EMPTY,
        on_host=True,
        lossy=lost_events(trace),
    )


def _comm(trace: Trace, collectives: HostEvents) -> CommKernels:
    """Return the collectives as kernels. Their size is that of the first tensor, if shapes were recorded."""
    names, kind = numbered(collectives.name_id)
    inputs, size = read_inputs(trace, collectives), np.full(len(collectives), -1)
    if inputs is not None:
        known = ((each.first, ITEM_BYTES.get(each.first_type, -1)) for each in inputs.signatures)
        sizes = [count * item_bytes if min(count, item_bytes) >= 0 else -1 for count, item_bytes in known]
        size = pick(np.array(sizes, np.int64), inputs.number)
    return CommKernels.filled(
        kinds=tuple(CommKind(trace.names[name], recorded=False) for name in names.tolist()),
        start_ns=collectives.start_ns,
        end_ns=collectives.end_ns,
        kind=kind,
        step=step_numbers(trace.annotations, collectives.start_ns),
        bytes=size,
        **dict.fromkeys(UNRECORDED, -1),
    )


def _causes(trace: Trace, exposed: Intervals) -> tuple[Intervals, ...]:
    """Return the exposed communication by cause, in the order of `COMM_CAUSES`; nothing if it is unknown."""
    waits = _find_waits(trace)
    if waits is None:
        return ()
    in_prompt_waits, in_late_waits = (
        union(waits.start_ns[each], waits.end_ns[each]) for each in (waits.prompt, ~waits.prompt)
    )
    by_cause = {
        CommCause.LATE_COMPUTE: subtract(exposed, join(in_prompt_waits, in_late_waits)),
        CommCause.WAITING_OR_TRANSFER: intersect(exposed, in_prompt_waits),
        CommCause.UNKNOWN: intersect(exposed, in_late_waits),
    }
    return tuple(by_cause.get(cause, EMPTY) for cause in COMM_CAUSES)


class _HostWaits(Columns, frozen=True):
    """Times without ops in which collectives ended, one row each by start."""

    start_ns: I64
    end_ns: I64
    prompt: Bool
    """True if the thread went on right after the last end, so it did nothing else."""


def _find_waits(trace: Trace) -> _HostWaits | None:
    """Return the waits for collectives in a trace with steps; None unless a single thread starts both."""
    timeline = host_timeline(trace)
    starters = trace.cpu_ops.take(trace.cpu_ops.named(lambda name: name.startswith("c10d::")))
    threads = distinct(starters.thread)
    steps = trace.annotations.take(judged_steps(trace))
    if timeline is None or len(threads) != 1 or (steps.thread != threads[0]).any():
        return None
    ops, notes = (each.take(each.thread == threads[0]) for each in (trace.cpu_ops, trace.annotations))
    return _waits(_idle(ops, notes), starters.end_ns, steps.start_ns, timeline.collectives)


def _idle(ops: HostEvents, notes: HostEvents) -> Intervals:
    """Return the times between the beginnings and ends of ops and ranges that lie in no op that computes.

    An op with a collective inside, such as one of a DTensor, may wait for it.
    """
    at = distinct(np.concatenate((ops.start_ns, ops.end_ns, notes.start_ns, notes.end_ns)))
    collectives = np.sort(ops.start_ns[ops.named(starts_collective)])
    first, last = (np.searchsorted(collectives, edges) for edges in (ops.start_ns, ops.end_ns))
    # No autograd node, and no op that starts a collective.
    works = ops.named(lambda name: "::" in name and not name.startswith(_AUTOGRAD) and not starts_collective(name))
    computes = works & (first == last)
    inside = contains(union(ops.start_ns[computes], ops.end_ns[computes]), at[:-1])
    long = (at[1:] - at[:-1] >= _WAITED_NS) & ~inside
    return Intervals(at[:-1][long], at[1:][long])


def _waits(idle: Intervals, issued: I64, marks: I64, ranges: HostEvents) -> _HostWaits:
    """Return the waits.

    An uncertain wait is left out if a certain one follows in the same step: that may be for both collectives.

    Args:
        idle: Times without ops.
        issued: Ends of the ops that start collectives.
        marks: Starts of the steps.
        ranges: The collectives.
    """
    slack = np.maximum(_LATE_NS, np.rint(_LATE * (idle.ends - idle.starts)).astype(np.int64))
    by_end = np.argsort(ranges.end_ns, kind="stable")
    ends = ranges.end_ns[by_end]
    first, behind = np.searchsorted(ends, idle.starts + _WAITED_NS), np.searchsorted(ends, idle.ends + slack, "right")
    row, place = expand(first, behind)
    # The thread starts none while it is idle.
    before = ranges.start_ns[by_end[place]] < idle.ends[row]
    row, ended = row[before], ends[place[before]]
    last = np.flatnonzero(np.diff(row, append=-1))
    row, ended = row[last], ended[last]
    start, end = idle.starts[row], idle.ends[row]
    prompt = end - ended <= slack[row]
    # A collective that is started and waited for at once leaves no op in between.
    is_certain, step = prompt | among(start, issued), np.searchsorted(marks, start, side="right")
    # Step of the next certain wait, by the step of the last one up to each wait.
    following = np.append(step[is_certain], -1)[np.cumsum(is_certain)]
    return _HostWaits(start, end, prompt).take(is_certain | (following != step))

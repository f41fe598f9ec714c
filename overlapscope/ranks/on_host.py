"""Reduction of a rank that was recorded without a GPU, whose collectives are ranges on the host.

PyTorch puts a range such as `gloo:all_reduce` around the work of a collective on the host, on a thread of the backend.
It takes the place of a kernel: it begins when the rank arrives, and ends when the data has. Ops take the place of
compute, except those that only start a collective.

Exposed communication gets its cause as `analysis.exposed_comm` finds it on a device. If several collectives run at
once, the piece belongs to the collective that the starting thread waits for, and among several to the last to end. If
the thread waits for no collective, its next op could have run beside the piece, but the thread was busy otherwise. If
the awaited collective began after an earlier collective on its backend's thread had ended, the earlier one kept it from
running beside compute. The rest outlasted the compute beside it, or there was none. A thread that goes on long after a
collective has ended may have waited or worked, so the cause is unknown. The input of a collective is not recorded, so
late starts look like late inputs, and neither is found.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.average import average, without_warm_up
from overlapscope.analysis.blockers import cut_up, running_in
from overlapscope.analysis.comm_kinds import CommKind
from overlapscope.analysis.facts import select, together
from overlapscope.analysis.figures import TimeFigures
from overlapscope.analysis.host_use import host_timeline
from overlapscope.analysis.measured import figures_of
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.pieces import first_part
from overlapscope.analysis.timeline import lengths
from overlapscope.analysis.trust import judge_host
from overlapscope.base.columns import pick
from overlapscope.base.grouping import first_of_each, rows_by
from overlapscope.base.intervals import EMPTY, I64, Intervals, covered, expand, subtract, union
from overlapscope.catalog.causes import COMM_CAUSES, CommCause
from overlapscope.catalog.causes import COMM_RANK as RANK
from overlapscope.catalog.measures import PARTS
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.host_collectives import HostCollectives, find_host_collectives
from overlapscope.ranks.messages import CommKernels, step_numbers
from overlapscope.ranks.messages import on_host as messages_on_host
from overlapscope.ranks.reduced import ReducedRank, lost_events, reduce, step_figures, without_invalid_rank
from overlapscope.reading.op_args import ITEM_BYTES, read_inputs
from overlapscope.reading.own_period import without_period
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import is_collective_range

HOST = -1
"""Device of a rank without a GPU."""


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
    _check_marked(trace)
    if timeline is None or not timeline.names or not len(timeline.collectives):
        return None
    collectives, begin, end = timeline.collectives, timeline.start_ns, timeline.end_ns
    window = figures_of(together(lengths(timeline, np.array([begin]), np.array([end]))))
    # No GPU idled, so there are no causes.
    no_causes = {key: dict[str, int]() for key in ("exposed_copy_by_cause", "exposed_comm_by_cause", "idle_by_cause")}
    names, facts = timeline.names, timeline.facts()
    unexplained = {**facts, **dict.fromkeys(PARTS[1:], np.zeros_like(facts["span"]))}
    # The host's part of the last step has an end of its own, unlike a device's, so it is judged, too.
    judged = without_warm_up(range(len(names)), facts["span"].tolist())
    figures = step_figures(names, timeline.starts, unexplained, judged)
    average_step = average(select(facts, list(judged)), range(len(judged)), [names[number] for number in judged])
    average_step = None if average_step is None else replace(average_step, **no_causes)
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
        judged_steps=figures.judged_windows(),
        window=TimeFigures(span_ns=end - begin, **window, **no_causes, exposed_other_by_cause={}),
        judged=average_step,
        steps=figures,
        findings=(),
        comm=comm,
        exposed_comm=exposed,
        comm_causes=host_causes(trace, exposed, timeline.compute),
        messages=messages,
        compute=timeline.compute if len(messages) else EMPTY,
        on_host=True,
        lossy=lost_events(trace),
    )


def _check_marked(trace: Trace) -> None:
    """Raise UnreadableTrace for collectives without marked steps, as periods of ranks may differ."""
    marked = trace.period is None and is_step(trace.annotations).any()
    if not marked and trace.annotations.named(is_collective_range).any():
        raise UnreadableTrace(
            trace.source,
            "was recorded without a GPU, and has collectives but no steps; call profiler.step() after each iteration, "
            "so that the steps of all ranks can be compared.",
        )


def _comm(trace: Trace, collectives: HostEvents) -> CommKernels:
    distinct, which = np.unique(collectives.name_id, return_inverse=True)
    return CommKernels.filled(
        kinds=tuple(CommKind(trace.names[name], recorded=False) for name in distinct.tolist()),
        start_ns=collectives.start_ns,
        end_ns=collectives.end_ns,
        kind=pick(np.arange(len(distinct)), which.ravel()),
        step=step_numbers(trace.annotations, collectives.start_ns),
        bytes=_message_bytes(trace, collectives),
        **dict.fromkeys(("elements", "sequence", "received", "reaches_all"), -1),
    )


def _message_bytes(trace: Trace, ranges: HostEvents) -> I64:
    """Return the size of the first tensor of each collective, if shapes were recorded; else -1."""
    inputs = read_inputs(trace, ranges)
    if inputs is None:
        return np.full(len(ranges), -1)
    sizes = [
        each.first * ITEM_BYTES[each.first_type] if each.first >= 0 and each.first_type in ITEM_BYTES else -1
        for each in inputs.signatures
    ]
    return pick(np.array(sizes, np.int64), inputs.number)


# -- Causes of exposed communication -----------------------------------------------------------------


def host_causes(trace: Trace, exposed: Intervals, compute: Intervals) -> tuple[Intervals, ...]:
    """Return the exposed communication by cause, in the order of `COMM_CAUSES`.

    Args:
        trace: A trace with steps and collectives on the host.
        exposed: Times in which collectives ran and nothing computed.
        compute: Times in which ops computed.

    Returns:
        The times of each cause; nothing if it is unknown how collectives were started.
    """
    found = find_host_collectives(trace)
    return () if found is None else attribute(found, exposed, compute)


def attribute(found: HostCollectives, exposed: Intervals, compute: Intervals) -> tuple[Intervals, ...]:
    """Return the exposed communication by cause, given what started collectives and waited for them."""
    ranges, waits, wait_of = found.ranges, found.waits, _wait_of(found)
    start, end = cut_up(exposed, np.concatenate([ranges.start_ns, ranges.end_ns, waits.start_ns, waits.end_ns]))
    order = np.argsort(ranges.start_ns, kind="stable")
    which, piece = running_in(start, ranges.start_ns[order], ranges.end_ns[order])
    op, wait = order[which], np.searchsorted(waits.start_ns, start, side="right") - 1
    wait[pick(waits.end_ns, wait) <= start] = -1
    awaited = (wait[piece] >= 0) & (wait_of[op] == wait[piece])
    # The collective that the thread waits for decides, and among several the last to end.
    chosen = first_of_each(piece, ~awaited, -ranges.end_ns[op])
    op, awaited = op[chosen], awaited[chosen]

    beside = covered(compute, ranges.start_ns[op], start) > 0
    cause = np.where(beside, RANK[CommCause.WAITING_OR_TRANSFER], RANK[CommCause.NO_COMPUTE])
    doubtful = awaited & ~pick(waits.prompt, wait, False)
    cause[doubtful] = RANK[CommCause.UNKNOWN]
    cause[~awaited] = np.where(wait >= 0, RANK[CommCause.UNKNOWN], RANK[CommCause.LATE_COMPUTE])[~awaited]
    kept_ns = _kept_from_compute(found, compute)
    blocked = start + first_part(kept_ns[op], op, np.where(awaited & ~doubtful, end - start, 0))
    result = []
    for number in range(len(COMM_CAUSES)):
        of_cause = cause == number
        begins, ends = blocked[of_cause], end[of_cause]
        if number == RANK[CommCause.BLOCKED_BEHIND]:
            begins, ends = np.append(begins, start), np.append(ends, blocked)
        result.append(union(begins, ends))
    return tuple(result)


def _wait_of(found: HostCollectives) -> I64:
    """Return the number of the wait in which each collective ended; -1 for none."""
    wait_of, waits = np.full(len(found.ranges), -1), found.waits
    by_end = np.argsort(found.ranges.end_ns, kind="stable")
    ends = found.ranges.end_ns[by_end]
    wait, place = expand(*(np.searchsorted(ends, edge, side="right") for edge in (waits.start_ns, waits.ended_ns)))
    ended = by_end[place]
    before = found.issue_ns[ended] <= waits.start_ns[wait]
    # The first wait of a collective is written last.
    wait_of[ended[before][::-1]] = wait[before][::-1]
    return wait_of


def _kept_from_compute(found: HostCollectives, compute: Intervals) -> I64:
    """Return how much longer each collective would have run beside compute without those before it on its thread."""
    ranges = found.ranges
    before = np.full(len(ranges), np.iinfo(np.int64).min)
    for _, rows in rows_by(ranges.thread):
        rows = rows[np.argsort(ranges.start_ns[rows], kind="stable")]
        before[rows[1:]] = ranges.end_ns[rows[:-1]]
    held = before > found.issue_ns
    return np.where(held, covered(compute, np.minimum(found.issue_ns, ranges.start_ns), ranges.start_ns), 0)

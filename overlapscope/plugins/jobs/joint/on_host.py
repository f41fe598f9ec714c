"""Summary of a rank that was recorded without a GPU, whose collectives are ranges on the host (`host_collectives`).

If a thread goes on long after the collective that it seems to wait for, it may as well have worked all that time: then
the two ends of an interval differ in this.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from overlapscope.analysis.average import without_warm_up
from overlapscope.analysis.host_order import EARLIEST_NS, Calls
from overlapscope.analysis.periods import is_step
from overlapscope.base.columns import pick
from overlapscope.base.intervals import I64, contains, union
from overlapscope.plugins.jobs.joint.condense import ItemWork
from overlapscope.plugins.jobs.joint.join import RankNetwork, RankSummary, Unfit
from overlapscope.prediction.calibration import Constants
from overlapscope.prediction.graph import DeviceItems, Network, Orders, Waits
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.outcomes import HOST
from overlapscope.ranks.host_collectives import (
    NOTICED_NS,
    HostCollectives,
    NotStarted,
    find_host_collectives,
    kind_of,
    works,
)
from overlapscope.ranks.reduced import ComparedRank
from overlapscope.trace.model import HostEvents, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP

_GATHERS_WEIGHTS = "FSDP::all_gather"
"""Beginning of the names of ranges in which FSDP2 gathers weights, which only the optimizer changes."""


_WAIT, _READY, _ISSUE, _MARK = range(4)
"""Kinds of calls: things that happen on the starting thread, in their order at an instant."""


def host_rank(trace: Trace, reduced: ComparedRank) -> RankSummary | Unfit:
    """Return the summary of a rank, or why there is none."""
    try:
        found = find_host_collectives(trace)
    except NotStarted as error:
        return Unfit(trace.source, str(error))
    steps = found.steps
    judged = without_warm_up(range(len(steps)), (steps.end_ns - steps.start_ns).tolist())
    marks = np.append(steps.start_ns[list(judged)], steps.end_ns[judged[-1]])
    ready_ns = _ready(trace, found)
    return RankSummary(
        reduced=reduced,
        recorded=_network(found, ready_ns, marks),
        by_stance={stance: _network(found, ready_ns, marks, stance) for stance in Stance},
        lengths_ns=np.diff(marks),
        uncertain=int((~found.waits.certain).sum()),
    )


class _Ready(NamedTuple):
    """When the input of each collective is ready."""

    usual_ns: I64
    earliest_ns: I64
    """Differs for all-gathers, which may be of weights."""


def _ready(trace: Trace, found: HostCollectives) -> _Ready:
    """Return when the input of each collective is ready, as far as the recording shows it.

    It may be the result of the last op before, or of the collective that was waited for last. Weights are ready when
    the optimizer has changed them. They are gathered after the wait for an earlier collective, so that not all of them
    take memory at once.
    """
    ops, issue = found.ops, found.issue_ns
    worked_ns = _last_before(ops.end_ns[works(ops)], issue)
    waited_ns = _last_before(found.waits.noticed_ns, issue)
    usual_ns = np.minimum(np.maximum(np.where(worked_ns >= 0, worked_ns, issue), waited_ns), issue)

    notes = trace.annotations.take(trace.annotations.thread == ops.thread[0])
    updates, steps = notes.named(lambda name: name.startswith(OPTIMIZER_STEP)), is_step(notes)
    changed_ns = _last_before(np.concatenate((notes.end_ns[updates], notes.start_ns[steps])), issue)
    gathers = trace.cpu_ops.named(lambda name: kind_of(name).startswith("allgather"))[found.started]
    weights_ns = np.minimum(np.maximum(waited_ns, changed_ns), usual_ns)
    earliest_ns = np.where(gathers & (weights_ns >= 0), weights_ns, usual_ns)
    of_weights = notes.take(notes.named(lambda name: name.startswith(_GATHERS_WEIGHTS)))
    known = contains(union(of_weights.start_ns, of_weights.end_ns), issue)
    return _Ready(np.where(known, earliest_ns, usual_ns), earliest_ns)


def _parts(network: Network, issued: I64, ready: I64, marks: I64) -> RankNetwork:
    """Return a rank whose network has nothing but collectives on the device, issued and ready at these calls."""
    count, items = len(issued), network.items
    unknown, none = np.full(count, -1), np.zeros(count, np.int64)
    return RankNetwork(
        network=network,
        finish=2 * np.arange(count) + 1,
        segment_of_item=np.repeat(np.arange(count), 2),
        segment_of_call=np.searchsorted(issued, np.arange(len(network.calls))),
        closed_by=np.arange(count),
        work=ItemWork.filled(
            work_ns=0,
            launched_work_ns=0,
            compute_ns=0,
            launched_compute_ns=0,
            launched_host_ns=0,
            recorded_start_ns=items.start_ns,
            recorded_end_ns=items.end_ns,
        ),
        ready=ready,
        ahead_call=unknown,
        ahead_item=unknown,
        filled_ns=unknown,
        before_launch_ns=none,
        after_launch_ns=none,
        marks=marks,
        marks_are_calls=True,
    )


def _last_before(times_ns: I64, at_ns: I64) -> I64:
    """Return the latest of some times up to each time; -1 for none."""
    ordered = np.sort(times_ns)
    return pick(ordered, np.searchsorted(ordered, at_ns, side="right") - 1)


def _network(found: HostCollectives, ready_ns: _Ready, marks_ns: I64, stance: Stance | None = None) -> RankNetwork:
    """Return the starting thread's work and waits as calls, at a stance; as recorded without one."""
    waits = found.waits
    # An uncertain wait is work at the worst stance and a wait at the others. Either may give the shorter step,
    # depending on the change; the predicted interval includes both.
    worked = ~waits.certain & (stance == Stance.WORST)
    others = [ready_ns.earliest_ns if stance == Stance.BEST else ready_ns.usual_ns, found.issue_ns, marks_ns]
    counts = [len(waits), *map(len, others)]
    kind, number = np.repeat(np.arange(4), counts), np.concatenate([np.arange(count) for count in counts])
    start = np.concatenate([waits.start_ns, *others])
    end = np.concatenate([np.where(worked, waits.end_ns, waits.noticed_ns), *others])
    order = np.lexsort((number, kind, start, end))
    start, end, kind, number = start[order], end[order], kind[order], number[order]
    start = np.maximum(start, np.append(start[:1], end[:-1]))
    worked = pick(worked, np.where(kind == _WAIT, number, -1), False)
    host = 1 + HOST.get(stance, 0.0) if stance is not None else 1.0
    before = np.append(0, start[1:] - end[:-1])
    calls = Calls.filled(
        row=-1,
        thread=0,
        before_ns=np.rint(before * host),
        length_ns=np.rint(np.where(worked, end - start, 0) * host),
        handed_by=-1,
        maybe_by=-1,
        release_ns=np.append(start[0], np.full(len(start) - 1, EARLIEST_NS)),
        since_ns=start - before,
        start_ns=start,
        end_ns=end,
    )
    issued, ready = (np.flatnonzero(kind == name)[np.argsort(number[kind == name])] for name in (_ISSUE, _READY))
    marks = np.flatnonzero(kind == _MARK)
    items = _items(found.ranges, issued, calls)
    # Without a recorded wait, the end of the step waits for a collective.
    waiter = pick(marks, np.searchsorted(marks, issued))
    unmatched = np.ones(len(issued), np.bool_)
    for call in np.flatnonzero(kind == _WAIT).tolist():
        wait = number[call]
        rows = unmatched & (found.issue_ns <= waits.start_ns[wait]) & (found.ranges.end_ns <= waits.ended_ns[wait])
        waiter[rows] = call
        unmatched &= ~rows
    waited_for = np.flatnonzero(waiter >= 0)
    waiting = waiter[waited_for]
    latest = np.full(len(calls), EARLIEST_NS)
    np.maximum.at(latest, waiting, found.ranges.end_ns[waited_for])
    lag = calls.end_ns[waiting] - latest[waiting]
    lag = np.where(worked[waiting], np.minimum(lag, NOTICED_NS), lag)
    network = Network(items, calls, Orders.empty(), Waits.of(waiting, 2 * waited_for + 1, lag), Constants())
    return _parts(network, issued, ready, marks)


def _items(ranges: HostEvents, issued: I64, calls: Calls) -> DeviceItems:
    """Return two items for each collective, on the lane of the backend's thread."""
    count = len(ranges)
    lane = np.unique(ranges.thread, return_inverse=True)[1]
    queued = np.full(count, EARLIEST_NS)
    for number in range(int(lane.max(initial=-1)) + 1):
        rows = np.flatnonzero(lane == number)
        queued[rows[1:]] = ranges.end_ns[rows[:-1]]
    called = calls.start_ns[issued]
    by_queue = queued > called
    lag = ranges.start_ns - called
    usual = int(np.median(lag[~by_queue])) if (~by_queue).any() else NOTICED_NS
    gap = np.where(queued > EARLIEST_NS, ranges.start_ns - queued, 0)
    second = np.tile([False, True], count)
    start = np.repeat(ranges.start_ns, 2)
    return DeviceItems.of(
        lane=np.repeat(lane, 2),
        duration_ns=np.where(second, np.repeat(ranges.end_ns - ranges.start_ns, 2), 0),
        call=np.where(second, -1, np.repeat(issued, 2)),
        launch_lag_ns=np.where(second, 0, np.repeat(np.where(by_queue, np.minimum(lag, usual), lag), 2)),
        queue_lag_ns=np.where(second, 0, np.repeat(np.where(by_queue, gap, np.minimum(gap, NOTICED_NS)), 2)),
        start_ns=start,
        end_ns=np.where(second, np.repeat(ranges.end_ns, 2), start),
    )

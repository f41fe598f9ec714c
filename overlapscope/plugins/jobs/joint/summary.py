"""Summary of a rank for the joint replay: its graph, reduced to what lies between its collectives.

It is made where the file is, once for each stance, and is small enough to send.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.holds import Reading, find_holds
from overlapscope.analysis.host_order import find_calls
from overlapscope.analysis.net_overlap import speed_lost
from overlapscope.analysis.plain_step import measured
from overlapscope.analysis.timeline import build
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64
from overlapscope.base.words import plural
from overlapscope.errors import UnreadableTrace
from overlapscope.plugins.jobs.joint.condense import condense
from overlapscope.plugins.jobs.joint.join import BY_EVENT, NOT_SHOWN, RankNetwork, RankSummary
from overlapscope.plugins.jobs.joint.result import JointChange
from overlapscope.prediction.base import Base, prepare
from overlapscope.prediction.graph import Graph, OrderReason
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import parse
from overlapscope.prediction.outcomes import apply, spread
from overlapscope.prediction.overhead import lighter_ones
from overlapscope.prediction.replay import Deadlock, Replay, replay
from overlapscope.prediction.steps import first_items, step_of_calls
from overlapscope.ranks.reduced import ComparedRank, collectives_only
from overlapscope.trace.host import around, outermost_around, rows_of
from overlapscope.trace.model import Kind, Trace
from overlapscope.trace.op_names import OPTIMIZER_STEP


def summarize(trace: Trace, changes: Sequence[str], numbers: Sequence[int] | None) -> RankSummary:
    """Summarize a rank, with interventions on all single ranks, or on those of some numbers.

    Returns:
        The summary.

    Raises:
        UnreadableTrace: This recording can't take part in a joint replay.
        UsageError: An intervention does not exist or lacks its argument.
    """
    ranks = [rank for rank in collectives_only(trace) if len(rank.comm)]
    if len(ranks) != 1:
        found = "no collective" if not ranks else f"collectives of {plural(len(ranks), 'GPU')}"
        raise UnreadableTrace(trace.source, f"it has {found}; a joint replay needs one GPU for each trace.")
    return _device_rank(trace, ranks[0], changes if numbers is None or trace.rank in numbers else ())


def _device_rank(trace: Trace, reduced: ComparedRank, changes: Sequence[str]) -> RankSummary:
    base = prepare(trace, None)
    if not base.fidelity.valid:
        raise UnreadableTrace(trace.source, f"its own replay does not match it. {' '.join(base.fidelity.reasons)}")
    if base.device != reduced.device:
        raise UnreadableTrace(trace.source, "its collectives are not on its busiest GPU.")
    if base.recorded.is_window:
        raise UnreadableTrace(trace.source, "it has no steps.")
    ops = base.graph.trace.gpu_ops
    comm = base.graph.item_of_op[(ops.kind == Kind.COMM) & (ops.device == reduced.device)]
    if (np.bincount(base.graph.item_of_op, minlength=len(base.graph.items))[comm] > 1).any():
        raise UnreadableTrace(trace.source, "some of its collectives are part of a CUDA graph.")
    timed = measured(trace.plain_steps, base.recorded.mean_ns, trace.host_activity)
    plain = None if timed is None else timed.usual
    lost = speed_lost(build(trace, reduced.device))
    shorter = () if plain is None else lighter_ones(base, plain.step_ns)
    try:
        first, *lighter = (
            replace(_summary(each, reduced, comm, changes), lost_speed=lost) for each in chain([base], shorter)
        )
        return replace(first, plain=plain, lighter=tuple(lighter))
    except Deadlock:
        circle = "with these changes, its launches, ops and waits wait for each other in a circle."
        raise UnreadableTrace(trace.source, circle) from None


def _summary(base: Base, reduced: ComparedRank, comm: I64, changes: Sequence[str]) -> RankSummary:
    choices, by_stance = parse(changes), {}
    recorded = _parts(base, base.graph, base.replayed, comm)
    what: tuple[JointChange, ...] = ()
    for stance in Stance:
        applied = apply(base, choices, [stance] * len(choices))
        graph = spread(applied[-1].graph if applied else base.graph, stance, plain=False, changed=True)
        by_stance[stance] = recorded if graph is base.graph else _parts(base, graph, replay(graph), comm)
        if stance == Stance.EXPECTED:
            what = tuple(
                JointChange(
                    change=choice.text,
                    title=choice.intervention.title,
                    touched=done.touched,
                    what=done.what,
                    assumptions=tuple(premise.text for premise in choice.intervention.texts.assumptions),
                )
                for choice, done in zip(choices, applied, strict=True)
            )
    return RankSummary(
        reduced=reduced,
        recorded=recorded,
        by_stance=by_stance,
        lengths_ns=base.recorded.lengths_ns,
        changed=what,
    )


def _parts(base: Base, graph: Graph, replayed: Replay, comm: I64) -> RankNetwork:
    calls, items = graph.calls, graph.items
    callers = items.call[comm]
    launching = distinct(callers[callers >= 0])
    # A segment of the rank's work ends with the launch of a collective.
    segment_of_call = np.searchsorted(launching, np.arange(len(calls)))
    segment = pick(segment_of_call, items.call, 0)
    marks = first_items(graph, base.judged, replayed.start_ns)
    step = step_of_calls(graph, base.judged)
    ahead_call, ahead_item = _one_ahead(graph, comm, step)
    # Kept are also the items after which their lane goes on with another segment.
    order = np.argsort(items.lane, kind="stable")
    ends_segment = order[:-1][segment[order[1:]] != segment[order[:-1]]]
    kept = mask_of(np.concatenate([marks, ahead_item[ahead_item >= 0], ends_segment]), len(items))
    free = _free_from(base, graph, comm)
    needed = np.concatenate([launching, free, ahead_call])
    needed = mask_of(needed[needed >= 0], len(calls))
    reduced = condense(graph, replayed, kept, needed, mask_of(comm, len(items)))
    ends, place_of_call = reduced.place[comm], np.full(len(calls), NOT_SHOWN)
    place_of_call[reduced.call] = np.arange(len(reduced.call))
    stated = reduced.network.orders.then[reduced.network.orders.why == OrderReason.EVENT]
    by_event = mask_of(stated, len(reduced.network.items))[ends - 1]
    before_launch, after_launch = _around_launch(graph, comm)
    return RankNetwork(
        network=reduced.network,
        finish=ends,
        segment_of_item=segment[reduced.item],
        segment_of_call=segment_of_call[reduced.call],
        closed_by=np.where(callers >= 0, np.searchsorted(launching, callers), -1),
        work=reduced.work,
        ready=np.where(by_event, BY_EVENT, pick(place_of_call, free, NOT_SHOWN)),
        ahead_call=pick(place_of_call, ahead_call),
        ahead_item=pick(reduced.place, ahead_item),
        filled_ns=_filled(graph, replayed, comm, step),
        before_launch_ns=before_launch,
        after_launch_ns=after_launch,
        marks=reduced.place[marks],
    )


def _free_from(base: Base, graph: Graph, comm: I64) -> I64:
    """Return the first call from which each collective could run that waits for no op of another stream; -1 otherwise.

    It is the first call of the step, or the one after the last call before the launch that waits for the GPU.
    """
    trace, calls = graph.trace, graph.calls
    holds = find_holds(trace, Reading.LIKELY).streams
    nothing = (holds.first < 0) & (holds.confidence == EXACT)
    free, held = (mask_of(holds.then[rows], len(graph.items)) for rows in (nothing, ~nothing))
    waits, step = mask_of(graph.waits.call, len(calls)), step_of_calls(graph, base.judged)
    begin = np.full(len(calls), -1)
    for _, rows in graph.by_thread():
        begins = np.append(True, waits[rows[:-1]] | (np.diff(step[rows]) != 0))[: len(rows)]
        begin[rows] = rows[np.maximum.accumulate(np.where(begins, np.arange(len(rows)), 0))]
    return np.where((free & ~held)[comm], pick(begin, graph.items.call[comm]), -1)


def _around_launch(graph: Graph, comm: I64) -> tuple[I64, I64]:
    """Return the work of the c10d op that launches each collective, before and after the launch; 0 where unknown."""
    calls, recorded = graph.calls, find_calls(graph.trace).calls
    callers = graph.items.call[comm]
    following = np.full(len(calls), -1)
    previous = graph.calls.previous
    following[previous[previous >= 0]] = np.flatnonzero(previous >= 0)
    cpu_ops = graph.trace.cpu_ops
    ops = cpu_ops.take(cpu_ops.named(lambda name: name.startswith("c10d::")))
    thread = pick(np.array(graph.threads, np.int64), pick(calls.thread, callers))
    launch = pick(recorded.start_ns, callers)
    op, outermost = around(ops, thread, launch), outermost_around(cpu_ops, thread, launch)
    # The work of autograd's op after the last op inside it belongs to the collective too.
    end = pick(ops.end_ns, op)
    for number, rows in rows_by(thread):
        starts = np.append(cpu_ops.start_ns[rows_of(cpu_ops, number)], np.iinfo(np.int64).max)
        next_op = starts[np.searchsorted(starts[:-1], end[rows])]
        end[rows] = np.maximum(end[rows], np.minimum(pick(cpu_ops.end_ns, outermost)[rows], next_op))
    begun = np.where(op >= 0, launch - pick(ops.start_ns, op), 0)
    ended = np.where(op >= 0, end - pick(recorded.end_ns, callers), 0)

    def within(call: I64, work_ns: I64) -> I64:
        """Return recorded work before a call as a part of the work before it in the graph."""
        most, now = (np.maximum(pick(each.before_ns, call, 0), 0) for each in (recorded, calls))
        share = np.clip(work_ns, 0, most) / np.maximum(most, 1)
        return np.rint(share * now).astype(np.int64)

    return within(callers, begun), within(pick(following, callers), ended)


def _filled(graph: Graph, replayed: Replay, comm: I64, step: I64) -> I64:
    """Return the time over which the gradients of each collective become ready; -1 where it is unknown.

    Autograd runs a backward pass in a thread of its own, which the calling thread hands over to
    (torch/csrc/autograd/engine.cpp); DDP's hooks launch the collectives there. So the gradients of a pass's first one
    become ready while the ops run that the thread launched since then.
    """
    items, calls = graph.items, graph.calls
    computing = np.flatnonzero((items.kind == Kind.COMPUTE) & (items.call >= 0))
    computing = computing[np.argsort(items.call[computing], kind="stable")]
    launched, handed = items.call[computing], np.flatnonzero(calls.handed_by >= 0)
    begins = {thread: handed[rows] for thread, rows in rows_by(calls.thread[handed])}
    result, seen = np.full(len(comm), -1), set[int]()
    for place in np.argsort(items.call[comm], kind="stable").tolist():
        caller = int(items.call[comm[place]])
        passes = begins.get(int(calls.thread[caller]), handed[:0]) if caller >= 0 and step[caller] >= 0 else handed[:0]
        number = int(np.searchsorted(passes, caller, side="right")) - 1
        begin = int(passes[number]) if number >= 0 else -1
        if begin < 0 or begin in seen or step[begin] != step[caller]:
            continue
        seen.add(begin)
        rows = slice(*np.searchsorted(launched, (begin, caller)))
        before = computing[rows][calls.thread[launched[rows]] == calls.thread[caller]]
        if len(before):
            result[place] = replayed.end_ns[before].max() - replayed.start_ns[before].min()
    return result


_GATHERS, _COPIES_OUT = re.compile(r"FSDP::all_gather( \(.*)?", re.DOTALL), "FSDP::all_gather_copy_out"


def _one_ahead(graph: Graph, comm: I64, step: I64) -> tuple[I64, I64]:
    """Return where all-gathers of weights would be launched one layer ahead that are launched at their layer now.

    `comm` are the items of collectives, and `step` is the step of each call, -1 for none.

    Returns:
        The call of the graph that each collective would be launched right after, and the item that it would wait for;
        -1 for others.
    """
    calls, items, notes = graph.calls, graph.items, graph.trace.annotations
    ahead_call, ahead_item = np.full((2, len(comm)), -1)
    caller, threads = items.call[comm], np.array(graph.threads, np.int64)
    at = pick(calls.start_ns, caller)
    gathering = notes.take(notes.named(_GATHERS.fullmatch))
    gathers = np.flatnonzero((caller >= 0) & (around(gathering, pick(threads, pick(calls.thread, caller)), at) >= 0))
    gathers = gathers[np.argsort(caller[gathers], kind="stable")]
    updates = np.sort(notes.start_ns[notes.named(lambda name: name.startswith(OPTIMIZER_STEP))])
    copying = notes.take(notes.named(lambda name: name.startswith(_COPIES_OUT)))
    by_call = np.argsort(items.call, kind="stable")
    in_order = items.call[by_call]
    for before, gather in zip(gathers[:-1].tolist(), gathers[1:].tolist(), strict=True):
        begin, end = int(at[before]), int(at[gather])
        same_weights = np.searchsorted(updates, begin) == np.searchsorted(updates, end)
        row = int(np.searchsorted(copying.start_ns, begin))
        if row == len(copying) or copying.start_ns[row] >= end or not same_weights:
            continue
        if step[caller[before]] != step[caller[gather]] or step[caller[gather]] < 0:
            continue
        first, last = np.searchsorted(calls.start_ns, (copying.start_ns[row], copying.end_ns[row]))
        launched = by_call[slice(*np.searchsorted(in_order, (first, last)))]
        launched = launched[threads[calls.thread[items.call[launched]]] == copying.thread[row]]
        if len(launched):
            ahead_call[gather], ahead_item[gather] = items.call[launched].max(), launched.max()
    return ahead_call, ahead_item

"""Merging many small copies into a large one."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import rows_of
from overlapscope.analysis.host_order import Calls
from overlapscope.base.columns import mask_of
from overlapscope.base.intervals import expand
from overlapscope.base.words import plural
from overlapscope.prediction.graph import DeviceItems, Graph, Waits
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions._changes import NOTHING, copies, without_time_in
from overlapscope.prediction.interventions.waits import waits_of_copies
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import I64, Bool, HostEvents, Kind, Memory

SMALL_BYTES = 1 << 20
"""Maximum size of copies to join: beyond, latency is a small part of a copy (7 us of 22 at 1 MiB on an H200)."""
_PACKING_GB_PER_S = 5.0
"""At worst, the host first gathers the pieces, at the rate of a core's copy through memory."""

_MANY = 8
"""Minimum number of copies of one size that a following join is of."""
_JOIN = frozenset({"aten::stack", "aten::cat"})


def batch_copies(graph: Graph, request: Request) -> Applied:
    """Merge runs of small copies into one copy each."""
    awaits_copy = mask_of(waits_of_copies(graph, values=True), len(graph.calls))
    runs = _runs(graph, awaits_copy)
    calls_of_thread = [rows for _, rows in graph.by_thread()]
    threads = [int(graph.calls.thread[graph.items.call[run[0]]]) for run in runs]
    joined = [
        _calls_of(graph, run, calls_of_thread[thread], awaits_copy) for run, thread in zip(runs, threads, strict=True)
    ]
    rows, firsts = np.concatenate([*runs, NOTHING]), np.array([run[0] for run in runs], np.int64)
    # The merged copy needs everything that the pieces needed.
    into = np.arange(len(graph.items))
    into[rows] = np.repeat(firsts, [len(run) for run in runs])
    items = _items(graph, runs, request)
    changed = replace(
        graph,
        items=items,
        calls=_calls(graph, joined, items.bytes[firsts], request.stance),
        orders=replace(graph.orders, then=into[graph.orders.then]),
        waits=_waits(graph, joined),
    )
    if request.stance != Stance.WORST:
        changed = without_time_in(changed, _joins(graph, runs)).graph
    what = f"{copies(graph, rows)} become {plural(len(runs), 'copy')}."
    return Applied(changed, np.concatenate([*joined, NOTHING]), len(rows), what, firsts)


def _joins(graph: Graph, runs: list[I64]) -> HostEvents:
    """Return the ops that join the pieces on the device, right after many copies of one size: the copy has them joined.

    Their kernels stay.
    """
    ops, items = graph.trace.cpu_ops, graph.items
    rows: list[int] = []
    for run in runs:
        call = items.call[run[-1]]
        of_thread = rows_of(ops, graph.recorded.threads[int(graph.calls.thread[call])])
        following = of_thread[np.searchsorted(ops.start_ns[of_thread], graph.calls.end_ns[call]) :][:1]
        if len(run) >= _MANY and (items.bytes[run] == items.bytes[run[0]]).all():
            rows += [row for row in following.tolist() if ops.name(row) in _JOIN]
    return ops.take(np.array(rows, np.int64))


def _items(graph: Graph, runs: list[I64], request: Request) -> DeviceItems:
    """Return the items: the first of each run copies everything, the others are gone."""
    items = graph.items
    new = items.copied("bytes", "duration_ns", "gone")
    for run in runs:
        first = run[0]
        new.bytes[first] = items.bytes[run].sum()
        if items.host_memory[first] == Memory.PAGEABLE:
            new.duration_ns[first] = items.duration_ns[run].sum()
        else:
            kind, size = Kind(int(items.kind[first])), new.bytes[[first]]
            new.duration_ns[first] = request.hardware.copy_ns(kind, size, request.stance)[0]
        new.gone[run[1:]] = True
    return new


def _calls(graph: Graph, joined: list[I64], sizes: I64, stance: Stance) -> Calls:
    """Return the calls: only the first of each run (`joined`) is left, which copies this many bytes (`sizes`)."""
    new = graph.calls.copied("before_ns", "length_ns")
    for calls, size in zip(joined, sizes.tolist(), strict=True):
        first, dropped = calls[0], calls[1:]
        new.before_ns[dropped] = new.length_ns[dropped] = 0
        if stance == Stance.BEST:
            # Long work before the first copy may have been splitting the pieces.
            new.before_ns[first] = min(int(new.before_ns[first]), int(np.median(graph.calls.before_ns[dropped])))
        elif stance == Stance.WORST:
            new.before_ns[first] += int(size / _PACKING_GB_PER_S)
    return new


def _waits(graph: Graph, joined: list[I64]) -> Waits:
    """Return the waits: the merged copy keeps the last one of its run, if there was any."""
    by_call = np.argsort(graph.waits.call, kind="stable")
    waited = graph.waits.call[by_call]
    stays = np.ones(len(graph.waits), np.bool_)
    for calls in joined:
        places = expand(np.searchsorted(waited, calls), np.searchsorted(waited, calls, side="right"))[1]
        stays[np.sort(by_call[places])[:-1]] = False
    return graph.waits.take(stays)


def _runs(graph: Graph, awaits_copy: Bool) -> list[I64]:
    """Find runs of small copies of the same direction and memory, launched successively on a lane by a thread.

    Args:
        awaits_copy: Mask of the calls that are waits of copies.

    Returns:
        For each run, the rows of its copies.
    """
    items, calls = graph.items, graph.calls
    launched = np.flatnonzero((items.call >= 0) & ~items.gone)
    thread = calls.thread[items.call[launched]]
    order = launched[np.lexsort((calls.start_ns[items.call[launched]], thread))]
    small = items.is_copy[order] & (items.bytes[order] <= SMALL_BYTES) & (items.bytes[order] > 0)
    same = small[1:] & small[:-1]
    step = step_of_items(graph)
    # Any other call between two copies may be there for a reason.
    other = ~awaits_copy
    other[items.call[order[small]]] = False
    by_thread = np.concatenate([rows for _, rows in graph.by_thread()] or [NOTHING])
    before = np.empty(len(calls), np.int64)
    before[by_thread] = np.cumsum(other[by_thread])
    waited = before[items.call]
    for column in (items.lane, items.kind, items.host_memory, calls.thread[items.call], step, waited):
        same &= column[order][1:] == column[order][:-1]
    begins = np.flatnonzero(np.append(True, ~same))
    ends = np.append(begins[1:], len(order))
    several = ends - begins > 1
    return [order[begin:end] for begin, end in zip(begins[several].tolist(), ends[several].tolist(), strict=True)]


def _calls_of(graph: Graph, run: I64, line: I64, awaits_copy: Bool) -> I64:
    """Return the calls from the first copy's to the last's, with the waits after them; `line`: their thread's calls."""
    ends = graph.items.call[run[[0, -1]]]
    low, high = np.searchsorted(line, ends).tolist()
    # A synchronize after the last copy belongs to the run, too.
    if high + 1 < len(line) and awaits_copy[line[high + 1]]:
        high += 1
    return line[low : high + 1]

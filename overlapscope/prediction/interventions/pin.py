"""Copies from and to pinned memory."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import pinning
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import FEWEST, KERNEL_LAUNCH, QUERY, Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions._changes import copies, without_time_in
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import Kind, Memory


def pin(graph: Graph, request: Request) -> Applied:
    """Make pageable copies as fast as pinned ones, and `pin_memory()` take no time."""
    items, pinned_here = graph.items, pinning(graph.trace)
    pageable = np.flatnonzero(items.is_copy & (items.host_memory == Memory.PAGEABLE) & ~items.gone)
    staged = pageable[items.bytes[pageable] > 0]
    faster = staged
    if len(pinned_here):
        # If the host pins during steps, this moves the same bytes through its memory a second time.
        either = among(items.host_memory, (Memory.PAGEABLE, Memory.PINNED))
        faster = np.flatnonzero(items.is_copy & either & (items.bytes > 0) & ~items.gone)
    changed, without_pinning, spared_ns = without_time_in(_pinned(graph, request, staged, faster), pinned_here)
    changed = without_giving_back(with_warm_caches(changed, staged, request), staged, request)
    calls = np.concatenate([graph.callers(staged), without_pinning])
    touched = len(staged) + len(without_pinning)
    if not touched:
        return Applied(graph, calls, 0, "")
    effects = []
    if len(staged) or not spared_ns:
        took = duration(float((items.end_ns - items.start_ns)[staged].sum()))
        takes = duration(float(changed.items.duration_ns[staged].sum()))
        effects.append(f"{copies(graph, staged)} take {takes} instead of {took}")
    if spared_ns:
        effects.append(f"pin_memory() no longer takes {duration(spared_ns)} of the host's time")
    what = ", and ".join(effects)
    if len(staged) < len(pageable):
        what += f" ({plural(len(pageable) - len(staged), 'copy')} of unknown size unchanged)"
    return Applied(changed, calls, touched, f"{what}.", faster)


def _pinned(graph: Graph, request: Request, staged: I64, faster: I64) -> Graph:
    """Return the graph with the `staged` copies from and to pinned memory, and the `faster` ones as fast as these."""
    constants = graph.constants
    items = graph.items.copied("duration_ns", "launch_lag_ns", "engine_lag_ns", "after_call", "host_memory")
    calls = graph.calls.copied("length_ns")
    for kind in (Kind.H2D, Kind.D2H):
        rows = faster[items.kind[faster] == kind]
        alone_ns = request.hardware.copy_ns(kind, items.bytes[rows], request.stance)
        items.duration_ns[rows] = np.minimum(items.duration_ns[rows], alone_ns)
    launched = staged[items.call[staged] >= 0]
    items.launch_lag_ns[launched] = constants.copy_latency_ns or 0
    items.after_call[launched] = False
    items.engine_lag_ns[staged] = constants.kernel_gap_ns or 0
    items.host_memory[staged] = Memory.PINNED
    called = graph.callers(faster)
    calls.length_ns[called] = np.minimum(calls.length_ns[called], constants.copy_call_ns or 0)
    of_copies = mask_of(staged, len(items))[graph.waits.item] & (items.call[graph.waits.item] == graph.waits.call)
    return replace(graph, items=items, calls=calls, waits=graph.waits.take(~of_copies))


_EVICTS_BYTES = 1 << 20
"""Minimum size of a staged copy that evicts a core's own caches (1 to 2 MiB on current servers)."""
_COLD_NS = {Stance.BEST: 1_000_000, Stance.EXPECTED: 200_000, Stance.WORST: 0}
"""Length of the host's work after a staged copy that runs slower because of it."""
_WARM_AFTER_NS = 2_000_000
_FRESH_BYTES = 32 << 20
"""Minimum size of memory that malloc takes from the system and returns at once (glibc, M_MMAP_THRESHOLD_MAX)."""
_RETURN_NS_PER_BYTE = 0.021
"""Cost of returning memory: 64 ms for 2.95 GB in pages of 4 KiB (traces/laboratory/offload_store/cpu)."""
_MAKES = ("aten::empty", "aten::empty_strided", "aten::empty_like")
_USUAL_NS = 100_000
"""Minimum length of host work that may return memory of that size."""


def with_warm_caches(graph: Graph, staged: I64, request: Request) -> Graph:
    """Return the graph with the host's work after the given copies, and after `pin_memory()`, at its normal speed."""
    items, calls = graph.items, graph.calls
    big = staged[(items.bytes[staged] >= _EVICTS_BYTES) & (items.call[staged] >= 0)]
    evicts = graph.launching(big)
    evicts[_before_pinning(graph)] = True
    ratio = _slowness(graph, np.flatnonzero(evicts), request)
    cold = _COLD_NS[request.stance]
    if ratio <= 1 or not cold:
        return graph
    new = calls.copied("before_ns", "length_ns")
    waits = mask_of(graph.waits.call, len(calls))
    for _, rows in graph.by_thread():
        cold_left = 0.0
        for call in rows.tolist() if evicts[rows].any() else ():
            slow = min(cold_left, new.before_ns[call])
            new.before_ns[call] -= round(slow * (1 - 1 / ratio))
            cold_left -= slow
            if not waits[call] and not evicts[call]:
                slow = min(cold_left, new.length_ns[call])
                new.length_ns[call] -= round(slow * (1 - 1 / ratio))
                cold_left -= slow
            if evicts[call]:
                cold_left = cold
    return replace(graph, calls=new)


def _before_pinning(graph: Graph) -> I64:
    """Return the last call of its thread before each `pin_memory()`."""
    ops, calls = pinning(graph.trace), graph.calls
    rows = [graph.waits.call[:0]]
    for thread, of_thread in graph.by_thread() if len(ops) else ():
        place = np.searchsorted(calls.start_ns[of_thread], ops.start_ns[ops.thread == thread]) - 1
        rows.append(of_thread[distinct(place[place >= 0])])
    return np.concatenate(rows)


def _slowness(graph: Graph, evicting: I64, request: Request) -> float:
    """Return how much longer calls take right after those that evict the caches; 1 if unknown."""
    runtime = graph.trace.runtime_calls
    for pattern, field in ((QUERY, "query_call_ns"), (KERNEL_LAUNCH, "launch_call_ns")):
        rows = np.flatnonzero(call_kinds.named(runtime, pattern))
        ended = np.sort(graph.calls.end_ns[evicting])
        last = np.searchsorted(ended, runtime.start_ns[rows], side="right") - 1
        since = np.where(last >= 0, runtime.start_ns[rows] - pick(ended, last, 0), 2**62)
        length = runtime.end_ns[rows] - runtime.start_ns[rows]
        cold, warm = length[since < _WARM_AFTER_NS], length[since >= _WARM_AFTER_NS]
        usual = float(np.median(warm)) if len(warm) >= FEWEST else getattr(request.hardware.calibrated, field)
        if len(cold) >= FEWEST and usual:
            ratio = max(1.0, float(np.median(cold)) / usual)
            return ratio**2 if request.stance == Stance.BEST else ratio
    return 1.0


def without_giving_back(graph: Graph, staged: I64, request: Request) -> Graph:
    """Return the graph without the time that returns downloads' memory to the system.

    The time is taken from the longest stretches of work between calls of the same step.
    """
    items, calls, trace = graph.items, graph.calls, graph.trace
    fresh = staged[(items.kind[staged] == Kind.D2H) & (items.bytes[staged] >= _FRESH_BYTES) & (items.call[staged] >= 0)]
    if request.stance == Stance.WORST or not len(fresh) or not len(trace.cpu_ops):
        return graph
    into_new = fresh[_into_new_memory(graph, items.call[fresh])]
    step = step_of_items(graph)
    before = calls.before_ns.copy()
    for number in distinct(step[into_new]).tolist():
        return_ns = round(_RETURN_NS_PER_BYTE * float(items.bytes[into_new[step[into_new] == number]].sum()))
        # Include the next step's first calls: memory of a step is returned before the next step allocates its own.
        launched = items.call[(step == number) & (items.call >= 0)]
        here = np.arange(int(launched.min()), min(int(launched.max()) + 3, len(calls)))
        for call in here[np.argsort(-before[here], kind="stable")].tolist():
            taken = max(0, min(return_ns, int(before[call]) - _USUAL_NS))
            before[call] -= taken
            return_ns -= taken
    return replace(graph, calls=replace(calls, before_ns=before))


def _into_new_memory(graph: Graph, call: I64) -> Bool:
    """Return a mask of the copies whose op, or the op right before it on the thread, allocated the target memory."""
    ops, runtime = graph.trace.cpu_ops, graph.trace.runtime_calls
    rows = graph.calls.row[call]
    makes = ops.named(lambda name: name in _MAKES)
    new = np.zeros(len(call), np.bool_)
    for thread, of_thread in rows_by(runtime.thread[rows]):
        at = runtime.start_ns[rows[of_thread]]
        allocated_ns = ops.start_ns[makes & (ops.thread == thread)]
        last_copied, last_made = (
            pick(past, np.searchsorted(past, at) - 1, -(2**62)) for past in (np.sort(at), allocated_ns)
        )
        new[of_thread] = last_made > last_copied
    return new

"""Host time saved if copies are no longer staged through pageable memory, besides the copies themselves.

A staged copy has two effects that no call shows. The driver's copy through host memory evicts everything from the
caches, so that the host's next code runs slower for a while. Trivial calls then take twice as long
(cudaStreamIsCapturing, 0.54 us instead of 0.25 on an H200's host), and so does the code between them. Also, memory
allocated for a download is returned to the system page by page.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import pinning
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import distinct, rows_by
from overlapscope.base.intervals import I64, Bool
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions.intervention import Request
from overlapscope.prediction.observed_hardware import FEWEST, KERNEL_LAUNCH, QUERY
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import Kind

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
        usual = float(np.median(warm)) if len(warm) >= FEWEST else request.hardware.host_ns(field)
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

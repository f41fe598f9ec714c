"""Copies from and to pinned memory, and many small copies as a large one."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import mask_of, pick
from overlapscope.base.grouping import among, distinct, rows_by
from overlapscope.base.intervals import expand
from overlapscope.base.words import duration, plural, size
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.hardware import MIN_OBSERVATIONS, Stance, launches_single_kernel, queries_capture
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions.host import NOTHING, waits_of_copies, without_time_in
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.host import pinning, rows_of
from overlapscope.trace.model import I64, Bool, HostEvents, Kind, Memory


def copies(graph: Graph, rows: I64) -> str:
    """Return the number of copies and their size: `96 copies of 4.9 GB in total`."""
    return f"{plural(len(rows), 'copy')} of {size(int(graph.items.bytes[rows].sum()))} in total"


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
_ALLOCATING_OPS = ("aten::empty", "aten::empty_strided", "aten::empty_like")
_USUAL_NS = 100_000
"""Minimum length of host work that may return memory of that size."""


def with_warm_caches(graph: Graph, staged: I64, request: Request) -> Graph:
    """Return the graph with the host's work after the given copies, and after `pin_memory()`, at its normal speed."""
    items, calls = graph.items, graph.calls
    big = staged[(items.bytes[staged] >= _EVICTS_BYTES) & (items.call[staged] >= 0)]
    evicts, pins = graph.launching(big), pinning(graph.trace)
    for thread, of_thread in graph.by_thread() if len(pins) else ():
        # The last call of a thread before it pins memory.
        place = np.searchsorted(calls.start_ns[of_thread], pins.start_ns[pins.thread == thread]) - 1
        evicts[of_thread[place[place >= 0]]] = True
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


def _slowness(graph: Graph, evicting: I64, request: Request) -> float:
    """Return how much longer calls take right after those that evict the caches; 1 if unknown."""
    runtime = graph.trace.runtime_calls
    for selects, field in ((queries_capture, "query_call_ns"), (launches_single_kernel, "launch_call_ns")):
        rows = np.flatnonzero(selects(runtime))
        ended = np.sort(graph.calls.end_ns[evicting])
        last = np.searchsorted(ended, runtime.start_ns[rows], side="right") - 1
        since = np.where(last >= 0, runtime.start_ns[rows] - pick(ended, last, 0), 2**62)
        length = runtime.end_ns[rows] - runtime.start_ns[rows]
        cold, warm = length[since < _WARM_AFTER_NS], length[since >= _WARM_AFTER_NS]
        usual = float(np.median(warm)) if len(warm) >= MIN_OBSERVATIONS else getattr(request.hardware.calibrated, field)
        if len(cold) >= MIN_OBSERVATIONS and usual:
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
    makes = ops.named(lambda name: name in _ALLOCATING_OPS)
    new = np.zeros(len(call), np.bool_)
    for thread, of_thread in rows_by(runtime.thread[rows]):
        at = runtime.start_ns[rows[of_thread]]
        allocated_ns = ops.start_ns[makes & (ops.thread == thread)]
        last_copied, last_made = (
            pick(past, np.searchsorted(past, at) - 1, -(2**62)) for past in (np.sort(at), allocated_ns)
        )
        new[of_thread] = last_made > last_copied
    return new


SMALL_BYTES = 1 << 20
"""Maximum size of copies to join: beyond, latency is a small part of a copy (7 us of 22 at 1 MiB on an H200)."""
_PACKING_GB_PER_S = 5.0
"""At worst, the host first gathers the pieces, at the rate of a core's copy through memory."""

_MIN_COPIES_TO_JOIN = 8
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
    changed = _merged(graph, runs, joined, request)
    changed = replace(changed, orders=replace(graph.orders, then=into[graph.orders.then]))
    if request.stance != Stance.WORST:
        changed = without_time_in(changed, _joins(graph, runs)).graph
    what = f"{copies(graph, rows)} become {plural(len(runs), 'copy')}."
    return Applied(changed, np.concatenate([*joined, NOTHING]), len(rows), what, firsts)


def _joins(graph: Graph, runs: list[I64]) -> HostEvents:
    """Return the ops that join the pieces on the device, right after many copies of one size: the copy has them joined.

    Their kernels stay.
    """
    ops, items = graph.trace.cpu_ops, graph.items
    alike = (run for run in runs if len(run) >= _MIN_COPIES_TO_JOIN and (items.bytes[run] == items.bytes[run[0]]).all())
    call = items.call[np.array([run[-1] for run in alike], np.int64)]
    following = np.full(len(call), -1)
    for thread, of_thread in rows_by(graph.calls.thread[call]):
        rows = rows_of(ops, graph.threads[thread])
        place = np.searchsorted(ops.start_ns[rows], graph.calls.end_ns[call[of_thread]])
        following[of_thread] = pick(rows, place)
    return ops.take(np.sort(following[pick(ops.named(_JOIN.__contains__), following, False)]))


def _merged(graph: Graph, runs: list[I64], joined: list[I64], request: Request) -> Graph:
    """Return the graph in which the first copy of each run copies everything, and its call is all that is left.

    Of the waits of a run, given its calls (`joined`), the merged copy keeps the last one.
    """
    items, calls, stance = graph.items, graph.calls, request.stance
    new_items = items.without(np.concatenate([NOTHING, *(run[1:] for run in runs)])).copied("bytes")
    new_calls = calls.copied("before_ns", "length_ns")
    by_call = np.argsort(graph.waits.call, kind="stable")
    waited = graph.waits.call[by_call]
    stays = np.ones(len(graph.waits), np.bool_)
    for run, of_run in zip(runs, joined, strict=True):
        first, call, dropped, size = run[0], of_run[0], of_run[1:], items.bytes[run].sum(keepdims=True)
        new_items.bytes[first] = size[0]
        if items.host_memory[first] == Memory.PAGEABLE:
            new_items.duration_ns[first] = items.duration_ns[run].sum()
        else:
            new_items.duration_ns[first] = request.hardware.copy_ns(Kind(int(items.kind[first])), size, stance)[0]
        new_calls.before_ns[dropped] = new_calls.length_ns[dropped] = 0
        if stance == Stance.BEST:
            # Long work before the first copy may have been splitting the pieces.
            new_calls.before_ns[call] = min(int(new_calls.before_ns[call]), int(np.median(calls.before_ns[dropped])))
        elif stance == Stance.WORST:
            new_calls.before_ns[call] += int(size[0] / _PACKING_GB_PER_S)
        places = expand(np.searchsorted(waited, of_run), np.searchsorted(waited, of_run, side="right"))[1]
        stays[np.sort(by_call[places])[:-1]] = False
    return replace(graph, items=new_items, calls=new_calls, waits=graph.waits.take(stays))


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

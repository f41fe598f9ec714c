"""The host does not wait: in a blocking call, or for copies."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import around, find_blocking, inside_named, loading
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64, Bool
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph, Waits
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request
from overlapscope.prediction.interventions._changes import LONG_WORK_NS, time_in
from overlapscope.trace.model import Kind, Memory

_NEXT_NS = 20_000
"""Maximum time between a copy's call and a synchronize by the same op, for it to be the copy's own
(ATen/native/cuda/Copy.cu)."""
_OWN_NS = 5_000
"""Maximum of that time if no ops were recorded. Seen: 0.15 to 4 us inside `copy_`, and 7 us or more for Python code."""
_VALUE_BYTES = 16
"""Maximum size of a download that reads a value: `item()` copies and waits as `copy_` does."""


# -- A blocking call returns at once -----------------------------------------------------------------


def no_sync(graph: Graph, request: Request) -> Applied:
    """Let blocking calls of a name return at once."""
    calls, runtime = graph.calls, graph.trace.runtime_calls
    blocks = np.flatnonzero(among(calls.row, find_blocking(graph.trace).row))
    rows = calls.row[blocks]
    call_name = request.argument or ""
    called = runtime.named(lambda name: name == call_name)[rows]
    named = blocks[called | inside_named(graph.trace, call_name, runtime.thread[rows], runtime.start_ns[rows])]
    if request.stance == Stance.WORST:
        # At worst, the host needs the result of the wait.
        return Applied(graph, named, len(named), "The calls still wait.")
    new_calls = calls.copied("length_ns")
    new_calls.length_ns[named] = np.minimum(calls.length_ns[named], graph.constants.sync_call_ns or 0)
    waits = graph.waits.take(~among(graph.waits.call, named))
    changed = replace(graph, calls=new_calls, waits=waits)
    waited = (calls.end_ns - calls.start_ns)[named].sum()
    what = f"{plural(len(named), 'call')} of {call_name} that took {duration(waited)} in total return at once."
    return Applied(changed, named, len(named), what)


# -- Copies do not block -----------------------------------------------------------------------------


def non_blocking(graph: Graph, request: Request) -> Applied:
    """Remove the waits for copies."""
    items, calls = graph.items, graph.calls
    runtime = graph.trace.runtime_calls
    copied = np.flatnonzero(items.is_copy & ~items.gone & (items.call >= 0))
    waits = waits_of_copies(graph)
    # cudaMemcpy and similar calls wait by contract; cudaMemcpyAsync from pinned memory does not.
    pinned = copied[items.host_memory[copied] == Memory.PINNED]
    blocking = items.call[pinned][call_kinds.copies_blocking(runtime)[calls.row][items.call[pinned]]]
    if request.stance == Stance.WORST:
        # The host reads downloads, so their waits stay.
        down = graph.waits.call[items.kind[graph.waits.item] == Kind.D2H]
        waits, blocking = waits[~among(waits, down)], blocking[~among(blocking, down)]
    is_synchronize = among(graph.waits.call, waits)
    is_copy_call = among(graph.waits.call, blocking) & (items.call[graph.waits.item] == graph.waits.call)
    new_calls = calls.copied("before_ns", "length_ns")
    waited = (calls.end_ns - calls.start_ns)[waits].sum()
    # At worst, the call's own time returns as host time elsewhere.
    new_calls.length_ns[waits] = (graph.constants.sync_call_ns or 0) if request.stance == Stance.WORST else 0
    new_calls.before_ns[waits] = 0
    new_calls.length_ns[blocking] = np.minimum(new_calls.length_ns[blocking], graph.constants.copy_call_ns or 0)
    changed = replace(graph, calls=new_calls, waits=graph.waits.take(~(is_synchronize | is_copy_call)))
    if request.stance == Stance.EXPECTED:
        dropped = graph.waits.take(is_synchronize | is_copy_call)
        changed = replace(changed, waits=Waits.joined([changed.waits, _read_by_host(graph, dropped)]))
    touched = distinct(np.concatenate([waits, blocking]))
    what = f"{plural(len(touched), 'wait')} after copies, {duration(waited)} in total, no longer happen."
    return Applied(changed, touched, len(touched), what)


def _read_by_host(graph: Graph, dropped: Waits) -> Waits:
    """Return the waits that remain: a download must end before the host next works for long by itself.

    Any such work, except a DataLoader's, is assumed to need the data, as kernels are assumed to need uploads.
    """
    items, calls = graph.items, graph.calls
    since = calls.since_ns
    works = calls.start_ns - since - time_in(graph.recorded, loading)
    long = np.flatnonzero(works >= LONG_WORK_NS)
    long = long[np.argsort(since[long], kind="stable")]
    downloads = dropped.take(items.kind[dropped.item] == Kind.D2H)
    reader = np.searchsorted(since[long], calls.end_ns[downloads.call])
    read = reader < len(long)
    # The call before the work returns when the data has arrived.
    before = np.where(calls.handed_by >= 0, calls.handed_by, graph.previous)[long[reader[read]]]
    waits = Waits.of(before, downloads.item[read], graph.constants.return_ns or 0)
    return waits.take(before >= 0)


def waits_of_copies(graph: Graph, *, values: bool = False) -> I64:
    """Return the synchronizes that a copy's op made right after it, as `copy_` does unless non_blocking.

    With `values`, also those of ops that read a value, as `item()` does.
    """
    calls, items = graph.calls, graph.items
    syncs = call_kinds.synchronises(graph.trace.runtime_calls)[calls.row]
    previous = graph.previous
    behind = syncs & pick(graph.launching(items.is_copy & ~items.gone), previous, False)
    waits = np.flatnonzero(behind & (calls.start_ns - pick(calls.end_ns, previous, 0) <= _NEXT_NS))
    copy = previous[waits]
    if values:
        return waits
    if len(graph.trace.cpu_ops):
        return waits[_within_one_op(graph, copy, waits)]
    read = items.call[(items.kind == Kind.D2H) & (items.bytes <= _VALUE_BYTES)]
    return waits[(calls.start_ns[waits] - calls.end_ns[copy] <= _OWN_NS) & ~among(copy, read)]


def _within_one_op(graph: Graph, copy: I64, sync: I64) -> Bool:
    """Return whether both calls are inside the same `copy_`, unlike those of `item()`, which reads a value."""
    calls, ops = graph.calls, graph.trace.cpu_ops
    thread = graph.trace.runtime_calls.thread[calls.row[copy]]
    inside = around(ops, thread, calls.start_ns[copy])
    ends: Bool = pick(ops.end_ns, inside, 0) >= calls.end_ns[sync]
    is_copy = pick(ops.named(lambda name: name == "aten::copy_"), inside, False)
    return is_copy & ends

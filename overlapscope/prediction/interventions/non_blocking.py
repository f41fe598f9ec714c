"""Copies that do not block the host."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis import calls as call_kinds
from overlapscope.analysis.host import loading
from overlapscope.base.grouping import among, distinct
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph, Waits
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import LONG_WORK_NS, time_in, waits_of_copies
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.trace.model import Kind, Memory


def _apply(graph: Graph, request: Request) -> Applied:
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
    wait_of_own = among(graph.waits.call, waits)
    wait_of_copy = among(graph.waits.call, blocking) & (items.call[graph.waits.item] == graph.waits.call)
    new_calls = calls.copied("before_ns", "length_ns")
    waited = (calls.end_ns - calls.start_ns)[waits].sum()
    # At worst, the call's own time returns as host time elsewhere.
    new_calls.length_ns[waits] = (graph.constants.sync_call_ns or 0) if request.stance == Stance.WORST else 0
    new_calls.before_ns[waits] = 0
    new_calls.length_ns[blocking] = np.minimum(new_calls.length_ns[blocking], graph.constants.copy_call_ns or 0)
    changed = replace(graph, calls=new_calls, waits=graph.waits.take(~(wait_of_own | wait_of_copy)))
    if request.stance == Stance.EXPECTED:
        dropped = graph.waits.take(wait_of_own | wait_of_copy)
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


INTERVENTION = Intervention(
    id="non-blocking",
    meaning="The synchronize after a copy disappears, and copy calls that wait by contract return at once if the "
    "host memory is pinned. Copy calls from or to pageable memory still block.",
    assumptions=(
        Premise(
            "The host reads downloaded data only when it next works on its own for a millisecond or more, and "
            "does not overwrite data that is still being copied.",
            True,
        ),
    ),
    advice="Copy with non_blocking=True and pinned host memory.\n"
    "Use tensor.to(device, non_blocking=True) or target.copy_(source, non_blocking=True); read downloaded data "
    "only after an event recorded after the copy.",
    apply=_apply,
    uses=("copy_call_ns",),
)

"""Copies from and to pinned memory."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import pinning
from overlapscope.base.columns import mask_of
from overlapscope.base.grouping import among
from overlapscope.base.intervals import I64
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.interventions._changes import copies, without_time_in
from overlapscope.prediction.interventions._relief import with_warm_caches, without_giving_back
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.trace.model import Kind, Memory


def _apply(graph: Graph, request: Request) -> Applied:
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


INTERVENTION = Intervention(
    id="pin",
    meaning="Copies from and to pageable memory take as long as copies of the same size from and to pinned "
    "memory, and their calls return at once. A synchronize after the call stays; non-blocking removes it. "
    "pin_memory() no longer runs during steps, because memory is pinned once, before them.",
    assumptions=(Premise("The host's buffers are allocated and pinned once, and filled without another copy.", False),),
    advice="Pin the host memory once, outside the loop.\n"
    "Use torch.empty(..., pin_memory=True), DataLoader(pin_memory=True) or tensor.pin_memory(); download with "
    "pinned.copy_(tensor) instead of tensor.cpu().",
    apply=_apply,
    uses=("copy_call_ns", "copy_latency_ns"),
)

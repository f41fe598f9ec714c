"""Copies from and to pinned memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from overlapscope.analysis.host import on_thread, pinning
from overlapscope.base.words import duration, plural
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.interventions._changes import without_host_time
from overlapscope.prediction.interventions._relief import with_warm_caches, without_giving_back
from overlapscope.prediction.interventions._words import copies as copies_text
from overlapscope.prediction.interventions.intervention import Applied, Assumption, Intervention, Request
from overlapscope.trace.model import Kind, Memory


def _apply(graph: Graph, request: Request) -> Applied:
    items, known = graph.items, graph.constants
    ops = pinning(graph.trace)
    pageable = np.flatnonzero(items.is_copy & (items.host_memory == Memory.PAGEABLE) & ~items.gone)
    staged = pageable[items.bytes[pageable] > 0]
    mine = staged
    if len(ops):
        # Where the host pins on the way, it moves the same bytes through its memory a second time meanwhile.
        either = np.isin(items.host_memory, (Memory.PAGEABLE, Memory.PINNED))
        mine = np.flatnonzero(items.is_copy & either & (items.bytes > 0) & ~items.gone)
    length, memory = items.duration_ns.copy(), items.host_memory.copy()
    for kind in (Kind.H2D, Kind.D2H):
        rows = mine[items.kind[mine] == kind]
        length[rows] = np.minimum(length[rows], request.hardware.copy_ns(kind, items.bytes[rows], request.stance))
    memory[staged] = Memory.PINNED
    lag, after, engine = items.launch_lag_ns.copy(), items.after_call.copy(), items.engine_lag_ns.copy()
    launched = staged[items.call[staged] >= 0]
    lag[launched], after[launched], engine[staged] = known.copy_latency_ns or 0, False, known.kernel_gap_ns or 0
    call_ns = graph.calls.length_ns.copy()
    called = items.call[mine[items.call[mine] >= 0]]
    call_ns[called] = np.minimum(call_ns[called], known.copy_call_ns or 0)
    own = np.isin(graph.waits.item, staged) & (items.call[graph.waits.item] == graph.waits.call)
    changed = replace(
        graph,
        items=replace(
            items, duration_ns=length, host_memory=memory, launch_lag_ns=lag, after_call=after, engine_lag_ns=engine
        ),
        calls=replace(graph.calls, length_ns=call_ns),
        waits=graph.waits.take(~own),
    )
    spared, touched = 0, [items.call[launched]]
    for number, thread in enumerate(graph.threads):
        changed, where, went = without_host_time(changed, number, on_thread(ops, thread))
        touched.append(where)
        spared += went
    changed = without_giving_back(with_warm_caches(changed, staged, request), staged, request)
    what = f"{copies_text(graph, staged)} take {duration(float(length[staged].sum()))} instead of " + duration(
        (items.end_ns - items.start_ns)[staged].sum()
    )
    if spared:
        what = f"{what}, and " if len(staged) else ""
        what += f"pin_memory() no longer takes {duration(spared)} of the host's time"
    if len(staged) < len(pageable):
        what += f" ({plural(len(pageable) - len(staged), 'copy')} of unknown size left as they are)"
    changes = len(staged) + sum(len(rows) for rows in touched[1:])
    if not changes:
        return Applied(graph, touched[0], 0, "", mine[:0])
    return Applied(changed, np.concatenate(touched), changes, f"{what}.", mine)


INTERVENTION = Intervention(
    id="pin",
    title="host memory pinned beforehand",
    meaning="Copies from and to pageable memory take as long as copies of their size from and to pinned memory, and "
    "their calls return at once. A synchronize behind the call stays: that is non-blocking's. What pin_memory() does "
    "while steps run goes, since memory is pinned once, before.",
    assumptions=(
        Assumption("The host's buffers are allocated and pinned once, and filled without another copy.", False),
    ),
    advice="Allocate the host's side pinned, once: torch.empty(..., pin_memory=True), DataLoader(pin_memory=True), or "
    "tensor.pin_memory() outside the loop; download with pinned.copy_(tensor) instead of tensor.cpu().",
    apply=_apply,
    uses=("copy_call_ns", "copy_latency_ns"),
)

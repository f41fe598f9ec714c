"""The next step's input, copied during this step."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.host import staging
from overlapscope.base.columns import pick
from overlapscope.base.grouping import among, distinct
from overlapscope.base.intervals import I64
from overlapscope.prediction.graph import Graph, Orders, Why
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions._changes import copies, move, without_time_in
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.model import Kind

_NEVER = 2**62


def _apply(graph: Graph, request: Request) -> Applied:
    items = graph.items
    inputs, step = _inputs(graph)
    if not len(inputs):
        return Applied(graph, inputs, 0, "")
    changed, _ = move(graph, inputs, Stance.BEST)
    # The copy of a step is for the next step, whose first kernel waits for it.
    then = _kernels(graph, items.device[inputs], step + 1, last=False)
    kept = replace(changed, orders=changed.orders.take(~among(changed.orders.first, inputs)))
    needed = then >= 0
    data = Orders.of(inputs[needed], then[needed], graph.constants.handover_ns or 0, Why.DATA)
    if request.stance == Stance.WORST:
        # With a single buffer, the copy waits for the kernels that read it last.
        reads = _kernels(graph, items.device[inputs], step - 1, last=True)
        read = reads >= 0
        data = Orders.joined([data, Orders.of(reads[read], inputs[read], graph.constants.handover_ns or 0, Why.DATA)])
    changed = replace(kept, orders=Orders.joined([kept.orders, data]))
    if request.stance == Stance.BEST:
        # XLA stages several arrays at once on threads of its own; nothing waits for this a step ahead.
        changed = without_time_in(changed, staging(graph.trace)).graph
    what = f"{copies(graph, inputs)}, for which steps wait, run one step earlier on their own stream."
    return Applied(changed, graph.callers(inputs), len(inputs), what)


def _inputs(graph: Graph) -> tuple[I64, I64]:
    """Return the uploads launched before the first kernel of their step on their device, and their steps."""
    items = graph.items
    step = step_of_items(graph)
    at = pick(graph.calls.start_ns, items.call, 0)
    rows = []
    for device in distinct(items.device):
        here = (items.device == device) & ~items.gone & (step >= 0)
        kernel = here & ~items.is_copy
        first = np.full(int(step.max(initial=-1)) + 2, _NEVER)
        np.minimum.at(first, step[kernel], at[kernel])
        rows.append(np.flatnonzero(here & (items.kind == Kind.H2D) & (at < first[step]) & (first[step] < _NEVER)))
    inputs = np.sort(np.concatenate([*rows, graph.orders.first[:0]]))
    return inputs, step[inputs]


def _kernels(graph: Graph, devices: I64, of_steps: I64, *, last: bool) -> I64:
    """Return the first or last kernel of each device and step on the device's busiest lane; -1 for none."""
    items, step = graph.items, step_of_items(graph)
    chosen: dict[tuple[int, int], int] = {}
    for device in distinct(items.device).tolist():
        kernels = np.flatnonzero((items.device == device) & ~items.is_copy & ~items.gone & (step >= 0))
        kernels = kernels[items.lane[kernels] == np.argmax(np.bincount(items.lane[kernels], minlength=1))]
        kernels = kernels[::-1] if last else kernels
        steps, first = np.unique(step[kernels], return_index=True)
        chosen |= {(device, number): row for number, row in zip(steps.tolist(), kernels[first].tolist(), strict=True)}
    wanted = zip(devices.tolist(), of_steps.tolist(), strict=True)
    return np.array([chosen.get(place, -1) for place in wanted], np.int64)


INTERVENTION = Intervention(
    id="prefetch",
    meaning="Uploads that are issued before the first kernel of their step carry the next step's data: they run "
    "on their own stream, and the next step's first kernel waits for them instead of this step's.",
    assumptions=(
        Premise("The next step's input is known when this step starts, and has the same size.", False),
        Premise("Two buffers take turns, so that the copy need not wait for the kernels of the step before.", True),
    ),
    advice="Fetch the next batch before launching the work on this one.\n"
    "Under `with torch.cuda.stream(copies):`, call following = batch.to(device, non_blocking=True), from pinned "
    "memory. Before using it, call torch.cuda.current_stream().wait_stream(copies) and "
    "following.record_stream(torch.cuda.current_stream()).",
    apply=_apply,
    uses=("handover_ns",),
)

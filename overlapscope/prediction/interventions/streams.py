"""Copies on streams of their own: apart from kernels, in both directions at once, or a step ahead."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from overlapscope.base.columns import I64, mask_of, pick
from overlapscope.base.grouping import among, distinct, groups_of
from overlapscope.prediction.data_dependencies import find_needs
from overlapscope.prediction.graph import Graph, OrderReason, Orders
from overlapscope.prediction.hardware import Stance
from overlapscope.prediction.interventions import Applied, Request, ShownNeeds
from overlapscope.prediction.interventions.copies import copies
from overlapscope.prediction.interventions.host import without_time_in
from overlapscope.prediction.steps import step_of_items
from overlapscope.trace.host import staging
from overlapscope.trace.model import Kind


def move(graph: Graph, rows: I64, stance: Stance) -> tuple[Graph, ShownNeeds]:
    """Move copies to lanes of their own, a lane for each of their lanes and directions.

    Dependencies come from `find_needs`. At worst, uploads also wait for earlier kernels, and kernels for earlier
    downloads. At best, no kernel needs an upload without evidence.

    Returns:
        The graph, and how far the recording shows the dependencies.
    """
    items = graph.items
    moved = mask_of(rows, len(items))
    lines = [np.flatnonzero((items.lane == source) & ~items.gone) for source in distinct(items.lane[rows]).tolist()]
    lane, streams = items.lane.copy(), list(graph.streams)
    for line in lines:
        device = streams[int(items.lane[line[0]])][0]
        for kind in (int(Kind.H2D), int(Kind.D2H)):
            leaving = line[moved[line] & (items.kind[line] == kind)]
            if len(leaving):
                lane[leaving] = len(streams)
                # A number that the trace does not use.
                streams.append((device, max(*(stream for _, stream in streams), 0) + 1))
    parted = lane[graph.stated.first] != lane[graph.stated.then]
    stated = graph.stated.take(parted & (moved[graph.stated.first] | moved[graph.stated.then]))
    tied = mask_of(stated.first, len(items)) | mask_of(stated.then, len(items))
    first, then = [stated.first], [stated.then]
    of_lines = [find_needs(graph, line, line[moved[line]], tied) for line in lines]
    for line, needs in zip(lines, of_lines, strict=True):
        copies = line[moved[line]]
        upload = items.kind[copies] == Kind.H2D
        waits = ~upload | (stance == Stance.WORST)
        holds = upload & (needs.shown | (stance == Stance.EXPECTED)) | (stance == Stance.WORST)
        first += [np.where(waits & ~needs.stated, needs.ahead, -1), np.where(holds & ~needs.stated, copies, -1)]
        then += [copies, needs.behind]
    changed = replace(graph, items=replace(items, lane=lane, moved=items.moved | moved), streams=tuple(streams))
    return _with_orders(changed, np.concatenate(first), np.concatenate(then)), ShownNeeds(
        needs=bool(len(rows)) and all((needs.stated | needs.shown).all() for needs in of_lines),
        turns=bool(len(rows)) and all(needs.stated.all() for needs in of_lines),
        by_shapes=sum(int(needs.by_shapes.sum()) for needs in of_lines),
    )


def _with_orders(graph: Graph, first: I64, then: I64) -> Graph:
    """Return the graph with an order for each pair of items that needs its first item's data; -1 stands for no item."""
    real = (first >= 0) & (then >= 0)
    orders = Orders.of(first[real], then[real], graph.constants.handover_ns or 0, OrderReason.DATA)
    return replace(graph, orders=Orders.joined([graph.orders, orders]))


def on_own_lanes(graph: Graph, request: Request, rows: I64, what: str) -> Applied:
    """Move copies to lanes of their own, and describe it: `96 copies of 4.9 GB in total ...`."""
    changed, shown = move(graph, rows, request.stance)
    return Applied(changed, graph.callers(rows), len(rows), f"{copies(graph, rows)} {what}", shown=shown)


# -- On streams of their own -------------------------------------------------------------------------


def side_stream(graph: Graph, request: Request) -> Applied:
    """Move copies away from the kernels' streams."""
    items = graph.items
    computes = distinct(items.lane[~items.is_copy & ~items.gone])
    rows = np.flatnonzero(items.is_copy & ~items.gone & among(items.lane, computes))
    what = "move from the kernels' streams to their own streams, one for each direction."
    return on_own_lanes(graph, request, rows, what)


# -- Uploads and downloads at once -------------------------------------------------------------------


def two_way(graph: Graph, request: Request) -> Applied:
    """Move downloads away from the uploads' streams."""
    items = graph.items
    present = items.is_copy & ~items.gone
    uploads = distinct(items.lane[present & (items.kind == Kind.H2D)])
    rows = np.flatnonzero(present & (items.kind == Kind.D2H) & among(items.lane, uploads))
    what = "to the host move away from the streams that also carry copies to the GPU."
    return on_own_lanes(graph, request, rows, what)


# -- A step ahead ------------------------------------------------------------------------------------


_NEVER = 2**62


def prefetch(graph: Graph, request: Request) -> Applied:
    """Run the copies that a step begins with one step earlier."""
    items, step_of_item = graph.items, step_of_items(graph)
    # Inputs are the uploads launched before the first kernel of their step on their device.
    at = pick(graph.calls.start_ns, items.call, 0)
    here = ~items.gone & (step_of_item >= 0)
    kernel = here & ~items.is_copy
    group = groups_of((items.device, step_of_item))
    first = np.full(len(items), _NEVER)
    np.minimum.at(first, group[kernel], at[kernel])
    first = first[group]
    inputs = np.flatnonzero(here & (items.kind == Kind.H2D) & (at < first) & (first < _NEVER))
    step = step_of_item[inputs]
    if not len(inputs):
        return Applied(graph, inputs, 0, "")
    changed, _ = move(graph, inputs, Stance.BEST)
    # The copy of a step is for the next step, whose first kernel waits for it.
    then = _kernels(graph, items.device[inputs], step + 1, last=False)
    kept = replace(changed, orders=changed.orders.take(~among(changed.orders.first, inputs)))
    changed = _with_orders(kept, inputs, then)
    if request.stance == Stance.WORST:
        # With a single buffer, the copy waits for the kernels that read it last.
        changed = _with_orders(changed, _kernels(graph, items.device[inputs], step - 1, last=True), inputs)
    if request.stance == Stance.BEST:
        # XLA stages several arrays at once on threads of its own; nothing waits for this a step ahead.
        changed = without_time_in(changed, staging(graph.trace)).graph
    what = f"{copies(graph, inputs)}, for which steps wait, run one step earlier on their own stream."
    return Applied(changed, graph.callers(inputs), len(inputs), what)


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

"""Copies on streams of their own."""

from __future__ import annotations

import numpy as np

from overlapscope.base.grouping import among, distinct
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.interventions._changes import on_own_lanes
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request


def _apply(graph: Graph, request: Request) -> Applied:
    items = graph.items
    computes = distinct(items.lane[~items.is_copy & ~items.gone])
    rows = np.flatnonzero(items.is_copy & ~items.gone & among(items.lane, computes))
    what = "move from the kernels' streams to their own streams, one for each direction."
    return on_own_lanes(graph, request, rows, what)


INTERVENTION = Intervention(
    id="side-stream",
    meaning="Copies on streams that also run kernels move to their own streams, one for each direction. Events "
    "keep the order that data needs: the next kernel waits for an upload before it, a download for the "
    "kernel before it.",
    assumptions=(
        Premise(
            "A kernel needs the uploads issued before it on its stream, and a download the kernels before it.",
            costed=False,
            harmless=True,
        ),
        Premise(
            "Buffers take turns: an upload need not wait for the kernels before it, nor a kernel for a download.",
            True,
        ),
    ),
    advice="Issue copies on their own CUDA streams, one for each direction.\n"
    "Use `with torch.cuda.stream(copies):`, pinned memory and non_blocking=True. Join with events: "
    "compute.wait_event(uploaded) before the kernel that reads the data, downloads.wait_event(computed) before "
    "the copy back. Use two buffers in turn, or tensor.record_stream().",
    apply=_apply,
    uses=("handover_ns", "h2d_two_way", "d2h_two_way"),
)

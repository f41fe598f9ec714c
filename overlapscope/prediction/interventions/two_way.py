"""Uploads and downloads at once."""

from __future__ import annotations

import numpy as np

from overlapscope.base.grouping import among, distinct
from overlapscope.prediction.graph import Graph
from overlapscope.prediction.interventions._changes import on_own_lanes
from overlapscope.prediction.interventions.intervention import Applied, Intervention, Premise, Request
from overlapscope.trace.model import Kind


def _apply(graph: Graph, request: Request) -> Applied:
    items = graph.items
    present = items.is_copy & ~items.gone
    uploads = distinct(items.lane[present & (items.kind == Kind.H2D)])
    rows = np.flatnonzero(present & (items.kind == Kind.D2H) & among(items.lane, uploads))
    return on_own_lanes(
        graph, request, rows, ("to the host move away from the streams that also carry copies to the GPU.")
    )


INTERVENTION = Intervention(
    id="two-way",
    meaning="Downloads (D2H) on streams that also carry uploads (H2D) move to their own stream, so that the link "
    "works in both directions at once. Then each direction is slower, by the contention measured for the "
    "link.",
    assumptions=(
        Premise("A download needs the kernels before it on its stream.", costed=False, harmless=True),
        Premise("Nothing on the stream needs the downloads before it: buffers take turns.", True),
    ),
    advice="Give downloads (D2H) their own CUDA stream.\n"
    "Use torch.cuda.Stream(), apart from the stream of the uploads, and let it wait for the event of the kernel "
    "that makes the data.",
    apply=_apply,
    uses=("handover_ns", "h2d_two_way", "d2h_two_way"),
)

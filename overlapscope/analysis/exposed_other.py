"""Kinds of exposed memory work in and between GPUs. If several run at once, the first in the order of causes counts."""

from __future__ import annotations

import numpy as np

from overlapscope.analysis.blockers import cut_up, running_in
from overlapscope.analysis.event_waits import EXACT
from overlapscope.analysis.pieces import ExposedOther
from overlapscope.analysis.timeline import Timeline
from overlapscope.base.columns import I64
from overlapscope.catalog.causes import OTHER_RANK as RANK
from overlapscope.catalog.causes import OtherCause
from overlapscope.trace import op_names
from overlapscope.trace.model import Kind


def attribute(timeline: Timeline) -> ExposedOther:
    """Return the exposed memory work, divided by kind."""
    ops = timeline.ops
    rows = np.flatnonzero((ops.kind == Kind.OTHER) | (ops.kind == Kind.P2P))
    begin, end = ops.start_ns[rows], ops.end_ns[rows]
    starts, ends = cut_up(timeline.exposed_other, np.concatenate([begin, end]))
    which, piece = running_in(starts, begin, end)
    rank = _ranks(timeline)[rows[which]]
    order = np.lexsort((rank, piece))
    first = order[np.flatnonzero(np.diff(piece[order], prepend=-1))]
    return ExposedOther.filled(
        start_ns=starts, end_ns=ends, cause=rank[first].astype(np.int8), confidence=EXACT, op=rows[which[first]]
    )


def _ranks(timeline: Timeline) -> I64:
    """Return what each op is, if it is memory work in or between GPUs."""
    ops = timeline.ops
    in_order = (
        (OtherCause.PEER_COPY, ops.kind == Kind.P2P),
        (OtherCause.PAGE_MIGRATION, ops.named(op_names.is_migration)),
        (OtherCause.MEMSET, ops.named(op_names.is_fill)),
        (OtherCause.UNKNOWN, ops.named(op_names.hides_direction)),
    )
    return np.select(
        [applies for _, applies in in_order], [RANK[cause] for cause, _ in in_order], RANK[OtherCause.DEVICE_COPY]
    )

"""Rule: many copies so small that latency is their cost."""

from __future__ import annotations

import numpy as np

from overlapscope.base.words import duration, size
from overlapscope.catalog.measures import TINY_BYTES
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import is_not_torch, sampled_lines
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, lost, on_claimed
from overlapscope.trace.model import Kind, Memory

_FIXES = ("batch-copies", "pin", "non-blocking"), ("batch-copies", "pin")
"""Changes to uploads from ordinary memory, besides those to all copies."""


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    ops = claims.device.timeline.ops
    moved = ops.bytes[claims.tiny]
    uploads = claims.tiny[ops.kind[claims.tiny] == Kind.H2D]
    pageable = len(uploads) and (ops.host_memory[uploads] == Memory.PAGEABLE).all()
    typical = int(np.median(ops.end_ns[claims.tiny] - ops.start_ns[claims.tiny]))
    return Draft(
        afterword=sampled_lines(claims, is_not_torch),
        title=f"{claims.times(len(claims.tiny), 'copy')} of {size(int(np.median(moved)))} cost the {claims.gpu} "
        f"{claims.time_a_step(pieces.time_ns)}",
        detail=f"{claims.times(len(claims.tiny), 'copy')} below {size(TINY_BYTES)} move "
        f"{claims.size(int(moved.sum()))}{claims.a_step}. "
        f"Each took {duration(typical)} (median) on the device, which is latency and not bandwidth, and a "
        f"launch on the host. Because of them, {lost(claims, pieces)}.",
        fixes=(*_FIXES, *RULE.fixes) if pageable else None,
        advice=advice_by_case("tiny-copies", claims.gpu)["uploads" if len(uploads) else "downloads"],
        for_all=not len(uploads),
    )


RULE = Rule(
    id="tiny-copies",
    check=on_claimed("tiny-copies", _draft),
    fixes=(("batch-copies",),),
)

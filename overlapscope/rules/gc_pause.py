"""Rule: the GPU waits for Python's garbage collector."""

from __future__ import annotations

from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import host_time, sampled_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=f"{host_time(claims, pieces, IdleCause.GC_PAUSE)}{sampled_lines(claims)}",
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} for Python's garbage collector",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} a collection held the launching thread.",
        advice="Call gc.collect() and gc.freeze() once after start-up.\n"
        "Objects that live until the end are then skipped. Or call gc.disable(), and gc.collect() between steps every "
        "few hundred steps.",
    )


RULE = Rule(
    id="gc-pause",
    severity="warning",
    check=on_claimed("gc-pause", _draft),
    fixes=(("no-gc",),),
    effort="line",
)

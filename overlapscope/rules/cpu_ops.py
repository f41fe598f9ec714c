"""Rule: the GPU waits while the launching thread runs ops on the CPU."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import fewer_threads, is_not_torch, most_in, top_line, with_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        where=top_line(claims, is_not_torch),
        afterword=with_lines(claims, pieces, is_not_torch),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host runs ops on the CPU"
        f"{most_in(claims, is_not_torch)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was inside ops that "
        "launch nothing.",
        advice=f"{fewer_threads(claims)}"
        'Run these ops on the GPU: make their tensors with device="cuda".\n'
        "Or run them on another thread (a DataLoader worker), less often, or right after launching a long stretch of "
        "GPU work, so that both run at the same time.",
    )


RULE = Rule(
    id="cpu-ops",
    severity="warning",
    check=on_claimed("cpu-ops", _draft),
    fixes=(("less-host cpu-ops",),),
)

"""Rule: the GPU waits while the launching thread runs Python."""

from __future__ import annotations

from overlapscope.analysis.host_lines import is_python
from overlapscope.base.words import listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import DATA_PARALLEL, features_of
from overlapscope.rules._launches import owners
from overlapscope.rules._lines import most_in, top_line, with_lines
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    features = features_of(claims.trace)
    plain = [owner.optimizer for owner in owners(claims) if owner.optimizer and not owner.how]
    layers = "" if features.compiled else " Python of the model's own layers disappears with torch.compile(model)."
    fuse = f" {listed(plain)} runs less Python with foreach=True or fused=True." if plain else ""
    return Draft(
        where=top_line(claims, is_python),
        afterword=with_lines(claims, pieces, is_python),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host runs Python between launches"
        f"{most_in(claims, is_python)}",
        detail=f"In {claims.times_a_step(pieces.gaps, 'idle gap')} the launching thread was in Python, "
        "between ops and runtime calls, and the GPU had nothing left to do.",
        fixes=() if features.data_parallel else None,
        advice=DATA_PARALLEL
        if features.data_parallel
        else "Run less Python between launches, or do it while the GPU is busy.\n"
        "Work of its own (metrics, tokenization, logging, checkpoints) fits a DataLoader worker, another thread or "
        f"process, or the time right after launching a long stretch of GPU work.{layers}{fuse}",
    )


RULE = Rule(
    id="python",
    severity="warning",
    check=on_claimed("python", _draft),
    fixes=(("less-host python",),),
)

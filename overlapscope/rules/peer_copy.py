"""Rule: copies between GPUs that run while no kernel does."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.lost import ENGINES


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    total = claims.overlap.p2p_ns
    return Draft(
        title=f"Copies between GPUs run alone for {claims.time_a_step(pieces.time_ns)}",
        detail=f"They take {claims.time_a_step(total * max(1, claims.steps))} in all. For "
        f"{claims.time(pieces.time_ns)}, no kernel and no copy between host and device ran beside them.",
        advice="Copy between GPUs on a stream of its own, and let the consumer wait for an event.\n"
        "PyTorch orders such a copy after the current streams of both GPUs, so start it on a side stream as soon as "
        "its input is ready, and wait just before the result is used. Without peer access (`nvidia-smi topo -p2p r` "
        "shows it), the copy goes through the host; over NVLink it is several times faster than over PCIe. What "
        "stays on one GPU needs no copy.",
    )


RULE = Rule(
    id="peer-copy",
    severity="warning",
    check=on_claimed("peer-copy", _draft),
    rests_on=ENGINES | {"other"},
)

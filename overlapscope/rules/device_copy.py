"""Rule: copies within the GPU's memory that run while no kernel does."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed
from overlapscope.trace.lost import ENGINES


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        title=f"Copies within the GPU's memory run alone for {claims.time_a_step(pieces.time_ns)}",
        detail="No kernel ran beside them. They read and write the GPU's memory, as kernels do, so running them beside "
        "kernels gains less than leaving them out.",
        advice="Copy less: leave out clone(), contiguous() and cat() where a view or writing in place does.\n"
        "Write results into a slice of a tensor that was allocated once, instead of joining them afterwards. "
        "torch.compile fuses a copy into the kernel before or after it.",
    )


RULE = Rule(
    id="device-copy",
    severity="warning",
    check=on_claimed("device-copy", _draft),
    rests_on=ENGINES | {"other"},
)

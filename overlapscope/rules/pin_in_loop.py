"""Rule: page-locking of host memory while the GPU waits."""

from __future__ import annotations

from overlapscope.analysis import calls as call_kinds
from overlapscope.base.grouping import distinct
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = distinct(pieces.call[pieces.call >= 0])
    locking = behind[call_kinds.pins(calls)[behind]]
    took = int((calls.end_ns[locking] - calls.start_ns[locking]).sum())
    locked = (
        f" {claims.times_a_step(len(locking), 'call')} that page-lock memory took {claims.time(took)}."
        if len(locking)
        else ""
    )
    return Draft(
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the host pins memory",
        detail="Pinning copies the data once more on the host. Unless the allocator has a block of that size to spare, "
        "it also asks the driver to page-lock new memory, which takes about as long as many "
        f"copies.{locked}",
        advice="Pin once, outside the loop, and reuse that buffer.\n"
        "Allocate it with torch.empty(..., pin_memory=True), fill it in place (buffer.copy_(source)) and copy from "
        "it; or let DataLoader(pin_memory=True) pin in its own thread. If the memory is used only once, a plain "
        "pageable copy is faster than pinning it first.",
    )


RULE = Rule(
    id="pin-in-loop",
    severity="warning",
    check=on_claimed("pin-in-loop", _draft),
    effort="line",
    fixes=(("pin",),),
)

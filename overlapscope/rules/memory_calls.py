"""Rules: the GPU waits while the host is inside memory calls of the driver."""

from __future__ import annotations

from collections import Counter

from overlapscope.analysis import calls as call_kinds
from overlapscope.base.grouping import distinct
from overlapscope.base.words import listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.explained import advice_by_case
from overlapscope.rules.rule import Draft, Rule, name, on_claimed

# -- allocation --------------------------------------------------------------------------------------


def _draft_allocation(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = Counter(calls.name(int(row)) for row in distinct(pieces.call[pieces.call >= 0]))
    counts = listed([f"{claims.times(count, 'call')} of {name(call)}" for call, count in behind.most_common(4)])
    return Draft(
        title=f"{claims.waits(pieces)} while the driver allocates or frees memory",
        detail="The host was inside a memory call of the driver and could not launch: "
        f"{f'{counts}{claims.a_step}' if counts else 'the calls are not recorded'}.",
        advice=advice_by_case("allocation", claims.gpu)["fix"],
    )


ALLOCATION = Rule(
    id="allocation",
    check=on_claimed("allocation", _draft_allocation),
    effort="option",
)


# -- pin-in-loop -------------------------------------------------------------------------------------


def _draft_pin_in_loop(claims: Claims, pieces: ClaimedPieces) -> Draft:
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
        title=f"{claims.waits(pieces)} while the host pins memory",
        detail="Pinning copies the data once more on the host. Unless the allocator has a block of that size to spare, "
        "it also asks the driver to page-lock new memory, which takes about as long as many "
        f"copies.{locked}",
        advice=advice_by_case("pin-in-loop", claims.gpu)["fix"],
    )


PIN_IN_LOOP = Rule(
    id="pin-in-loop",
    check=on_claimed("pin-in-loop", _draft_pin_in_loop),
    effort="line",
    fixes=(("pin",),),
)

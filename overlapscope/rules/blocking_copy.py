"""Rule: copies of pinned memory without non_blocking."""

from __future__ import annotations

from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._features import SAVE_LESS, are_saved_tensors
from overlapscope.rules.rule import Draft, Rule, lost, on_claimed
from overlapscope.trace.model import Kind

_AFTERWARDS = {
    Kind.H2D: "After an upload nothing else is needed: ops of the same stream, and of streams that wait for it, see "
    "the data.",
    Kind.D2H: "After a download, synchronize an event or the stream before the host reads the buffer, as late as "
    "possible.",
}


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    called = "without non_blocking=True" if claims.trace.framework == "pytorch" else "that block the host"
    kind = claims.device.timeline.ops.kind[claims.blocking]
    afterwards = [text for each, text in _AFTERWARDS.items() if (kind == each).any()]
    saved = are_saved_tensors(claims, claims.blocking)
    return Draft(
        title=f"Copies {called} cost {claims.time_a_step(pieces.time_ns)}",
        detail="The host waited inside each copy until the copy ended, which its memory does not require, and launched "
        f"more work only then. Because of that, {lost(claims, pieces)}.",
        fixes=() if saved else None,
        advice=SAVE_LESS if saved else "Pass non_blocking=True to copy_() and to().\n" + " ".join(afterwards),
    )


RULE = Rule(
    id="blocking-copy",
    check=on_claimed("blocking-copy", _draft),
    effort="option",
    fixes=(("non-blocking",),),
)

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
    severity="warning",
    summary="Copies of pinned memory block the host because non_blocking=True is missing.",
    meaning="Without non_blocking=True, PyTorch waits for the stream inside copy_() until the copy has ended. "
    "With pinned memory that is unnecessary, and until the call returns the host launches nothing, so the"
    " GPU has nothing to hide the copy under.",
    computation="Exposed copy and idle time of cause host-sync in which the host was in a synchronize inside the "
    "`aten::copy_` that made the copy, or in a copy call that blocks by contract. Only copies of pinned "
    "memory count, and uploads whose memory kind is not recorded; host-sync leaves them out. CPU ops must"
    " be in the recording; without them the time goes to host-sync. An upper bound: other work may still "
    "limit the span.",
    wrong="""import torch

batch = torch.randn(1 << 24, pin_memory=True)
target = torch.empty_like(batch, device="cuda")
for _ in range(10):
    target.copy_(batch)
    target.mul_(2.0)
""",
    right="""import torch

batch = torch.randn(1 << 24, pin_memory=True)
target = torch.empty_like(batch, device="cuda")
for _ in range(10):
    target.copy_(batch, non_blocking=True)
    target.mul_(2.0)
torch.cuda.synchronize()
""",
    check=on_claimed("blocking-copy", _draft),
    effort="option",
    fixes=(("non-blocking",),),
)

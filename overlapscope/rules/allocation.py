"""Rule: the driver allocates or frees memory while the GPU waits."""

from __future__ import annotations

from collections import Counter

from overlapscope.base.grouping import distinct
from overlapscope.base.words import listed
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules.rule import Draft, Rule, name, on_claimed


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    calls = claims.trace.runtime_calls
    behind = Counter(calls.name(int(row)) for row in distinct(pieces.call[pieces.call >= 0]))
    counts = listed([f"{count} x {name(call)}" for call, count in behind.most_common(4)])
    return Draft(
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the driver allocates or frees memory",
        detail="The host was inside a memory call of the driver and could not launch: "
        f"{counts or 'the calls are not recorded'}.",
        advice="Keep memory in PyTorch's caching allocator.\n"
        "Do not call torch.cuda.empty_cache() in the loop. Avoid sizes that change every step: pad them, or set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Stay clear of the memory limit, where the allocator frees "
        "memory and calls the driver again. The first steps of a run always allocate, so record after warm-up.",
    )


RULE = Rule(
    id="allocation",
    severity="warning",
    check=on_claimed("allocation", _draft),
    effort="option",
)

"""Rule: the GPU waits while the container's CPU quota is used up."""

from __future__ import annotations

from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import host_time
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _quota(claims: Claims) -> str:
    """Return the quota, as the end of a sentence."""
    activity = claims.trace.host_activity
    if activity is None or activity.facts.quota_cpus is None:
        return ""
    return f", because it had used up its quota of {activity.facts.quota_cpus:g} CPUs"


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    return Draft(
        afterword=host_time(claims, pieces, IdleCause.CPU_THROTTLED),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the CPU quota is used up",
        detail=f"The control group stopped the program{_quota(claims)}.",
        advice="Raise the container's CPU limit, or run fewer threads.\n"
        "Set limits.cpu (Kubernetes) or --cpus (Docker) higher, or leave it out. torch.set_num_threads() and fewer "
        "DataLoader workers use the quota more slowly.",
    )


RULE = Rule(
    id="cpu-throttled",
    severity="warning",
    check=on_claimed("cpu-throttled", _draft),
    fixes=(("less-host cpu-throttled",),),
    effort="option",
)

"""Rule: the GPU waits while the launching thread has no CPU."""

from __future__ import annotations

from overlapscope.analysis.host_sampled import beside_others
from overlapscope.base.words import plural
from overlapscope.catalog.causes import IdleCause
from overlapscope.rules._claims import ClaimedPieces, Claims
from overlapscope.rules._lines import fewer_threads, host_time
from overlapscope.rules.rule import Draft, Rule, on_claimed


def _cpus(claims: Claims) -> str:
    """Return the CPUs and threads of the program, as the end of a sentence."""
    activity = claims.trace.host_activity
    if activity is None or activity.facts.usable_cpus is None:
        return ""
    threads = activity.facts.torch_threads
    beside = "" if threads is None else f", and torch uses {plural(threads, 'thread')}"
    return f". It may use {plural(activity.facts.usable_cpus, 'CPU')}{beside}"


def _draft(claims: Claims, pieces: ClaimedPieces) -> Draft:
    activity = claims.trace.host_activity
    others = activity is not None and beside_others(activity)
    by = " Meanwhile, other processes ran more than the program's other threads did." if others else ""
    return Draft(
        afterword=host_time(claims, pieces, IdleCause.PREEMPTED),
        title=f"The GPU waits {claims.time_a_step(pieces.time_ns)} while the launching thread has no CPU",
        detail=f"The system kept the launching thread waiting for a CPU{_cpus(claims)}.{by}",
        advice=f"{'' if others else fewer_threads(claims)}"
        "Leave the launching thread a CPU of its own.\n"
        "Run fewer DataLoader workers and other processes than there are CPUs, set torch.set_num_threads() to the "
        "number of CPUs or less, and give the job more CPUs (taskset, --cpus, the scheduler's request).",
    )


RULE = Rule(
    id="preempted",
    severity="warning",
    check=on_claimed("preempted", _draft),
    fixes=(("less-host preempted",),),
    effort="option",
)

"""The host's step without the profiler: its length as timed, its parts in the recorded step's proportions.

Samples and facts of steps without the profiler replace proportions where they show them: how long loading takes, and
for how long the thread waits where the recording shows ops or Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate, pairwise

from msgspec.structs import replace

from overlapscope.analysis.host_phases import phase_samples
from overlapscope.analysis.host_sampled import WORK, amounts
from overlapscope.analysis.plain_step import FEWEST, PlainStep, lengths_of, measured
from overlapscope.analysis.results import HostUse, Plain, host_parts
from overlapscope.catalog.causes import CommCause, IdleCause
from overlapscope.trace.host_activity import HostActivity
from overlapscope.trace.model import Trace


def known_step(trace: Trace, recorded_ns: int) -> PlainStep | None:
    """Return the step without the profiler as timed; with too few timed steps, the mean of those with facts."""
    plain = measured(trace.plain_steps, recorded_ns, trace.host_activity)
    facts = None if trace.host_activity is None else trace.host_activity.facts
    if plain is not None or facts is None or facts.steps < FEWEST:
        return plain
    mean_ns = round(facts.span_ns / facts.steps)
    timed = mean_ns, *lengths_of(trace.plain_steps.before), *lengths_of(trace.plain_steps.after)
    return PlainStep(mean_ns, min(timed), max(timed), "measured")


def with_plain(use: HostUse, step: PlainStep, activity: HostActivity | None) -> HostUse:
    """Return the host with an average step without the profiler, of the given length.

    The recording shows the parts of steps that are like recorded ones. The others add time to the average step, which
    is unrecorded, except for what samples show.
    """
    recorded = use.per_step
    parts = _apportioned(
        _with_sampled(host_parts(recorded), use.loader, activity, step.longer_ns / step.step_ns), step.step_ns
    )
    ops_ns, comm_ns = parts.pop("ops"), parts.pop("communication")
    buckets = replace(
        recorded.buckets, compute_ns=ops_ns, exposed_comm_ns=comm_ns, idle_ns=step.step_ns - ops_ns - comm_ns
    )
    plain = Plain(
        step_ns=step.step_ns,
        low_ns=step.low_ns,
        high_ns=step.high_ns,
        origin=step.origin,
        clocked_steps=step.steps,
        longer_steps=step.longer_steps,
        longer_ns=step.longer_ns,
        recorded_step_ns=recorded.span_ns,
        recorded_busy_ns=recorded.span_ns - recorded.buckets.idle_ns,
        buckets=buckets,
        exposed_copy_by_cause={},
        exposed_comm_by_cause={CommCause.UNKNOWN: comm_ns},
        idle_by_cause=parts,
    )
    return replace(use, plain=plain)


def _apportioned(parts: Mapping[str, float], whole_ns: int) -> dict[str, int]:
    """Return whole nanoseconds in proportion to the parts, which add up to the whole. Without parts, all is Python."""
    if not any(parts.values()):
        parts = {**dict.fromkeys(parts, 0), IdleCause.PYTHON: 1}
    # Rounding the running sum instead of each part keeps the total exact.
    sums = [*accumulate(parts.values(), initial=0.0)]
    ends = [round(whole_ns * (end / sums[-1])) for end in sums]
    return {name: end - begin for name, (begin, end) in zip(parts, pairwise(ends), strict=True)}


def _with_sampled(
    parts: dict[str, int], loader: str, activity: HostActivity | None, unrecorded: float
) -> dict[str, float]:
    """Return the parts as shares of the step, with loading as sampled and with the waits that the recording hides.

    Samples are of all steps, so what they show beyond the recording is in the unrecorded share first.
    """
    whole = max(1, sum(parts.values()))
    shares = {name: (1 - unrecorded) * ns / whole for name, ns in parts.items()}
    if unrecorded:
        shares[IdleCause.UNRECORDED] = unrecorded
    if activity is None:
        return shares
    samples = phase_samples(activity)
    if total := sum(samples.values()):
        loading = samples["data loading"] / total
        if unrecorded:
            more = min(unrecorded, max(0.0, loading - shares[IdleCause.DATA_LOADING]))
            shares[IdleCause.UNRECORDED] -= more
            shares[IdleCause.DATA_LOADING] += more
        rest = 1 - shares[IdleCause.DATA_LOADING]
        shares = {name: share * (1 - loading) / rest if rest else 0.0 for name, share in shares.items()}
        shares[IdleCause.DATA_LOADING] = loading
        if not rest:
            shares[IdleCause.PYTHON] = 1 - loading
    # A loader on this thread waits for CPUs and files as the thread's other work does. Workers wait on their own.
    beside = shares[IdleCause.DATA_LOADING] if loader == "own-thread" else 0.0
    hidden = (IdleCause.UNRECORDED,) if unrecorded else ()
    shown = {name: shares[name] for name in (*hidden, IdleCause.PYTHON, "ops")}
    facts = activity.facts
    # Ops and Python are where anything may happen to a thread. Python pauses for its garbage collector in both.
    pauses = facts.gc_pause_ns / max(1, facts.span_ns) if facts.gc_pause_ns else 0.0
    waits = [(each.cause, each.share, each.taken_from, each.anywhere) for each in amounts(activity)]
    for cause, share, taken_from, anywhere in (*waits, (IdleCause.GC_PAUSE, pauses, WORK, True)):
        of = (*hidden, IdleCause.PYTHON, *(("ops",) if IdleCause.CPU_OPS in taken_from else ()))
        around = beside + sum(shown[name] for name in (shown if anywhere else of))
        left = share * sum(shown[name] for name in of) / around if around else 0.0
        for name in of:
            taken = min(left, shares[name])
            shares[name], shares[cause], left = shares[name] - taken, shares.get(cause, 0.0) + taken, left - taken
    return shares

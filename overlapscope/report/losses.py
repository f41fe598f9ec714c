"""Time that a device loses: by kind, in a clause for each, and by its largest cause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from overlapscope.analysis.figures import copies_matter
from overlapscope.analysis.results import Device, by_subject, missing_by_cause, missing_ns
from overlapscope.base.words import duration, share
from overlapscope.catalog.causes import CAUSES, IDLE, WORK_UNKNOWN, Cause, CopyCause, IdleCause, OtherCause, Subject

WORTH_SAYING = 0.01
"""Share of the time below which a cost is not worth a sentence, as in the rules."""


_NO_LOSS: Final = WORK_UNKNOWN | {IdleCause.AWAITING_REQUESTS}


def unmeasured_ns(device: Device) -> int:
    """Return the time of the judged step before its first GPU op that no figure includes."""
    return 0 if device.outside is None else device.outside.unmeasured_ns


def unjudged_ns(device: Device) -> tuple[int, int, int]:
    """Return the parts of a recording that no figure of the device includes; 0 for those that are hardly any.

    These are the lead-in, and the time of ops on the host before any device's first op and after the last.
    """
    # If nothing is left after the lead-in, the figures are of it.
    ahead_ns = 0 if device.judged is None else device.lead_in_ns or 0
    judged_ns = device.span_ns * (1 if device.per_step is None else device.per_step.steps)
    lead_in_ns, before_ns, after_ns = (
        ns if ns >= max(1, _HARDLY_ANY * judged_ns) else 0
        for ns in (ahead_ns, device.host_before_ns, device.host_after_ns)
    )
    return lead_in_ns, before_ns, after_ns


_HARDLY_ANY: Final = 0.05
"""Share of the judged time below which time that isn't judged is not worth a sentence."""


def lost_ns(device: Device) -> int:
    """Return the time in which the device doesn't compute, without what no order of the same work can change."""
    buckets, by_cause = device.buckets, device.exposed_copy_by_cause
    # The lead-in cannot be judged, and a server without requests has nothing to do.
    no_loss = (IdleCause.LEAD_IN, IdleCause.AWAITING_REQUESTS)
    idle_ns = buckets.idle_ns - missing_ns(device) - sum(device.idle_by_cause.get(cause, 0) for cause in no_loss)
    fixed_ns = by_cause.get(CopyCause.LEAD_IN, 0) + by_cause.get(CopyCause.NO_COMPUTE, 0)
    return buckets.exposed_copy_ns - fixed_ns + buckets.exposed_comm_ns + buckets.exposed_other_ns + idle_ns


class Loss(Struct, frozen=True):
    """Lost time of a kind."""

    ns: int
    clause: str
    name: str = ""
    """The loss where it is the main one, such as `Launch-bound`."""
    is_idle: bool = False


_ALONE: Final[Mapping[str, str]] = {
    OtherCause.PEER_COPY: "copies between GPUs run",
    OtherCause.PAGE_MIGRATION: "migrations of managed memory run",
    OtherCause.DEVICE_COPY: "copies within the GPU run",
    OtherCause.MEMSET: "memsets run",
}
_BOUND: Final[Mapping[str, str]] = {
    IdleCause.DATA_LOADING: "Input-bound",
    IdleCause.DISPATCH: "Launch-bound",
    IdleCause.LAUNCH_LATENCY: "Launch-bound",
    IdleCause.HOST_SYNC: "Synchronization-bound",
    IdleCause.NOT_RECORDED: "Host-bound",
}
"""Names of programs by the main cause of idle time."""


OF_HOST: Final[Mapping[str, str]] = {
    IdleCause.GRAPH_CAPTURE: "; for {time} the host captures a CUDA graph",
    IdleCause.FIRST_LAUNCH: "; for {time} the host launches kernels for the first time",
    IdleCause.NOT_RECORDED: "; what the host did was not recorded",
}
"""Main causes of idle time that are no fault of the program, in words."""


def _bound_name(cause: Cause) -> str:
    return _BOUND.get(cause.id, "Host-bound" if cause.by_host and cause.words.fixing else "")


def of_device(device: Device, *, lost: bool, reach: str) -> list[Loss]:
    """Return clauses on copies, communication and idle time, each with its time.

    Negligible losses are left out, unless there is no other. `lost` is whether the recording may lack copies; `reach`
    stands before idle time of which a part may be the profiler's.
    """
    buckets, span, missing = device.buckets, device.span_ns, missing_by_cause(device)
    awaiting = device.idle_by_cause.get(IdleCause.AWAITING_REQUESTS, 0)
    idle, worth = buckets.idle_ns - missing_ns(device) - awaiting, max(1, WORTH_SAYING * span)
    found = []
    if copies_matter(device):
        found.append(Loss(buckets.exposed_copy_ns, _copies(device), "Copy-bound"))
    if buckets.exposed_comm_ns >= worth:
        clause = f"communication runs alone for {duration(buckets.exposed_comm_ns)}"
        clause += f" ({share(buckets.exposed_comm_ns, span)})"
        found.append(Loss(buckets.exposed_comm_ns, clause, "Communication-bound"))
    if buckets.exposed_other_ns >= worth:
        most_ns, cause = max((ns, cause) for cause, ns in device.exposed_other_by_cause.items())
        alone = _ALONE.get(cause, "") if 2 * most_ns > buckets.exposed_other_ns else ""
        shown_ns = most_ns if alone else buckets.exposed_other_ns
        clause = f"{alone or 'memory work of the GPU runs'} alone for {duration(shown_ns)} ({share(shown_ns, span)})"
        found.append(Loss(buckets.exposed_other_ns, clause))
    if idle >= worth:
        explained = {cause: ns for cause, ns in device.idle_by_cause.items() if cause not in _NO_LOSS}
        most_ns, cause = max(((ns, cause) for cause, ns in explained.items()), default=(0, ""))
        by_name = Counter[str]()
        for each, ns in explained.items():
            by_name[_bound_name(IDLE[each])] += ns
        name, named_ns = by_name.most_common(1)[0] if by_name else ("", 0)
        clause = f"the GPU is idle for {reach}{duration(idle)} ({share(idle, span)}"
        mostly = most_ns > idle // 2
        of_host = OF_HOST.get(cause, ", mostly {cause}").format(cause=cause, time=duration(most_ns))
        clause += f"{of_host})" if mostly else ")"
        found.append(Loss(idle, clause, name if named_ns > idle // 2 else "", is_idle=True))
    for unknown, ns in missing.items():
        if ns >= worth:
            found.append(Loss(ns, _UNKNOWN[unknown].format(f"{duration(ns)} ({share(ns, span)})")))
    before_ns = unmeasured_ns(device)
    if before_ns >= worth:
        found.append(Loss(before_ns, f"the GPU waited {duration(before_ns)} for its first op", "Host-bound"))
    if not device.overlap.copy_ns and lost:
        return found or [Loss(0, "no copy between host and device is left in the recording")]
    return found or [Loss(0, _copies(device))]


_UNKNOWN: Final[Mapping[str, str]] = {
    IdleCause.MISSING_OPS: "GPU ops are missing from the recording for {}",
    IdleCause.UNRECORDED: "{} are not in the recording, whose steps are shorter",
}


def _copies(device: Device) -> str:
    """Return how far copies are hidden."""
    overlap, exposed = device.overlap, device.buckets.exposed_copy_ns
    if not overlap.copy_ns:
        return "nothing is copied between host and device"
    if not copies_matter(device):
        return f"copies take only {duration(overlap.copy_ns)}"
    if not exposed:
        return f"all {duration(overlap.copy_ns)} of copies are hidden under compute"
    if exposed < WORTH_SAYING * device.span_ns:
        return f"all but {duration(exposed)} of the {duration(overlap.copy_ns)} of copies are hidden under compute"
    unhideable = device.exposed_copy_by_cause.get(CopyCause.NO_COMPUTE, 0)
    part = ", " if duration(unhideable) == duration(exposed) else f"; {duration(unhideable)} "
    why = f"{part}because they outlast compute"
    return (
        f"copies run alone for {duration(exposed)} ({share(exposed, device.span_ns)}"
        f"{why if unhideable >= max(1, WORTH_SAYING * device.span_ns) else ''})"
    )


def main_cause(device: Device) -> tuple[int, Subject, Cause]:
    """Return the largest cause of all buckets that have causes, with its time and the bucket."""
    every = (
        (ns, subject, CAUSES[subject][cause])
        for subject, by_cause in by_subject(device).items()
        for cause, ns in by_cause.items()
        if cause not in _NO_LOSS
    )
    return max(every, key=lambda each: each[0])

"""Which rank of a job the others wait for.

Ranks meet in collectives. A communication kernel runs from when its own rank arrives until the last one has: whoever
comes early sees a long kernel, whoever comes last a short one. So the rank with the least exposed communication is
the one that the others waited for, and what they have more than it is their waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from overlapscope.analysis.results import Device, Period
from overlapscope.analysis.spans import whole

LEAST_SHARE = 0.02
"""Of the compared time; ranks that wait less than this for one another are even."""


@dataclass(frozen=True, slots=True)
class RankWait:
    """How one rank stands among the others, over the time compared."""

    span_ns: int
    exposed_comm_ns: int
    waited_ns: int
    """Exposed communication beyond that of the rank that has the least in the same step: at most this was waiting."""
    last_in: int
    """In how many steps it had the least, that is, came last."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Ranks compared step by step, or by their whole windows."""

    steps: tuple[str, ...]
    """Names of the steps compared; empty where the windows were."""
    ranks: tuple[RankWait, ...]
    """In the order given."""
    straggler: int | None
    """Place in `ranks` of the one that the others wait for; None where they are even."""
    lost_ns: int
    """What each other rank waited for it on average."""


def find_waits(ranks: Sequence[Device]) -> Waits | None:
    """Compare the ranks of one job, one device each. None for fewer than two, or where none communicates.

    They are compared by the steps that all of them have, or by their windows where there is none. A straggler is
    named where it came last in most of these and the others waited for at least 2 % of the time.

    It is a hint and no proof: a wait that compute hides is not seen, a rank can have less to send than the others, and
    communication among some of the ranks (tensor or pipeline parallel) makes them wait for their own group only.
    """
    if len(ranks) < 2 or not all(device.engines.comm_ns for device in ranks):
        return None
    names = _common_steps(ranks)
    periods = [_steps(device, names) if names else [whole(device)] for device in ranks]
    least = [min(step.buckets.exposed_comm_ns for step in steps) for steps in zip(*periods, strict=True)]
    last = [
        min(range(len(ranks)), key=lambda rank: steps[rank].buckets.exposed_comm_ns)
        for steps in zip(*periods, strict=True)
    ]
    waits = tuple(
        RankWait(
            span_ns=sum(step.span_ns for step in steps),
            exposed_comm_ns=sum(step.buckets.exposed_comm_ns for step in steps),
            waited_ns=sum(step.buckets.exposed_comm_ns - low for step, low in zip(steps, least, strict=True)),
            last_in=last.count(rank),
        )
        for rank, steps in enumerate(periods)
    )
    slowest = min(range(len(waits)), key=lambda rank: (-waits[rank].last_in, waits[rank].waited_ns))
    others = [wait.waited_ns for rank, wait in enumerate(waits) if rank != slowest]
    lost = sum(others) // len(others)
    clear = 2 * waits[slowest].last_in > len(least) and lost >= LEAST_SHARE * waits[slowest].span_ns
    return Waits(names, waits, slowest if clear else None, lost if clear else 0)


def _common_steps(ranks: Sequence[Device]) -> tuple[str, ...]:
    others = [{step.name for step in device.steps} for device in ranks[1:]]
    return tuple(step.name for step in ranks[0].steps if all(step.name in names for names in others))


def _steps(device: Device, names: Sequence[str]) -> list[Period]:
    by_name = {step.name: step for step in device.steps}
    return [by_name[name] for name in names]

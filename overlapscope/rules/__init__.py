"""Results -> what the rules say of them: the registry of rules."""

from __future__ import annotations

from msgspec.structs import replace

from overlapscope.analysis.results import Device
from overlapscope.base.registry import Registry
from overlapscope.rules._claims import Claims
from overlapscope.rules.finding import FLOOR
from overlapscope.rules.rule import Draft, Rule

RULES: Registry[Rule] = Registry(
    __name__,
    "RULE",
    (
        "allocator-stall",
        "blocking-copy",
        "copy-on-compute-stream",
        "data-loading",
        "exposed-communication",
        "host-compute",
        "host-sync",
        "late-prefetch",
        "launch-bound",
        "one-way-copies",
        "overlap-achieved",
        "pageable-copy",
        "pin-in-loop",
        "slow-link",
        "stream-without-work",
        "streams-without-overlap",
        "tiny-copies",
    ),
)
"""Every rule."""


Said = tuple[Rule, Draft]


def apply_all(claims: Claims) -> tuple[Said, ...]:
    """What all rules say of one device, by rule."""
    floor = floor_ns(claims.device.result)
    # Whatever a rule adds up, nothing costs more than all the time there is.
    return tuple(
        (rule, replace(draft, bound_ns=min(draft.bound_ns, claims.judged_ns)))
        for rule in RULES.values()
        for draft in rule.check(claims)
        if "info" in (draft.severity, rule.severity) or draft.bound_ns >= floor
    )


def floor_ns(device: Device) -> int:
    """The least bound at which a rule fires."""
    return max(1, round(FLOOR * (device.span_ns - (device.lead_in_ns or 0))))

"""Registry of the rules, which turn results into findings."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from overlapscope.base.registry import Registry
from overlapscope.plugin import plugins
from overlapscope.rules._claims import Claims
from overlapscope.rules.finding import FLOOR
from overlapscope.rules.rule import Draft, Rule

_JOINED: Final = {
    "compute_streams": ("stream-without-work", "streams-without-overlap"),
    "host_pauses": ("cpu-throttled", "file-io", "gc-pause", "gil-wait", "preempted"),
    "host_work": ("cpu-ops", "data-loading", "python"),
    "memory_calls": ("allocation", "pin-in-loop"),
    "memory_work": ("device-copy", "page-migration", "peer-copy"),
}
"""Modules with several rules, each under its id in capitals."""
RULES: Registry[Rule] = Registry(
    __name__,
    "RULE",
    (
        "allocation",
        "blocking-copy",
        "cpu-ops",
        "cpu-throttled",
        "data-loading",
        "device-copy",
        "dispatch",
        "exposed-comm",
        "file-io",
        "gc-pause",
        "gil-wait",
        "host-sync",
        "late-prefetch",
        "one-way-copies",
        "overlap-achieved",
        "page-migration",
        "pageable-memory",
        "peer-copy",
        "pin-in-loop",
        "preempted",
        "python",
        "same-stream",
        "slow-link",
        "stream-without-work",
        "streams-without-overlap",
        "tiny-copies",
    ),
    elsewhere={id: f"{module}:{id.replace('-', '_').upper()}" for module, joined in _JOINED.items() for id in joined},
    others={id: place for plugin in plugins() for id, place in plugin.rules.items()},
)
"""All rules."""


RuleDraft = tuple[Rule, Draft]


def apply_all(claims: Claims) -> tuple[RuleDraft, ...]:
    """Apply all rules to one device. Those that can't find anything aren't even imported."""
    floor = max(1, round(FLOOR * claims.judged_ns))
    # The pieces of a rule may add up to more than the judged time, but nothing costs more than that.
    return tuple(
        (rule, replace(draft, bound_ns=min(draft.bound_ns, claims.judged_ns)))
        for rule in (RULES[id] for id in RULES if claims.concern(id))
        for draft in rule.check(claims)
        if "info" in (draft.severity, rule.severity) or draft.bound_ns >= floor
    )

"""Results -> findings: the registry of rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.results import Device
from overlapscope.base.registry import Registry
from overlapscope.rules._claims import claims
from overlapscope.rules._costs import Cost, Costs
from overlapscope.rules.finding import FLOOR, Draft, Finding
from overlapscope.rules.rule import Rule

if TYPE_CHECKING:
    from overlapscope.prediction.program import Program

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


def find_all(
    analyses: Sequence[TraceAnalysis],
    programs: Sequence[Program | None] | None = None,
    *,
    scope: str = "window",
    replayed: bool = True,
) -> tuple[Finding, ...]:
    """What all rules find in all traces and devices, costliest first, good news last.

    `programs` are the plain ones behind the recordings: where one decides, findings are of it. `replayed` is false
    where nobody asks what fixes save: every cost is its bound then.
    """
    findings = [
        finding
        for analysis, program in zip(analyses, programs or [None] * len(analyses), strict=True)
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for finding in _on_device(analysis, device, program, scope, replayed)
    ]
    return tuple(sorted(findings, key=costliest_first))


def _on_device(
    analysis: TraceAnalysis, device: DeviceAnalysis, program: Program | None, scope: str, replayed: bool
) -> Iterator[Finding]:
    recorded = _Drafts(analysis, device)
    spoken, base = recorded, None if program is None else program.recorded
    if program is not None and program.decides and program.analysis is not None:
        ordinal = device.result.device
        plain = next((one for one in program.analysis.devices if one.result.device == ordinal), None)
        if plain is not None:
            spoken, base = _Drafts(program.analysis, plain), program.base
    costs = Costs(spoken.analysis, spoken.device, spoken.claims, base) if replayed else None
    for (rule, draft), seen in zip(spoken.found, counterparts(spoken.found, recorded.found), strict=True):
        cost = costs.of(rule, draft) if costs is not None else Cost(draft.bound_ns, "bound")
        yield Finding(
            rule=rule.id,
            severity=draft.severity or rule.severity,
            source=analysis.result.source,
            rank=analysis.result.rank,
            device=device.result.device,
            scope=scope,
            title=draft.title,
            detail=draft.detail,
            advice=draft.advice,
            cost_ns=cost.ns,
            bound_ns=seen.bound_ns if seen is not None else 0,
            plain_bound_ns=None if spoken is recorded else draft.bound_ns,
            cost_from=cost.known_from,
            doubt=cost.doubt,
            where=(seen.where if seen is not None else None) or draft.where,
            # A window of the recording, which is what can be looked at.
            example=seen.example if seen is not None else None,
            plain_example=None if spoken is recorded else draft.example,
        )


class _Drafts:
    """What all rules say of one device."""

    def __init__(self, analysis: TraceAnalysis, device: DeviceAnalysis) -> None:
        self.analysis, self.device = analysis, device
        self.claims = claims(analysis, device)
        floor = floor_ns(device.result)
        # Whatever a rule adds up, nothing costs more than all the time there is.
        most = self.claims.judged_ns
        self.found = tuple(
            (rule, draft if draft.bound_ns <= most else replace(draft, bound_ns=most))
            for rule in RULES.values()
            for draft in rule.check(analysis, device, self.claims)
            if "info" in (draft.severity, rule.severity) or draft.bound_ns >= floor
        )


Said = tuple[Rule, Draft]


def counterparts(spoken: Sequence[Said], recorded: Sequence[Said]) -> list[Draft | None]:
    """For each draft of the program that is spoken of, the one that says the same of the recording.

    It is of the same rule and call; where there is none, what is left of the rule, in order. None is taken twice.
    """
    left = list(recorded)
    found: list[Draft | None] = [None] * len(spoken)
    for by_call in (True, False):
        for number, (rule, draft) in enumerate(spoken):
            alike = (
                place
                for place, (known, one) in enumerate(left)
                if known.id == rule.id and not (by_call and _call(one) != _call(draft))
            )
            if found[number] is None and (place := next(alike, None)) is not None:
                found[number] = left.pop(place)[1]
    return found


def _call(draft: Draft) -> tuple[str | None, str | None] | None:
    return None if draft.where is None else (draft.where.op, draft.where.call)


def costliest_first(finding: Finding) -> tuple[bool, int, int, str, str, int]:
    """By which findings are sorted: what the fix saves, good news last."""
    return (
        finding.severity == "info",
        -finding.cost_ns,
        -finding.bound_ns,
        finding.rule,
        finding.source,
        finding.device,
    )


def floor_ns(device: Device) -> int:
    """The least bound at which a rule fires."""
    return max(1, round(FLOOR * (device.span_ns - (device.lead_in_ns or 0))))

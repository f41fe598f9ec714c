"""Results -> findings: the registry of rules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.results import Device
from overlapscope.rules._claims import claims
from overlapscope.rules._costs import Costs
from overlapscope.rules.finding import FLOOR, CostFrom, Draft, Finding
from overlapscope.rules.rule import Rule

_SUPPORT = {"finding", "rule", "_claims", "_costs", "_page", "_text"}


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id: each module of this package that is not support defines one as `RULE`."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SUPPORT)
    rules = [importlib.import_module(f"{__name__}.{name}").RULE for name in modules]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def find_all(analyses: Iterable[TraceAnalysis], *, scope: str = "window", replayed: bool = True) -> tuple[Finding, ...]:
    """What all rules find in all traces and devices, costliest first, good news last.

    `replayed` is false where nobody asks what fixes save: every cost is its bound then.
    """
    rules = all_rules()
    findings = [
        Finding(
            rule=rule.id,
            severity=draft.severity or rule.severity,
            source=analysis.result.source,
            rank=analysis.result.rank,
            device=device.result.device,
            scope=scope,
            title=draft.title,
            detail=draft.detail,
            advice=draft.advice,
            cost_ns=cost_ns,
            bound_ns=draft.bound_ns,
            cost_from=cost_from,
            where=draft.where,
            example=draft.example,
        )
        for analysis in analyses
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for found in [claims(analysis, device)]
        for costs in [Costs(analysis, device, found) if replayed else None]
        for rule in rules
        for draft in rule.check(analysis, device, found)
        if draft.severity == "info" or rule.severity == "info" or draft.bound_ns >= floor_ns(device.result)
        for cost_ns, cost_from in [costs.of(rule, draft) if costs is not None else _bound(draft)]
    ]
    return tuple(sorted(findings, key=costliest_first))


def _bound(draft: Draft) -> tuple[int, CostFrom]:
    return draft.bound_ns, "bound"


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

"""Results -> findings: the registry of rules."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from overlapscope.analysis import TraceAnalysis
from overlapscope.analysis.results import Device
from overlapscope.rules._claims import claims
from overlapscope.rules.finding import FLOOR, Finding
from overlapscope.rules.rule import Rule

_SUPPORT = {"finding", "rule", "_claims", "_page", "_text"}


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by id: each module of this package that is not support defines one as `RULE`."""
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _SUPPORT)
    rules = [importlib.import_module(f"{__name__}.{name}").RULE for name in modules]
    return tuple(sorted(rules, key=lambda rule: rule.id))


def find_all(analyses: Iterable[TraceAnalysis], *, scope: str = "window") -> tuple[Finding, ...]:
    """What all rules find in all traces and devices, costliest first, good news last."""
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
            cost_ns=draft.cost_ns,
            where=draft.where,
            example=draft.example,
        )
        for analysis in analyses
        if analysis.result.trust.verdict != "unusable"
        for device in analysis.devices
        for found in [claims(analysis, device)]
        for rule in rules
        for draft in rule.check(analysis, device, found)
        if draft.severity == "info" or rule.severity == "info" or draft.cost_ns >= floor_ns(device.result)
    ]
    return tuple(sorted(findings, key=lambda f: (-f.cost_ns, f.rule, f.source, f.device)))


def floor_ns(device: Device) -> int:
    """The least cost at which a rule fires."""
    return max(1, round(FLOOR * (device.span_ns - (device.lead_in_ns or 0))))

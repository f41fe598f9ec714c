"""Comparison of findings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from overlapscope.catalog.causes import IdleCause
from overlapscope.compare.difference import FigureChange, FindingChange
from overlapscope.compare.noise import floor_ns
from overlapscope.rules.finding import Finding


def compare_findings(
    before: Sequence[Finding],
    after: Sequence[Finding],
    *,
    floors_ns: tuple[int, int],
    spans_ns: tuple[float, float],
    reliable: bool,
) -> tuple[FindingChange, ...]:
    """Match the findings of both sides by rule and place, the largest cost of either side first.

    Args:
        before: Findings of one side.
        after: Findings of the other side.
        floors_ns: Costs per step below which rules report nothing. A side without a finding may cost up to this.
        spans_ns: Lengths of a step on both sides.
        reliable: Whether the recordings are complete enough to judge whether a cost changed.

    Returns:
        One change for each finding of either side.
    """
    changes = []
    for rule, finding_before, finding_after in _matched(before, after):
        cost = _cost(rule, finding_before, finding_after, floors_ns, spans_ns)
        if not reliable:
            cost = msgspec.structs.replace(cost, low=None, high=None, beyond_noise=None)
        standing = _standing(finding_before, finding_after, cost)
        changes.append(
            FindingChange(rule=rule, standing=standing, before=finding_before, after=finding_after, cost=cost)
        )
    return tuple(sorted(changes, key=lambda each: (-max(each.cost.before or 0, each.cost.after or 0), each.rule)))


def _matched(before: Sequence[Finding], after: Sequence[Finding]) -> list[tuple[str, Finding | None, Finding | None]]:
    """Pair findings of the same rule: first those with the same op and call, then the rest in the order of costs."""
    pairs: list[tuple[str, Finding | None, Finding | None]] = []
    rest = [sorted(map(_as_measured, side), key=lambda each: -each.cost_ns) for side in (before, after)]
    for place in (_place, _rule_of):
        for finding in tuple(rest[0]):
            match = next((candidate for candidate in rest[1] if place(candidate) == place(finding)), None)
            if match is not None:
                pairs.append((finding.rule, finding, match))
                rest[0].remove(finding)
                rest[1].remove(match)
    alone = [(finding.rule, finding, None) for finding in rest[0]]
    return [*pairs, *alone, *((finding.rule, None, finding) for finding in rest[1])]


def _as_measured(finding: Finding) -> Finding:
    """Return the finding without results of a replay, which only some reports have."""
    return msgspec.structs.replace(finding, saving=None, doubt="")


def _place(finding: Finding) -> tuple[str, str | None, str | None]:
    where = finding.where
    return (finding.rule, where.op, where.call) if where else (finding.rule, None, None)


def _rule_of(finding: Finding) -> str:
    return finding.rule


def _cost(
    rule: str,
    before: Finding | None,
    after: Finding | None,
    floors_ns: tuple[int, int],
    spans_ns: tuple[float, float],
) -> FigureChange:
    costs = [None if finding is None else finding.mean_cost_ns for finding in (before, after)]
    minima = [0 if cost is None else cost for cost in costs]
    maxima = [floor if cost is None else cost for cost, floor in zip(costs, floors_ns, strict=True)]
    low, high = minima[1] - maxima[0], maxima[1] - minima[0]
    # The cost of a finding often depends on the host.
    loads, least = rule == IdleCause.DATA_LOADING, min(minima)
    noise = floor_ns(spans_ns, host_ns=0 if loads else least, loading_ns=least if loads else 0)
    on_both_sides = None not in costs
    informs = any(finding is not None and not finding.cost_ns for finding in (before, after))
    return FigureChange(
        name="cost",
        unit="ns",
        before=costs[0],
        after=costs[1],
        change=high if on_both_sides else None,
        low=low,
        high=high,
        noise_floor=noise,
        beyond_noise=None if informs else low > noise or high < -noise,
    )


def _standing(
    before: Finding | None, after: Finding | None, cost: FigureChange
) -> Literal["new", "gone", "grown", "shrunk", "same"]:
    if before is None:
        return "new"
    if after is None:
        return "gone"
    if not cost.beyond_noise:
        return "same"
    return "grown" if (cost.change or 0) > 0 else "shrunk"

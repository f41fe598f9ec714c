"""What became of each finding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from overlapscope.compare.difference import FigureChange, FindingChange
from overlapscope.compare.noise import floor_ns
from overlapscope.rules.finding import Finding


def compare_findings(
    before: Sequence[Finding],
    after: Sequence[Finding],
    *,
    divide_by: tuple[int, int],
    floors_ns: tuple[int, int],
    span_ns: float,
    told: bool,
) -> tuple[FindingChange, ...]:
    """Each side's findings matched by rule and place; the largest cost of either side first.

    Costs are the bounds, which are measured: what a model says is no change of the program. They are divided by the
    numbers of steps that they are costs of. Of a side that has no such finding it is known only that it would cost
    less than the rules' floor (`floors_ns`, divided likewise): so much is left open. Where a recording has lost what
    rules rest on, it is not `told` whether a cost changed.
    """
    found = []
    for rule, one, other in _matched(before, after):
        cost = _cost(one, other, divide_by, floors_ns, span_ns)
        if not told:
            cost = msgspec.structs.replace(cost, low=None, high=None, beyond_noise=None)
        standing = _standing(one, other, cost)
        found.append(FindingChange(rule=rule, standing=standing, before=one, after=other, cost=cost))
    return tuple(sorted(found, key=lambda each: (-max(each.cost.before or 0, each.cost.after or 0), each.rule)))


def _matched(before: Sequence[Finding], after: Sequence[Finding]) -> list[tuple[str, Finding | None, Finding | None]]:
    """The rule with its findings; first those of one op and call, what is left of a rule in the order of costs."""
    pairs: list[tuple[str, Finding | None, Finding | None]] = []
    rest = [sorted(map(_as_measured, side), key=lambda each: -each.bound_ns) for side in (before, after)]
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
    """The same whether it is from a trace or from a report that tells what a replay says."""
    return msgspec.structs.replace(finding, cost_ns=finding.bound_ns, cost_from="bound", fix=(), doubt="")


def _place(finding: Finding) -> tuple[str, str | None, str | None]:
    where = finding.where
    return (finding.rule, where.op, where.call) if where else (finding.rule, None, None)


def _rule_of(finding: Finding) -> str:
    return finding.rule


def _cost(
    before: Finding | None,
    after: Finding | None,
    divide_by: tuple[int, int],
    floors_ns: tuple[int, int],
    span_ns: float,
) -> FigureChange:
    costs = [
        None if finding is None else round(finding.bound_ns / steps)
        for finding, steps in zip((before, after), divide_by, strict=True)
    ]
    least = [0 if cost is None else cost for cost in costs]
    most = [floor if cost is None else cost for cost, floor in zip(costs, floors_ns, strict=True)]
    low, high = least[1] - most[0], most[1] - least[0]
    # What a finding costs is often for the host to decide.
    noise = floor_ns(span_ns, host_ns=min(least))
    known = costs[0] is not None and costs[1] is not None
    news = any(finding is not None and finding.severity == "info" for finding in (before, after))
    return FigureChange(
        name="cost",
        unit="ns",
        before=costs[0],
        after=costs[1],
        change=high if known else None,
        low=low,
        high=high,
        noise_floor=noise,
        beyond_noise=None if news else low > noise or high < -noise,
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

"""Two reports beside one another: buckets before and after, and what became of each finding.

Pure comparing; the page Compare draws it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overlapscope.analysis.results import Device
from overlapscope.analysis.spans import median_step, whole
from overlapscope.rules.finding import Finding
from overlapscope.views.page import Section
from overlapscope.words import clean, percent, plural

Basis = Literal["step", "window"]

FEW_STEPS = 3
"""Of fewer steps, the one of median length may be an unusual one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One length of time before and after."""

    name: str
    before_ns: int
    after_ns: int

    @property
    def change_ns(self) -> int:
        """What was added; negative where it became shorter."""
        return self.after_ns - self.before_ns

    @property
    def change_pct(self) -> float | None:
        """The change as a percentage of what was before; None of nothing."""
        return 100 * self.change_ns / self.before_ns if self.before_ns else None


@dataclass(frozen=True, slots=True)
class Figure:
    """A percentage before and after."""

    name: str
    before_pct: float | None
    after_pct: float | None


@dataclass(frozen=True, slots=True)
class Change:
    """What became of the findings of one rule; the costs are of the whole window."""

    rule: str
    before: Finding | None
    after: Finding | None

    @property
    def standing(self) -> Literal["gone", "new", "in both"]:
        """Where there is such a finding."""
        return "gone" if self.after is None else "new" if self.before is None else "in both"

    @property
    def costs_ns(self) -> tuple[int, int]:
        """Before and after; none is nothing."""
        return (self.before.cost_ns if self.before else 0, self.after.cost_ns if self.after else 0)


@dataclass(frozen=True, slots=True)
class SideBySide:
    """Two devices compared."""

    basis: Basis
    """What the parts are of: the step of median length of each, or the whole window of each."""
    spans: Part
    parts: tuple[Part, ...]
    """The buckets; before and after they add up to the span."""
    figures: tuple[Figure, ...]
    findings: tuple[Change, ...]
    """The costliest of either side first."""
    doubts: tuple[str, ...]
    """Sentences that say why the two cannot be compared, or not in everything."""
    starts_ns: tuple[int, int]
    """Absolute; where the timelines are laid one above the other."""
    shown_ns: int
    """Length of the longer of the two spans compared."""


def side_by_side(before: Section, after: Section) -> SideBySide | None:
    """Compare two devices; None where one of them has nothing to compare."""
    first, second = before.device, after.device
    if first is None or second is None or not (before.usable and after.usable):
        return None
    steps = median_step(first), median_step(second)
    basis: Basis = "step" if None not in steps else "window"
    one, other = (
        step if step is not None and basis == "step" else whole(device)
        for step, device in zip(steps, (first, second), strict=True)
    )
    return SideBySide(
        basis=basis,
        spans=Part("span", one.span_ns, other.span_ns),
        parts=tuple(Part(name, ns, other.buckets.named()[name]) for name, ns in one.buckets.named().items()),
        figures=(
            Figure("overlap efficiency", one.overlap.efficiency_pct, other.overlap.efficiency_pct),
            Figure("hidden copy", one.overlap.hidden_copy_pct, other.overlap.hidden_copy_pct),
            Figure("comm under compute", one.overlap.comm_compute_pct, other.overlap.comm_compute_pct),
        ),
        findings=_findings(before.findings, after.findings),
        doubts=tuple(_doubts(before, after, first, second)),
        starts_ns=(one.window.start_ns, other.window.start_ns),
        shown_ns=max(one.span_ns, other.span_ns),
    )


def _findings(before: Sequence[Finding], after: Sequence[Finding]) -> tuple[Change, ...]:
    """A rule's findings in their order, the first before with the first after."""
    changes = []
    for rule in dict.fromkeys(finding.rule for finding in (*before, *after)):
        mine, theirs = ([one for one in found if one.rule == rule] for found in (before, after))
        for number in range(max(len(mine), len(theirs))):
            pair = [found[number] if number < len(found) else None for found in (mine, theirs)]
            changes.append(Change(rule, pair[0], pair[1]))
    return tuple(sorted(changes, key=lambda one: (-max(one.costs_ns), one.rule)))


def _doubts(before: Section, after: Section, first: Device, second: Device) -> list[str]:
    doubts = []
    if first.name != second.name:
        names = [clean(name, 60) if name else "an unknown GPU" for name in (first.name, second.name)]
        doubts.append(f"They ran on different GPUs ({names[0]} and {names[1]}): times differ for that alone.")
    counts = len(first.steps), len(second.steps)
    have = f"They have {plural(counts[0], 'step')} and {plural(counts[1], 'step')}"
    if 0 in counts:
        doubts.append(f"{have}, so their whole windows are compared, which may hold different work.")
    elif counts[0] != counts[1]:
        doubts.append(f"{have}: the costs of findings, which are of whole windows, cannot be compared.")
    elif counts[0] < FEW_STEPS:
        doubts.append(f"They have {plural(counts[0], 'step')} each: the one that is compared may be unusual.")
    for section in (before, after):
        if section.trace.trust.verdict == "degraded":
            warned = ", ".join(check.id for check in section.trace.trust.checks if check.status != "ok")
            doubts.append(f"Trust in {section.title} is degraded ({warned}).")
    return doubts


def sentence(compared: SideBySide) -> str:
    """The comparison in one sentence, for the top of the page."""
    spans = compared.spans
    what = "The median step" if compared.basis == "step" else "The window"
    if spans.before_ns == 0 or spans.change_ns == 0:
        return f"{what} is as long as before."
    ratio = percent(abs(100 * spans.change_ns / spans.before_ns))
    sign = -1 if spans.change_ns < 0 else 1
    most = max(compared.parts, key=lambda part: (sign * part.change_ns, part.name))
    how = "shorter" if sign < 0 else "longer"
    why = f"; most of that is {most.name}" if 2 * sign * most.change_ns > sign * spans.change_ns else ""
    return f"{what} is {ratio} {how}{why}."

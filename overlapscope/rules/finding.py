"""Findings of rules."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from overlapscope.analysis.figures import Window
from overlapscope.trace.host import Where

Severity = Literal["error", "warning", "info"]
Effort = Literal["option", "line", "restructuring"]
"""Size of the change that the advice asks for: an option, a line or two, or another structure of the program."""
EFFORTS: Final = ("option", "line", "restructuring")
"""Efforts, the smallest first."""

NEGLIGIBLE_SHARE = 0.0005
"""A saving below this share of the time would show as 0.0%, and is called nothing."""

MIN_COST_SHARE = 0.01
"""Minimum share of the judged span that a finding must cost for its rule to fire."""


class Saving(msgspec.Struct, frozen=True, kw_only=True):
    """Saving of a finding's fix by a replay, over all judged steps together, from `saved_low_ns` to `saved_high_ns`.

    It may exceed the finding's cost, because a fix can also remove time of other findings.
    """

    saved_ns: int
    saved_low_ns: int
    """Negative if the fix may make the program slower."""
    saved_high_ns: int
    fix: tuple[str, ...]
    """Changes of `overlapscope whatif` that were replayed."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice on one device, with its evidence."""

    rule: str
    """Id of the rule."""
    severity: Severity
    source: str
    rank: int | None
    device: int
    scope: str
    """`window`, or the name of the step or range that was analysed."""
    title: str
    """Problem and cost in one line."""
    detail: str
    """Evidence: events, calls and numbers."""
    advice: str
    """Recommended change."""
    steps: int = 0
    """Number of judged steps that cost and saving cover together; 0 if the scope is not divided into steps."""
    cost_ns: int
    """Time that the finding explains in the program if its step is known, else in the recording; 0 for good news."""
    idle_ns: int = 0
    """Part of the cost in which the device is idle; in a recording, some of it may be the profiler's."""
    saving: Saving | None = None
    """Saving of the fix alone, by a replay; None if no replay can tell, so that it is at most the cost."""
    effort: Effort = "restructuring"
    doubt: str = ""
    """Caveats about the saving, in sentences: it contradicts the cost."""
    where: Where | None
    example: Window | None
    """The longest single case, to be opened in a timeline of the recording."""

    @property
    def mean_cost_ns(self) -> int:
        """`cost_ns` in an average step; in the scope if it has no steps."""
        return round(self.cost_ns / max(1, self.steps))


def costliest_first(finding: Finding) -> tuple[bool, float, int, str, str, int]:
    """Return the sort key of a finding: what costs most first, then the least effort, good news last."""
    return (
        finding.severity == "info",
        -finding.cost_ns / max(1, finding.steps),
        EFFORTS.index(finding.effort),
        finding.rule,
        finding.source,
        finding.device,
    )

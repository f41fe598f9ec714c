"""What a rule finds."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.results import Window

Severity = Literal["error", "warning", "info"]
CostFrom = Literal["replay", "bound"]

FLOOR = 0.01
"""A rule fires where what it finds costs at least this share of the judged span."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """The place in the program; None for what the trace does not tell."""

    op: str | None = None
    """Innermost CPU op."""
    call: str | None = None
    """Runtime call."""
    line: str | None = None
    """Python line."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice on one device, with what it rests on."""

    rule: str
    severity: Severity
    source: str
    rank: int | None
    device: int
    scope: str
    """`window`, or the name of the step or range that was analysed."""
    title: str
    """One line: what costs how much."""
    detail: str
    """The evidence: which events, which calls, which numbers."""
    advice: str
    """What to change."""
    cost_ns: int
    """What the fix saves over the scope, taken alone: by replay where that is possible, else at most; 0 for good
    news. Of the plain program where its step is measured or told, as the words are."""
    bound_ns: int
    """The time that the finding answers for in the recording: an upper bound on what the fix saves of it. A fix may
    save more by replay, as it can do away with what other findings answer for too. 0 for good news."""
    plain_bound_ns: int | None = None
    """The same in the plain program; None where its step is neither measured nor told."""
    cost_from: CostFrom
    """Whether `cost_ns` is what a replay of the recording says (`overlapscope whatif`), or the bound."""
    fix: tuple[str, ...] = ()
    """The changes of `overlapscope whatif` that were replayed for `cost_ns`; none where it is the bound."""
    doubt: str = ""
    """What has to be said of the saving, in sentences: that it contradicts what was measured, or exceeds it."""
    where: Where | None
    example: Window | None
    """The longest single case, to look at in a timeline of the recording."""
    plain_example: Window | None = None
    """The same in the plain program's timeline; None where its step is neither measured nor told."""

    @property
    def spoken_bound_ns(self) -> int:
        """The bound in the program that the finding speaks of."""
        return self.bound_ns if self.plain_bound_ns is None else self.plain_bound_ns


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

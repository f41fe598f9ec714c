"""Findings of rules."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from overlapscope.analysis.figures import Window
from overlapscope.catalog.earlier_names import current_rule

Severity = Literal["error", "warning", "info"]
CostFrom = Literal["replay", "bound"]
Effort = Literal["option", "line", "restructuring"]
"""What the advice asks for: an option, a line or two, or another structure of the program."""
EFFORTS: Final = ("option", "line", "restructuring")
"""Efforts, the smallest first."""

HARDLY = 0.0005
"""A saving below this share of the time would show as 0.0%, and is called nothing."""

FLOOR = 0.01
"""Minimum share of the judged span that a finding must cost for its rule to fire."""

_WORK: Final = frozenset({"cpu-ops", "dispatch", "python"})
"""Rules on work of the host. In the same work, the host may wait for a CPU or a lock, for which other rules have better
advice. So a fix counts for no more than its rule explains, though without the work the waits are gone, too."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A place in the program. Fields are None where the trace doesn't state them."""

    op: str | None = None
    """Innermost CPU op."""
    call: str | None = None
    """Runtime call."""
    line: str | None = None
    """Python line."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of advice on one device, with its evidence."""

    rule: str
    """Id of the rule. Earlier ids, which stored reports may have, are replaced by the current ones."""
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
    """Number of judged steps that the following times cover together; 0 if the scope is not divided into steps."""
    cost_ns: int
    """Saving of the fix alone, by replay where possible, otherwise at most; 0 for good news.

    If the plain program is known, this and the words are about that program.
    """
    low_ns: int = 0
    """Saving that is certain: the lower end by replay, 0 if no replay can tell."""
    high_ns: int = 0
    """Upper end of the saving."""
    bound_ns: int
    """Time that the finding explains in the recording; 0 for good news.

    The fix saves at most this much of it. By replay it may save more, because it can also remove time of other
    findings.
    """
    found_in: Literal["both", "recorded", "plain"] = "both"
    """Program with this finding: only the recording, only the plain program, or both if both are known."""
    plain_bound_ns: int | None = None
    """Like `bound_ns` in the plain program; None where that program is unknown."""
    cost_from: CostFrom
    """Origin of `cost_ns`: a replay (`overlapscope whatif`), or the bound."""
    effort: Effort = "restructuring"
    fix: tuple[str, ...] = ()
    """Changes of `overlapscope whatif` that were replayed for `cost_ns`; empty if it is the bound."""
    doubt: str = ""
    """Caveats about the saving, in sentences: it contradicts a measurement, or exceeds it."""
    where: Where | None
    example: Window | None
    """The longest single case, to be opened in a timeline of the recording."""
    plain_example: Window | None = None
    """The longest single case in the plain program's timeline; None where that program is unknown."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "rule", current_rule(self.rule))

    @property
    def spoken_bound_ns(self) -> int:
        """Bound in the program that the finding's words are about."""
        return self.bound_ns if self.plain_bound_ns is None else self.plain_bound_ns

    @property
    def mean_bound_ns(self) -> int:
        """`bound_ns` in an average step; in the scope if it has no steps."""
        return round(self.bound_ns / max(1, self.steps))


def surest_first(finding: Finding) -> tuple[bool, float, int, float, float, str, str, int]:
    """Return the sort key of a finding: what is certain to save most first, then the least effort, good news last.

    If nothing is certain, what may save most comes first.
    """
    steps = max(1, finding.steps)
    certain_ns = min(finding.low_ns, finding.spoken_bound_ns) if finding.rule in _WORK else finding.low_ns
    return (
        finding.severity == "info",
        -certain_ns / steps,
        EFFORTS.index(finding.effort) if finding.low_ns else 0,
        -finding.cost_ns / steps,
        -finding.bound_ns / steps,
        finding.rule,
        finding.source,
        finding.device,
    )

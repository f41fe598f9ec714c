"""What a check comes to, as frozen structures; their names are those of its JSON (`docs/guides/check.md`)."""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.base.saved import Tool
from overlapscope.base.shown import Shown

SCHEMA_VERSION = 1

Level = Literal["error", "warn"]
Unit = Literal["ns", "pct", "gb_per_s", "findings", "differences"]
"""`findings` of a forbidden rule, `differences` of the environment."""

Status = Literal["pass", "fail", "unknown", "skipped", "accepted"]
"""`skipped`: a relative budget whose baseline was made elsewhere. `accepted`: failed, but acknowledged until a day."""

Outcome = Literal["pass", "fail", "inconclusive"]

PASSED, FAILED, INCONCLUSIVE = 0, 1, 3
"""Exit codes; 2 is wrong usage, configuration or input."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict is about; None where it is about all of them together."""

    source: str | None = None
    """Path of the trace, as the user gave it."""
    rank: int | None = None
    device: int | None = None
    scope: str = "steps"
    """`steps`, `window`, or the name of a range."""
    direction: Literal["h2d", "d2h"] | None = None
    step: str | None = None
    """Pattern of the steps, where not all of them are meant."""


class FailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing behind a failed budget, the costliest first."""

    title: str
    """One line: `pageable-memory, 6.2 ms a step`."""
    detail: str
    """What was seen."""
    advice: str = ""
    """What to change: as a finding says, or else what helps against the cause in general."""
    cause: str | None = None
    """The cause of exposed copy or idle time that it is."""
    time_ns: int
    """The mean of a step where judged by steps, else of the window."""
    op: str | None = None
    call: str | None = None
    where: str | None = None
    """Python line, `train.py(42): step`, where the trace has stacks."""
    rule: str | None = None
    """The finding's rule, to be explained by `overlapscope explain RULE`."""


class DeviceVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a verdict rests on: one rank's device, judged by itself."""

    source: str | None
    rank: int | None
    device: int | None
    status: Status
    value: float | None
    samples: int


class BudgetVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """One budget judged on one subject."""

    budget: str
    """Its name: `efficiency_pct >= 80%`, `forbid pageable-copy`, `environment`."""
    metric: str
    """`efficiency_pct`, or the rule's id, or `environment`, or `job` where traces are not of one."""
    subject: Subject
    status: Status
    level: Level
    value: float | None
    """In `unit`; None where unknown."""
    limit: float | None
    """In `unit`: what the value must not pass; for a relative budget the baseline's value and the change that is
    allowed, which is never less than the noise."""
    unit: Unit
    more_is_better: bool
    """Whether the limit is a least value."""
    baseline: float | None = None
    """What a relative budget compares with."""
    change_low: float | None = None
    change_high: float | None = None
    """99% interval of the change against the baseline, in `unit`."""
    samples: int = 0
    """Steps, or occurrences of the range, that have a value and were judged."""
    message: str
    """The whole verdict in one sentence, value and limit with enough digits to see them differ."""
    parts: tuple[DeviceVerdict, ...] = ()
    """One for each rank and device; the subject is the one of them that decides, or all of them together."""
    reasons: tuple[FailureReason, ...] = ()
    note: str | None = None
    """Why a change that exceeds its percentage passes: `18% more, within noise`, or `18% more, may be chance`, which
    alone may be beyond the limit."""
    exception: str | None = None
    """Why it is accepted, and until when; or that it was, until when."""
    counts: bool = True
    """False where it cannot change the outcome: below the fail level, or missing and allowed to be."""


def cannot_be_judged(rule: str) -> str:
    """How the message of a rule begins that cannot be judged; the reason follows."""
    return f"{rule} cannot be judged: "


class CheckResult(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Every verdict, failed ones first, and what has to be said beside them."""

    kind: Literal["check"] = "check"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    outcome: Outcome
    summary: str
    """One sentence: `2 of 5 budgets failed: efficiency_pct, forbid pageable-copy.`"""
    program: str | None = None
    """A sentence where the plain program is judged: what a step takes there, and in the recording."""
    sources: tuple[str, ...] = ()
    """Every trace that was judged, as the user gave it or as a directory or pattern had it."""
    verdicts: tuple[BudgetVerdict, ...]
    warnings: tuple[str, ...] = ()
    """Another environment than the baseline's, exceptions that have ended or matched nothing, and so on."""

    @property
    def exit_code(self) -> int:
        """0 pass, 1 a budget failed, 3 inconclusive."""
        return {"pass": PASSED, "fail": FAILED, "inconclusive": INCONCLUSIVE}[self.outcome]

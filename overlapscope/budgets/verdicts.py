"""Results of a check as frozen structures, whose field names are those of its JSON (`docs/reference/check.md`)."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.trace.servers import Phase

Level = Literal["error", "warn"]
Unit = Literal[
    "ns", "pct", "gb_per_s", "launches", "findings", "differences", "devices", "kernels", "copies", "calls", "bytes"
]
"""Forbidden rules are counted in `findings`, obstacles in `differences`; a contract counts what is in a step."""

Status = Literal["pass", "fail", "unknown", "skipped", "accepted"]
"""`skipped`: a relative budget whose baseline was made elsewhere. `accepted`: a failure covered by an exception."""

Outcome = Literal["pass", "fail", "inconclusive"]

PASSED, FAILED, INCONCLUSIVE = 0, 1, 3
"""Exit codes. Code 2 means wrong usage, configuration or input."""


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """Subject of a verdict. A field is None if the verdict is about all of them."""

    source: str | None = None
    """Path of the trace, as the user gave it."""
    rank: int | None = None
    device: int | None = None
    scope: str = "steps"
    """`steps`, `window`, or the name of a range."""
    direction: Literal["h2d", "d2h"] | None = None
    step: str | None = None
    """Pattern of the judged steps; None for all steps."""
    phase: Phase | None = None
    """Phase of the judged steps of an inference server; None for the phase that takes most time."""


class FailureReason(msgspec.Struct, frozen=True, kw_only=True):
    """A reason why a budget failed."""

    title: str
    """One line: `pageable-memory, 6.2 ms a step`."""
    detail: str
    """Evidence from the trace."""
    advice: str = ""
    """The change that a finding advises, or else a general remedy for the cause."""
    cause: str | None = None
    """Cause of exposed copy time or idle time."""
    time_ns: int
    """Mean time per step if steps are judged, otherwise the time in the window; in nanoseconds."""
    op: str | None = None
    call: str | None = None
    where: str | None = None
    """Python line, `train.py(42): step`, if the trace has stacks."""
    rule: str | None = None
    """Rule of the finding. `overlapscope explain RULE` explains it."""


class DeviceVerdict(msgspec.Struct, frozen=True):
    """Result of one device of one rank."""

    source: str | None
    rank: int | None
    device: int | None
    status: Status
    value: float | None
    samples: int


class BudgetVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a budget on a subject."""

    budget: str
    """Name of the budget: `efficiency_pct >= 80%`, `forbid pageable-memory`."""
    metric: str
    """`efficiency_pct`, a rule's id, or an obstacle to judging (`job`, `program`, `complete`, `ranks`, `devices`)."""
    subject: Subject
    status: Status
    level: Level
    value: float | None
    """The value in `unit`; None if unknown."""
    limit: float | None
    """The limit in `unit`. For a relative budget: the baseline's value plus the allowed change, or plus the noise floor
    if that is larger."""
    unit: Unit
    more_is_better: bool
    """True if values below the limit fail, rather than values above it."""
    baseline: float | None = None
    """The baseline's value, for a relative budget."""
    change_low: float | None = None
    change_high: float | None = None
    """Upper end of the 99% interval of the change from the baseline, in `unit`; `change_low` is the lower end."""
    samples: int = 0
    """Number of judged steps, or occurrences of the range, that have a value."""
    message: str
    """The verdict in a sentence, with enough digits to set the value and the limit apart."""
    where: str | None = None
    """Line of the program, `train.py:42 in step`, for a promise of a contract."""
    parts: tuple[DeviceVerdict, ...] = ()
    """Results by rank and device. `subject` is the decisive one, or all of them together."""
    reasons: tuple[FailureReason, ...] = ()
    note: str | None = None
    """Reason why a change beyond the allowed percentage passes: `18% more, within noise`, or `18% more, may be chance`.
    Only in the second case can the value be beyond the limit."""
    exception: str | None = None
    """Reason why the failure is or was accepted, and the last day of the exception."""
    unknown_because: str | UnsetType = UNSET
    """Reason why a forbidden rule can't be judged, without a full stop; absent from all other verdicts."""
    counts: bool = True
    """True if the verdict can change the outcome. Warnings below the fail level and allowed gaps in the data cannot."""


class CheckResult(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a check, its verdicts, failed ones first, and its warnings."""

    kind: Literal["check"] = "check"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    outcome: Outcome
    summary: str
    """One sentence: `2 of 5 budgets failed: efficiency_pct, forbid pageable-memory.`"""
    files: tuple[str, ...] = ()
    """Configuration, contract and baseline that `overlapscope check` used."""
    program: str | None = None
    """Sentence about what is judged: the step times of plain program and recording, or only a contract."""
    sources: tuple[str, ...] = ()
    """Paths of the judged traces, as the user gave them or as a directory or pattern contains them."""
    verdicts: tuple[BudgetVerdict, ...]
    warnings: tuple[str, ...] = ()
    """Warnings, such as an environment unlike the baseline's, or exceptions that matched nothing."""

    @property
    def exit_code(self) -> int:
        """0 if the check passed, 1 if a budget failed, 3 if it is inconclusive."""
        return {"pass": PASSED, "fail": FAILED, "inconclusive": INCONCLUSIVE}[self.outcome]

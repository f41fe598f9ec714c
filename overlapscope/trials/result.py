"""What `overlapscope try` finds, as frozen structures; their names are those of its JSON.

All times are integer nanoseconds. Percentages are of the plain step of the program as it is; negative where it is
faster.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from overlapscope.base.saved import Tool
from overlapscope.base.shown import Shown

SCHEMA_VERSION = 1

Sameness = Literal["same", "within noise", "different", "unknown"]
"""Of results: bit for bit; no further apart than those of unchanged runs; further; or nothing can be said."""
Verdict = Literal["faster", "slower", "no more than noise", "unknown"]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Percent of the plain step: `low <= value <= high`."""

    value: float
    low: float
    high: float


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """How a person makes a change."""

    diff: str
    """A unified diff of the program's files; empty where the edit is not clear."""
    advice: tuple[str, ...]
    """What the diff does not do, a sentence or two each, with file and line."""
    code: str = ""
    """A function to add to the program, where advice speaks of one."""
    remarks: tuple[str, ...] = ()
    """What the program does otherwise then, which was made up for in the trial, a sentence each."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes that was tried together."""

    change: str
    """The last one of the set, as it is asked for: `workers`."""
    value: str
    """`6` of workers; empty where a change has no value."""
    title: str
    after: tuple[str, ...]
    """The others of the set, by `Setting.text`, which were kept before."""
    predicted_pct: Predicted | None
    """Of the whole set; None where nothing can be predicted."""
    step_ns: int | None
    """As much longer than the step as it is as was measured; None where no run succeeded."""
    measured_pct: float | None
    measured_low_pct: float | None
    measured_high_pct: float | None
    """None where there are too few runs for an interval."""
    added_pct: float | None
    added_low_pct: float | None
    added_high_pct: float | None
    """Likewise, against the same set without this change, of whose step these are percentages."""
    verdict: Verdict
    """What adding this change to the set does."""
    kept: bool
    """Later changes were tried on top of it."""
    runs: int
    results: Sameness
    races: int | None
    """That the hazard checker found; None where it did not look: it looks at the best set alone."""
    failure: str
    """How a run ended that failed only with this change, in a sentence; else empty."""
    edit: Edit


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A change that does not fit the program."""

    change: str
    title: str
    reason: str
    """A sentence."""


class Recordings(msgspec.Struct, frozen=True, kw_only=True):
    """Trace files; None where there is none."""

    before: str | None
    after: str | None


class Trial(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """What became of a program's step with each change."""

    said_by: ClassVar[str] = "overlapscope.trials.document:said"

    kind: Literal["trial"] = "trial"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    program: str
    """Its command line."""
    device_name: str | None
    ranks: int
    baseline_step_ns: int
    baseline_low_ns: int | None
    baseline_high_ns: int | None
    baseline_runs: int
    warmup_steps: int
    timed_steps: int
    repeatable: bool
    """Two unchanged runs had the same results, bit for bit."""
    changes: tuple[Tried, ...]
    left_out: tuple[LeftOut, ...]
    best: int | None
    """Index in `changes` of the set to take; None where none pays."""
    recordings: Recordings
    interrupted: bool
    """Ctrl-C ended it early, or its time was up: not all that was planned was run."""
    notes: tuple[str, ...]
    """What a reader must know, a sentence each."""
    wall_s: float
    plain_runs_s: float
    """What the plain runs took of that, from start to end of their processes."""

"""Structures of a trial, with the names of its JSON.

All times are integer nanoseconds. Percentages are of the unchanged program's plain step; negative if a change makes it
faster.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool

Sameness = Literal["same", "within noise", "different", "unknown"]
"""Comparison of results: equal bit for bit; as far apart as those of unchanged runs; further apart; or unknown."""
Verdict = Literal["faster", "slower", "no more than noise", "unknown"]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """Percentage of the plain step: `low <= value <= high`."""

    value: float
    low: float
    high: float


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """Instructions for making a change by hand."""

    diff: str
    """A unified diff of the program's files; empty if the edit is not clear."""
    advice: tuple[str, ...]
    """Advice for everything that the diff leaves out, a sentence or two each, with file and line."""
    code: str = ""
    """Function to add to the program, if the advice mentions it."""
    remarks: tuple[str, ...] = ()
    """Sentences on new differences of the program that the trial compensated for."""


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A set of changes that was tried together."""

    change: str
    """Last change of the set, as the user writes it: `workers`."""
    value: str
    """Value, such as `6` for workers; empty if the change has none."""
    title: str
    after: tuple[str, ...]
    """Texts (`Setting.text`) of the other changes in the set, which were kept before."""
    predicted_pct: Predicted | None
    """Prediction for the whole set; None if there is none."""
    step_ns: int | None
    """Step time: the unchanged step scaled by the measured ratio; None if no run succeeded."""
    measured_pct: float | None
    measured_low_pct: float | None
    measured_high_pct: float | None
    """None if there are too few runs for an interval."""
    added_pct: float | None
    added_low_pct: float | None
    added_high_pct: float | None
    """Change against the same set without this change, in percent of that set's step."""
    verdict: Verdict
    """Effect of adding this change to the set."""
    kept: bool
    """True if later changes were tried on top of it."""
    runs: int
    results: Sameness
    races: int | None
    """Number of races found by the hazard checker; None if not checked, since only the best set is."""
    failure: str
    """Sentence on how a run failed only with this change; else empty."""
    edit: Edit


class LeftOut(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was not tried, or does not fit the program."""

    change: str
    title: str
    reason: str
    """Reason, in a sentence."""


class Recordings(msgspec.Struct, frozen=True, kw_only=True):
    """Paths of trace files; None if not kept."""

    before: str | None
    after: str | None


class Trial(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Results of a trial: a program's step with each change."""

    shown_by: ClassVar[str] = "overlapscope.plugins.trials.document:verdict_and_document"

    kind: Literal["trial"] = "trial"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    program: str
    """Command line of the program."""
    device_name: str | None
    ranks: int
    baseline_step_ns: int
    baseline_low_ns: int | None
    baseline_high_ns: int | None
    baseline_runs: int
    warmup_steps: int
    timed_steps: int
    repeatable: bool
    """True if two unchanged runs had the same results, bit for bit."""
    changes: tuple[Tried, ...]
    left_out: tuple[LeftOut, ...]
    best: int | None
    """Index in `changes` of the recommended set; None if no set is."""
    recordings: Recordings
    interrupted: bool
    """True if not all planned runs were made, because of Ctrl-C or the time limit."""
    notes: tuple[str, ...]
    """Notes for the reader, a sentence each."""
    wall_s: float
    plain_runs_s: float
    """Seconds that the plain runs took, from start to end of their processes."""

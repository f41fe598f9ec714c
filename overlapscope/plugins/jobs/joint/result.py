"""Structures of a joint prediction, with the names of `overlapscope whatif RANKS --format json`.

Times are integer nanoseconds, of an average step: of the program without the profiler if all ranks timed that, else as
recorded.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.base.shown import Shown
from overlapscope.prediction.result import Estimate


class JointRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank before and after the changes."""

    rank: int
    source: str
    recorded_step_ns: int
    replayed_step_ns: int
    """Step of the joint replay without changes."""
    predicted_step_ns: Estimate | None
    waited_ns: int
    """Time per step that the rank waits for others in collectives, in the joint replay without changes."""
    predicted_waited_ns: int | None


class JointChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for, and its effect."""

    change: str
    """Its option with its argument: `no-straggler`, `bandwidth 2x`, `pin`."""
    title: str
    touched: int
    """Number of ranks, collectives, copies or calls that it changed; 0 if it does not apply."""
    what: str
    """Effect, in a sentence."""
    assumptions: tuple[str, ...]


class JointWhatIf(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Predicted step of a job."""

    shown_by: ClassVar[str] = "overlapscope.plugins.jobs.joint.document:verdict_and_document"
    kind: Literal["whatif-ranks"] = "whatif-ranks"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    valid: bool
    """True if predictions are possible."""
    reasons: tuple[str, ...]
    """Reasons why they are not, or doubts, a sentence each."""
    meetings: int
    """Number of collectives at which the ranks are joined."""
    steps: int
    """Number of steps that the figures are the mean of."""
    recorded_step_ns: int | None
    replayed_step_ns: int | None
    """The job's step without changes: in the joint replay, or the plain step."""
    predicted_step_ns: Estimate | None
    """The job's step with the changes; None without changes or if `valid` is false."""
    gain_ns: Estimate | None
    """`replayed_step_ns` minus the prediction; `low` belongs to the prediction's `high`."""
    gain_pct: float | None
    changes: tuple[JointChange, ...]
    ranks: tuple[JointRank, ...]
    plain: bool = False
    """True if all times but the recorded ones are of the program without the profiler."""

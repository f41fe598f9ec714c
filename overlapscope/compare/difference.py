"""What a diff of two reports says, as frozen structures; their names are those of its JSON (`docs/guides/diff.md`).

Times are integer nanoseconds: per step (the mean over the steps compared) where both sides have steps, else of the
whole window. What is measured in them adds up: the causes to their bucket, the buckets to the span, before, after and
in the change. A figure that one side does not have is None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.results import Environment, Trust
from overlapscope.base.saved import Tool
from overlapscope.base.shown import Shown
from overlapscope.rules.finding import Finding

SCHEMA_VERSION = 1

Unit = Literal["ns", "pct", "gb_per_s", "bytes", "count"]
Basis = Literal["step", "window"]
Aspect = Literal["gpu", "torch", "cuda", "driver", "world-size", "profiler"]
"""What environments can differ in."""
Standing = Literal["new", "gone", "both"]
OpStanding = Literal["new", "gone", "slower", "faster", "more", "fewer", "same"]
"""`more` and `fewer` are of the count; a change of time without one is `slower` or `faster`."""


class FigureChange(msgspec.Struct, frozen=True, kw_only=True):
    """One figure before and after."""

    name: str
    """`exposed copy`, `pageable-memory`, `overlap efficiency`."""
    unit: Unit
    before: float | None
    after: float | None
    change: float | None
    """`after - before`; of percentages in points."""
    noise_floor: float
    """By how much this may differ between two recordings of one and the same program; in `unit`."""
    low: float | None = None
    high: float | None = None
    """The interval in which the change lies, from how the steps differ among themselves; None without steps."""
    beyond_noise: bool | None = None
    """Whether the interval leaves out zero and the change exceeds `noise_floor`; None where that cannot be told."""

    @property
    def change_pct(self) -> float | None:
        """The change as a percentage of what was before; None of nothing."""
        return 100 * self.change / self.before if self.before and self.change is not None else None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Every figure of one device, or of one range."""

    span: FigureChange
    buckets: tuple[FigureChange, ...]
    """Add up to the span."""
    exposed_copy_by_cause: tuple[FigureChange, ...]
    """Add up to the bucket `exposed copy`."""
    idle_by_cause: tuple[FigureChange, ...]
    """Add up to the bucket `idle`."""
    engines: tuple[FigureChange, ...]
    overlap: tuple[FigureChange, ...]


class CopyChange(msgspec.Struct, frozen=True, kw_only=True):
    """The copies of one direction and pair of memory kinds, on the main stream or beside it."""

    direction: Literal["h2d", "d2h"]
    source_kind: str
    target_kind: str
    stream: Literal["main", "side"]
    """Stream ids change from run to run; whether it is the stream that computes does not."""
    standing: Standing
    count: FigureChange
    bytes: FigureChange
    time: FigureChange
    exposed: FigureChange
    bandwidth: FigureChange


class StallChange(msgspec.Struct, frozen=True, kw_only=True):
    """One blocking call under one op, over all threads and lines."""

    call: str
    op: str | None
    standing: Standing
    host_wait: FigureChange
    idle_caused: FigureChange
    where_before: str | None
    where_after: str | None


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of one name that one op launches."""

    kernel: str
    """After; where it is gone, before."""
    renamed_from: str | None
    """The name that the same op's kernel had before."""
    op: str | None
    standing: OpStanding | Literal["renamed"]
    """`renamed` where nothing else changed."""
    count: FigureChange
    time: FigureChange


class OpChange(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels that one op launches."""

    op: str
    standing: OpStanding
    count: FigureChange
    time: FigureChange


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a finding. Costs are upper bounds."""

    rule: str
    standing: Literal["new", "gone", "grown", "shrunk", "same"]
    before: Finding | None
    after: Finding | None
    cost: FigureChange
    """A side without it cost less than the rules' floor, so that `low` and `high` span what that leaves open."""


class RangeDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One range by its name: figures are the mean of its occurrences."""

    name: str
    standing: Standing
    count_before: int
    count_after: int
    figures: Figures | None
    """None where only one side has it."""


class DeviceDiff(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one rank, before and after."""

    rank: int | None
    device: int
    basis: Basis
    steps_before: int
    """How many are compared; 0 where the basis is the window."""
    steps_after: int
    left_out_before: int
    """Warm-up steps, and the steps at either end that the recording cut."""
    left_out_after: int
    figures: Figures
    ranges: tuple[RangeDiff, ...]
    copies: tuple[CopyChange, ...]
    host_stalls: tuple[StallChange, ...]
    findings: tuple[FindingChange, ...]
    """The largest cost of either side first."""
    kernels: tuple[KernelChange, ...]
    """All that are not the same, the largest change of time first."""
    ops: tuple[OpChange, ...]
    """Likewise."""
    verdict: str
    """One sentence."""


class Doubt(msgspec.Struct, frozen=True, kw_only=True):
    """Why the two cannot be compared, or not in everything."""

    id: Literal[Aspect, "plain", "steps", "few-steps", "no-steps", "trust", "lost", "predicted", "files", "ranks"]
    detail: str
    """What differs."""
    holds: str
    """What can still be compared."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two reports."""

    sources: tuple[str, ...]
    environment: Environment
    trust: tuple[Trust, ...]
    """Of each source."""
    predicted_by: tuple[str, ...] | None = None
    """The changes with which `overlapscope whatif` predicted it; null for a recording."""


class Diff(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Two reports compared."""

    kind: Literal["diff"] = "diff"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    verdict: str
    """One sentence over all devices."""
    of: Literal["plain", "recorded"]
    """Whether both sides are the plain program, its step being measured or told, or the recordings."""
    before: Side
    after: Side
    doubts: tuple[Doubt, ...]
    devices: tuple[DeviceDiff, ...]
    """Those that both sides have; empty where nothing can be compared."""
    unmatched: tuple[str, ...]
    """`rank 3 of after`: what only one side has, or what is unusable."""

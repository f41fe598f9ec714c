"""Results of comparing two reports, as frozen structures with the field names of their JSON (`docs/guides/diff.md`).

Times are integer nanoseconds: means per step if both sides have steps, otherwise of all time after the lead-in. They
add up before, after and in the change: causes to their bucket, and buckets to the span. A figure that one side lacks
is None.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.figures import Beside
from overlapscope.analysis.results import CopyDirection, Environment, Trust
from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import WORK_UNKNOWN
from overlapscope.rules.finding import Finding

Unit = Literal["ns", "pct", "gb_per_s", "bytes", "count"]
Basis = Literal["step", "window"]
Aspect = Literal["gpu", "torch", "cuda", "driver", "world-size", "profiler"]
"""Attributes in which environments can differ."""
Standing = Literal["new", "gone", "both"]
OpStanding = Literal["new", "gone", "slower", "faster", "more", "fewer", "same"]
"""`more` and `fewer` are about the count; `slower` and `faster` mean that only the time changed."""


class FigureChange(msgspec.Struct, frozen=True):
    """A figure before and after."""

    name: str
    """`exposed copy`, `pageable-memory`, `overlap efficiency`."""
    unit: Unit
    before: float | None
    after: float | None
    change: float | None
    """`after - before`, in percentage points if the figure is a percentage."""
    noise_floor: float
    """Maximum difference between two recordings of the same program, in `unit`."""
    low: float | None = None
    high: float | None = None
    """Upper end of the change's confidence interval, from differences between steps; None without steps."""
    beyond_noise: bool | None = None
    """True if the interval excludes zero and the change exceeds `noise_floor`; None if unknown."""

    @property
    def moved(self) -> float:
        """The change; 0 if it is unknown."""
        return self.change or 0

    @property
    def larger(self) -> float:
        """The larger of the two sides' figures."""
        return max(self.before or 0, self.after or 0)

    def exceeds(self, least: float) -> bool:
        """Return whether the change is more than noise, or if that is unknown, more than `least`."""
        return abs(self.moved) > least if self.beyond_noise is None else self.beyond_noise

    @property
    def change_pct(self) -> float | None:
        """The change as a percentage of the figure before; None if that is zero."""
        return 100 * self.change / self.before if self.before and self.change is not None else None


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of a device or a range."""

    span: FigureChange
    buckets: tuple[FigureChange, ...]
    """Buckets, which add up to the span."""
    exposed_copy_by_cause: tuple[FigureChange, ...]
    """Causes, which add up to the bucket `exposed copy`."""
    exposed_comm_by_cause: tuple[FigureChange, ...]
    """Causes, which add up to the bucket `exposed comm`."""
    exposed_other_by_cause: tuple[FigureChange, ...]
    """Kinds of memory work, which add up to the bucket `exposed other`."""
    idle_by_cause: tuple[FigureChange, ...]
    """Causes, which add up to the bucket `idle`."""
    engines: tuple[FigureChange, ...]
    overlap: tuple[FigureChange, ...]

    def bucket(self, name: str) -> FigureChange:
        """Return the bucket of that name."""
        return next(bucket for bucket in self.buckets if bucket.name == name)

    @property
    def idle_name(self) -> str:
        """Name of the bucket `idle` with the parts in which the GPU may have worked, such as `idle and unrecorded`."""
        parts = [cause.name for cause in self.idle_by_cause if cause.name in WORK_UNKNOWN and cause.larger]
        return " and ".join(["idle", *(bucket_of(part).name for part in parts)])


class CopyChange(msgspec.Struct, frozen=True, kw_only=True):
    """Copies with the same direction and memory kinds, on the main stream or on side streams."""

    direction: CopyDirection
    source_kind: str
    target_kind: str
    stream: Literal["main", "side"]
    """Kind of stream: `main` is the stream that computes. Stream ids would differ between runs."""
    standing: Standing
    count: FigureChange
    bytes: FigureChange
    time: FigureChange
    exposed: FigureChange
    bandwidth: FigureChange


class StallChange(msgspec.Struct, frozen=True, kw_only=True):
    """A blocking call under an op, over all threads and lines."""

    call: str
    op: str | None
    standing: Standing
    host_wait: FigureChange
    idle_caused: FigureChange
    where_before: str | None
    where_after: str | None


class KernelChange(msgspec.Struct, frozen=True, kw_only=True):
    """Kernels of the same name, launched by the same op."""

    kernel: str
    """Name of the kernel after, or before if it is gone."""
    renamed_from: str | None
    """Name of the same op's kernel before."""
    op: str | None
    standing: OpStanding | Literal["renamed"]
    """`renamed` if nothing else changed."""
    count: FigureChange
    time: FigureChange


class OpChange(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels launched by an op."""

    op: str
    standing: OpStanding
    count: FigureChange
    time: FigureChange


PartOfCompute = Literal["new", "gone", "replaced", "calls", "length", "side-by-side"]
"""Parts of a change of compute time: kernels that are new or gone, others that run for the same op, more or fewer
calls, longer or shorter calls, and the time in which several kernels run at once."""


class ComputePart(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the change of compute time."""

    part: PartOfCompute
    change_ns: int
    kernels: dict[str, int] = {}
    """Its kernels by the name after, or before if they are gone, with the change of each; the largest first."""


class KernelPace(msgspec.Struct, frozen=True, kw_only=True):
    """Ratio by which calls of nearly all kernels became longer, as at another clock of the GPU."""

    ratio: float
    """Median over the kernels' time."""
    low: float
    high: float


class SlowedChange(msgspec.Struct, frozen=True, kw_only=True):
    """Change of the time by which other work slows the kernels beside it (`NetOverlap`): an interval without zero."""

    beside: Beside
    low_ns: int
    high_ns: int


class ComputeChange(msgspec.Struct, frozen=True, kw_only=True):
    """Reasons for a change of compute time."""

    change_ns: int
    """The change of the bucket `compute`, to which the parts add up."""
    parts: tuple[ComputePart, ...] = ()
    """Parts, the largest first."""
    pace: KernelPace | None = None
    slowed: tuple[SlowedChange, ...] = ()


class FindingChange(msgspec.Struct, frozen=True, kw_only=True):
    """A finding before and after. Costs are upper bounds."""

    rule: str
    standing: Literal["new", "gone", "grown", "shrunk", "same"]
    before: Finding | None
    after: Finding | None
    cost: FigureChange
    """Cost of the finding. A side without it may cost up to the rules' floor; `low` and `high` allow for this."""


class RangeDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A range by name; figures are means of its occurrences."""

    name: str
    standing: Standing
    count_before: int
    count_after: int
    figures: Figures | None
    """Figures of the range; None if only one side has it."""


class DeviceDiff(msgspec.Struct, frozen=True, kw_only=True):
    """A device of a rank, before and after."""

    rank: int | None
    device: int
    basis: Basis
    steps_before: int
    """Number of compared steps; 0 if windows are compared."""
    steps_after: int
    left_out_before: int
    """Number of warm-up steps and incomplete steps, which are left out."""
    left_out_after: int
    figures: Figures
    ranges: tuple[RangeDiff, ...]
    phases: tuple[RangeDiff, ...] | msgspec.UnsetType = msgspec.UNSET
    """Judged steps of an inference server, by the names of phases; absent if all have the same."""
    copies: tuple[CopyChange, ...]
    host_stalls: tuple[StallChange, ...]
    findings: tuple[FindingChange, ...]
    """Findings, the largest cost of either side first."""
    kernels: tuple[KernelChange, ...]
    """Kernels that changed, the largest change of time first."""
    ops: tuple[OpChange, ...]
    """Ops that changed, the largest change of time first."""
    compute: ComputeChange
    verdict: str
    """The result in a sentence."""


class Doubt(msgspec.Struct, frozen=True):
    """A reason why the reports, or some of their figures, can't be compared."""

    id: Literal[
        Aspect, "plain", "steps", "few-steps", "no-steps", "phases", "trust", "lost", "predicted", "files", "ranks"
    ]
    detail: str
    """Description of the difference."""
    holds: str
    """Figures that can still be compared."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two reports."""

    sources: tuple[str, ...]
    environment: Environment
    trust: tuple[Trust, ...]
    """Trust in each source."""
    predicted_by: tuple[str, ...] | None = None
    """Changes of the prediction by `overlapscope whatif`; null for a recording."""


class Diff(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of two reports."""

    kind: Literal["diff"] = "diff"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    verdict: str
    """The result for all devices in a sentence."""
    of: Literal["plain", "recorded"]
    """`plain` if both step times without the profiler are known, so that plain programs are compared."""
    before: Side
    after: Side
    doubts: tuple[Doubt, ...]
    devices: tuple[DeviceDiff, ...]
    """Devices on both sides; empty if nothing can be compared."""
    unmatched: tuple[str, ...]
    """Devices that only one side has or can use: `rank 3 of after is unusable`."""

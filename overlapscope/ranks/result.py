"""Results on the ranks of a job, as frozen structures whose names are those of the JSON (`docs/reference/ranks.md`).

Times are integer nanoseconds. Unknown values are None, and `notes` says why. Medians over ranks are the lower middle
value, so that each is the figure of some rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.figures import PerStep, Window
from overlapscope.analysis.measured import Buckets
from overlapscope.base.registry import Shown
from overlapscope.base.saved import SCHEMA_VERSION, Tool
from overlapscope.catalog.causes import Subject
from overlapscope.ranks.comm_result import Communication
from overlapscope.rules.finding import Finding

MIN_PCT = 1.0
"""Minimum share of the span that the others must lose on average for a rank to be called a straggler."""


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time attributed to a cause."""

    subject: Subject
    cause: str
    time_ns: int


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one rank. Figures that don't mention steps are of its window; `judged` has those of a step."""

    rank: int | None
    """Rank; None where neither the trace nor its name states it."""
    source: str
    device: int
    device_name: str | None
    joined: bool
    """True if it was compared with the others: False without a rank, and for a second trace of one rank."""
    trust: Literal["trusted", "degraded", "unusable"]
    doubts: tuple[str, ...]
    """Sentences of the trust checks that warn or fail."""
    doubt_ids: tuple[str, ...]
    """Ids of these checks, in the same order."""
    span_ns: int
    lead_in_ns: int | None
    buckets: Buckets
    efficiency_pct: float | None
    hidden_copy_pct: float | None
    """Like `efficiency_pct`, also None where copies take less than 1% of the window."""
    comm_ns: int
    exposed_comm_ns: int
    exposed_comm_by_cause: dict[str, int]
    """Causes, which add up to `exposed_comm_ns`, with those of joined ranks if compared."""
    unjudged_comm_ns: int | None = None
    """Part of `exposed_comm_ns` after the lead-in whose waiting is unknown; None for a rank that was not compared."""
    comm_compute_pct: float | None
    judged: PerStep | None
    """Figures that reports show: of an average step or, where its `steps` is 0, of the time after the lead-in. None if
    nothing is left after the lead-in."""
    plain_step_ns: int | None = None
    """Step without the profiler, as the recorder timed it; None if it did not."""
    step_spans_ns: tuple[int | None, ...]
    """Length of each step in the order of `RanksReport.step_names`; None where it is not judged, as the step cut by the
    lead-in, warm-up and the last of several aren't."""
    waited_ns: int | None
    """Time that its collectives ran before the last rank had arrived, in all judged meetings; None if it had none."""
    waited_exposed_ns: int | None
    """Part of `waited_ns` during which its compute waited for communication."""
    made_wait_ns: int | None
    """Time that the others waited for it: the sum of their waits in the meetings where it arrived last."""
    lost_ns: int | None
    """Time that each of the others lost to it (`Straggler.lost_ns`)."""
    last_in: int | None
    """Number of meetings charged to it, in which it arrived last, alone or indistinguishably from a few others."""
    meetings: int
    """Number of its collectives in which all members' arrivals could be compared."""
    clock_offset_ns: int | None
    """Offset of its clock from the reference rank's; None where unknown."""
    clock_error_ns: int | None
    """Maximum error of the offset, either way."""
    top_causes: tuple[CauseTime, ...]
    """Up to four causes, longest first, with their time in `judged`."""

    @property
    def unjudged_comm_pct(self) -> float:
        """`unjudged_comm_ns` as a share of the window."""
        return 100 * (self.unjudged_comm_ns or 0) / self.span_ns if self.span_ns else 0.0

    @property
    def exposed_comm_pct(self) -> float | None:
        """Exposed communication as a percentage of the window."""
        return 100 * self.exposed_comm_ns / self.span_ns if self.span_ns else None


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that could not be read."""

    source: str
    reason: str
    """Reason as a sentence, without the source."""
    rank: int | None = None
    """Rank as stated by the file's name."""


class Duplicate(msgspec.Struct, frozen=True, kw_only=True):
    """Several traces of one rank. Each has a row; only one of them was compared with the other ranks."""

    rank: int
    sources: tuple[str, ...]
    """Traces by name. The first was compared."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """Relation between the ranks' clocks."""

    status: Literal["shared", "estimated", "unknown"]
    """`shared`: all offsets are within their errors, so that nothing contradicts a common clock. `estimated`: some are
    not. `unknown`: nothing matches, so arrivals can't be compared."""
    reference_rank: int | None
    """Rank whose clock the offsets refer to."""
    largest_offset_ns: int | None
    largest_error_ns: int | None
    """Maximum error of an offset."""
    arrival_error_ns: int | None = None
    """Maximum error of the time between two arrivals at the median judged collective; None if there is none."""
    reason: str
    """Basis of the status, as a sentence."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """Amount of communication that could be compared. The first four fields count kernels."""

    kernels: int
    """Communication kernels of all ranks compared."""
    matched: int
    """Kernels whose counterparts on other ranks were found."""
    unmatched: int
    """Kernels of collectives without known counterparts: recorded by one rank alone, or ambiguous."""
    not_collective: int
    """Point-to-point kernels, and collectives of one rank."""
    paired: int = 0
    """Point-to-point kernels whose other sides were all found, with known clocks, after every member's lead-in."""
    meetings: int
    """Matched collectives, each of two ranks or more."""
    judged: int
    """Matched collectives in which arrivals were compared: after every member's lead-in, with known clocks."""
    by: Literal["metadata", "kernel-names", "both", "none"]
    """Source of the identification of collectives."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that waited for another."""

    rank: int
    waited_ns: int
    exposed_ns: int
    """Part of `waited_ns` during which its compute waited for communication."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One collective in which several ranks met."""

    collective: str
    """Name as recorded, such as `allreduce` or `_allgather_base`; elsewhere that of the range or the kernel."""
    group: str
    """Name of the process group; empty where not recorded."""
    group_ranks: str = ""
    """Ranks of the group as recorded, such as `[0, 1]`, shortened by torch if there are many; empty where not recorded.
    """
    group_size: int | None
    """Size of the group; None where not recorded."""
    index: int
    """Place among the collectives of its group and name on the late rank, from 0."""
    step: str | None
    """Step in which it ran on the late rank."""
    elements: int | None
    late_rank: int
    """Rank that arrived last."""
    together: int = 1
    """Number of ranks that arrived last within `error_ns` of each other; 0 where no rank can be named."""
    late_ns: int
    """Time from the first to the last arrival."""
    error_ns: int
    """Maximum error of the time between two arrivals."""
    waited_ns: int
    """Sum over all ranks that waited."""
    waited_exposed_ns: int
    waiting: tuple[Waiting, ...]
    """The eight ranks that waited longest."""
    waiting_ranks: int
    """Number of ranks that waited."""
    window: Window
    """Window of the late rank's kernel by the times of its own trace, to be opened in a timeline."""


class LateIn(msgspec.Struct, frozen=True, kw_only=True):
    """All meetings of a collective of a group in which a rank arrived last."""

    collective: str
    group: str
    group_ranks: str = ""
    count: int
    made_wait_ns: int


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that the others waited for."""

    rank: int
    source: str
    device: int
    made_wait_ns: int
    """Sum of the others' waits."""
    made_wait_exposed_ns: int
    """Part of `made_wait_ns` during which the others' compute waited for it, which is the cost of the delay."""
    passed_on_ns: int
    """Part of `made_wait_exposed_ns` that the rank may only have passed on: since this group last met, it had itself
    waited as long for other ranks."""
    last_in: int
    meetings: int
    others: int
    """Number of ranks that it has meetings with."""
    lost_ns: int
    """`made_wait_exposed_ns` without `passed_on_ns`, averaged over the others."""
    lost_pct: float | None
    """`lost_per_step_ns` as a percentage of the median rank's average step; without steps, `lost_ns` as one of the time
    after the lead-in."""
    lost_per_step_ns: int | None
    """`lost_ns` divided by the number of steps; None without steps."""
    sure_pct: float | None
    """The part of `lost_pct` beyond the error of arrivals: of each wait, only what exceeds it."""
    waiting: tuple[Waiting, ...]
    """The eight ranks that waited longest for it."""
    waiting_ranks: int
    collectives: tuple[LateIn, ...]
    """Up to five, the longest waits first."""

    @property
    def clear(self) -> bool:
        """True if it surely costs enough to be called a straggler."""
        return self.sure_pct is not None and self.sure_pct >= MIN_PCT


class StepSkew(msgspec.Struct, frozen=True, kw_only=True):
    """One step over all ranks that judge it."""

    name: str
    ranks: int
    min_ns: int
    median_ns: int
    max_ns: int
    slowest_rank: int
    fastest_rank: int

    @property
    def spread_ns(self) -> int:
        """Difference between the slowest and the fastest rank."""
        return self.max_ns - self.min_ns


class RankSpread(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the ranks that have it."""

    name: str
    """Name of the figure. In ns, of an average step: `step` (`time` where ranks have no steps), `compute`, `exposed
    comm`, `exposed copy`, `exposed other`, `idle`, `waited`, `waited exposed`, `made wait`. In pct: `efficiency`,
    `hidden copy`, `exposed comm share`, `idle share`."""
    unit: Literal["ns", "pct"]
    ranks: int
    """Number of ranks that have it."""
    min: float
    p25: float
    median: float
    p75: float
    p95: float
    max: float
    min_rank: int
    max_rank: int


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """Time that a rank spends beyond the median of the ranks, in the same steps."""

    kind: Literal["bucket", "exposed-copy", "idle"]
    """A bucket, or a cause of exposed copy or of idle time."""
    name: str
    time_ns: int
    median_ns: int

    @property
    def more_ns(self) -> int:
        """Difference from the median."""
        return self.time_ns - self.median_ns


class WorstRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank worth a look, and its explanation."""

    rank: int
    source: str
    device: int
    why: tuple[Literal["makes-others-wait", "slowest-steps", "least-efficient"], ...]
    excess: tuple[Excess, ...]
    """Up to five, largest first."""
    over: Literal["steps", "window"]
    """Basis of `excess`: an average of the steps that all ranks have, or the time after the lead-in if there are none.
    """
    top_causes: tuple[CauseTime, ...]
    findings: tuple[Finding, ...]
    """Up to three, costliest first."""


class RanksReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of the ranks of a job."""

    kind: Literal["ranks"] = "ranks"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    world_size: int | None
    """World size as the traces state it."""
    expected: int | None
    """Expected number of ranks: the user's number, or else `world_size`."""
    ranks: tuple[RankRow, ...]
    """Rows by rank, then device, then source; those without a rank come last."""
    unreadable: tuple[Unreadable, ...]
    missing: tuple[int, ...]
    """Ranks below `expected` without any trace, readable or not."""
    duplicated: tuple[Duplicate, ...]
    clocks: Clocks
    matching: Matching
    stragglers: tuple[Straggler, ...]
    """Up to twenty ranks that made the others wait by more than the error, by `sure_pct`; see `Straggler.clear`."""
    unseen_pct: float | None
    """Maximum `lost_pct` of the ranks that aren't clearly stragglers, as far as arrivals are known. None if no arrivals
    could be compared."""
    meetings: tuple[Meeting, ...]
    """The twenty meetings with the longest waits without computing."""
    communication: Communication
    parts: dict[str, Any]
    """Results of plugins, by their names (`parts.RankPart`)."""
    met_steps: int
    """Number of steps in which ranks met, by which waits are divided for an average step; 0 without steps."""
    step_names: tuple[str, ...]
    """Steps that at least one rank judges, in order."""
    steps: tuple[StepSkew, ...]
    """Steps in the order of `step_names`."""
    spreads: tuple[RankSpread, ...]
    worst: tuple[WorstRank, ...]
    """Up to eight ranks."""
    notes: tuple[str, ...]
    """Sentences on what could not be determined, and why."""

    @property
    def straggler(self) -> Straggler | None:
        """The costliest straggler, if it costs enough to be named."""
        return self.stragglers[0] if self.stragglers and self.stragglers[0].clear else None


# -- The frame of what people read -------------------------------------------------------------------


def by_steps(rows: Sequence[RankRow]) -> bool:
    """Return whether every rank has an average step, so that figures are of a step."""
    return bool(rows) and all(row.judged is not None and row.judged.steps for row in rows)


def rows_of(report: RanksReport) -> tuple[RankRow, ...]:
    """Return the rows of a report with the figures that people read."""
    return framed(report.ranks, report.met_steps)


def framed(rows: Sequence[RankRow], met_steps: int) -> tuple[RankRow, ...]:
    """Return the rows with the figures of an average step, and their waits divided by the number of steps.

    If no rank has steps, figures are of the time after the lead-in. If only some have steps, no frame fits all ranks,
    and figures stay those of their windows.

    Args:
        rows: All rows of a report.
        met_steps: `RanksReport.met_steps`.
    """
    stepped = by_steps(rows)
    if not stepped and any(row.judged is None or row.judged.steps for row in rows):
        return tuple(rows)
    divisor = max(1, met_steps) if stepped else 1
    return tuple(row if row.judged is None else _framed(row, row.judged, divisor) for row in rows)


def _framed(row: RankRow, judged: PerStep, steps: int) -> RankRow:
    def each(total_ns: int | None) -> int | None:
        return None if total_ns is None else round(total_ns / steps)

    return replace(
        row,
        span_ns=judged.span_ns,
        # Idle time is shown without the time in which the GPU may have worked, as in other reports.
        buckets=replace(judged.buckets, idle_ns=judged.buckets.idle_ns - judged.missing_ns),
        efficiency_pct=judged.efficiency_shown,
        hidden_copy_pct=judged.hidden_copy_shown,
        comm_ns=judged.engines.comm_ns,
        exposed_comm_ns=judged.buckets.exposed_comm_ns,
        comm_compute_pct=judged.overlap.comm_compute_pct,
        waited_ns=each(row.waited_ns),
        waited_exposed_ns=each(row.waited_exposed_ns),
        made_wait_ns=each(row.made_wait_ns),
        lost_ns=each(row.lost_ns),
    )

"""What is said of the ranks of one job, as frozen structures; their names are the JSON's (`docs/guides/ranks.md`).

Times are integer nanoseconds. What cannot be known is None, and `notes` say why. Where several ranks are summed up, the
median is the lower middle one, so that it is the figure of some rank.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from overlapscope.analysis.results import Buckets, Window
from overlapscope.base.saved import Tool, decode, encode
from overlapscope.base.shown import Shown
from overlapscope.catalog.causes import Subject
from overlapscope.rules.finding import Finding

SCHEMA_VERSION = 1

LEAST_PCT = 1.0
"""Of the span: a rank that makes the others lose less than this on average is no straggler worth a verdict."""


class CauseTime(msgspec.Struct, frozen=True, kw_only=True):
    """Time that went to one cause."""

    subject: Subject
    cause: str
    time_ns: int


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one rank. Figures without a word on steps are of its whole window."""

    rank: int | None
    """None where neither the trace nor its name says."""
    source: str
    device: int
    device_name: str | None
    joined: bool
    """Whether it was compared with the others: False for what has no rank, and for a second trace of one rank."""
    trust: Literal["trusted", "degraded", "unusable"]
    doubts: tuple[str, ...]
    """What the trust checks that are not ok say."""
    span_ns: int
    lead_in_ns: int | None
    buckets: Buckets
    efficiency_pct: float | None
    hidden_copy_pct: float | None
    """Both None as well where copies take less than 1% of the window."""
    comm_ns: int
    exposed_comm_ns: int
    unjudged_comm_ns: int | None = None
    """Part of `exposed_comm_ns` after the lead-in whose waiting could not be judged: point-to-point, collectives whose
    counterparts on other ranks or whose arrivals are not known. None for a rank that was not compared."""
    comm_compute_pct: float | None
    median_step_ns: int | None
    """Over its whole steps: neither cut by the lead-in nor the recording's last one where there are others."""
    step_spans_ns: tuple[int | None, ...]
    """In the order of `RanksReport.step_names`; None where it lacks one, or has it only in part."""
    waited_ns: int | None
    """How long its collectives ran before the last rank had come, in all meetings judged; None where it had none."""
    waited_exposed_ns: int | None
    """The part of it during which it computed nothing."""
    made_wait_ns: int | None
    """What the others waited for it: the sum over them of their waiting in the meetings where it came last."""
    last_in: int | None
    """In how many meetings waiting was charged to it: it came last, alone or together with few others that the clocks'
    error does not tell apart."""
    meetings: int
    """In how many of its collectives all members' arrivals could be compared."""
    clock_offset_ns: int | None
    """What its clock reads more than the reference rank's; 0 where they share one; None where it cannot be known."""
    clock_error_ns: int | None
    """The offset may be off by this much either way."""
    top_causes: tuple[CauseTime, ...]
    """Up to four, longest first."""

    @property
    def unjudged_comm_pct(self) -> float:
        """`unjudged_comm_ns` as a share of the window."""
        return 100 * (self.unjudged_comm_ns or 0) / self.span_ns if self.span_ns else 0.0

    @property
    def idle_pct(self) -> float:
        """Idle time as a share of the window."""
        return 100 * self.buckets.idle_ns / self.span_ns if self.span_ns else 0.0

    @property
    def exposed_comm_pct(self) -> float | None:
        """Exposed communication as a share of the window."""
        return 100 * self.exposed_comm_ns / self.span_ns if self.span_ns else None


class Unreadable(msgspec.Struct, frozen=True, kw_only=True):
    """A trace that told nothing."""

    source: str
    reason: str
    """A sentence."""
    rank: int | None = None
    """By its name."""


class Duplicate(msgspec.Struct, frozen=True, kw_only=True):
    """Several traces of one rank. Each has its row; only one was compared with the other ranks."""

    rank: int
    sources: tuple[str, ...]
    used: str | None
    """The one that was compared: the first by name. None where that could not be decided."""


class Clocks(msgspec.Struct, frozen=True, kw_only=True):
    """How the ranks' clocks stand to one another."""

    status: Literal["shared", "estimated", "unknown"]
    """`shared`: nothing contradicts one clock. `estimated`: offsets were found from matching collectives. `unknown`:
    nothing matches, so that arrivals cannot be compared."""
    reference_rank: int | None
    """The rank whose clock the offsets are against."""
    largest_offset_ns: int | None
    largest_error_ns: int | None
    """By how much an offset may be off at most; of shared clocks, by how much they could differ unnoticed."""
    reason: str
    """A sentence: what it rests on."""


class Matching(msgspec.Struct, frozen=True, kw_only=True):
    """How much of the communication could be compared; the first four count kernels."""

    kernels: int
    """All communication kernels of the ranks compared."""
    matched: int
    """Those whose counterparts on other ranks were found."""
    unmatched: int
    """Those of collectives whose counterparts were not found: recorded by one rank alone, or not to be told apart."""
    not_collective: int
    """Point-to-point, and groups of one."""
    meetings: int
    """Matched collectives, each with two ranks or more."""
    judged: int
    """Those among them in which arrivals were compared: behind every member's lead-in, clocks known."""
    by: Literal["metadata", "kernel-names", "both", "none"]
    """What told the collectives apart."""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """One rank that waited for another."""

    rank: int
    waited_ns: int
    exposed_ns: int
    """The part during which it computed nothing."""


class Meeting(msgspec.Struct, frozen=True, kw_only=True):
    """One collective that several ranks met in."""

    collective: str
    """As recorded: `allreduce`, `_allgather_base`; where not recorded the kernel's name."""
    group: str
    """Name of the process group; empty where not recorded."""
    group_ranks: str = ""
    """Its ranks as recorded: `[0, 1]`, shortened by torch where they are many; empty where not recorded."""
    group_size: int | None
    """None where not recorded."""
    index: int
    """The how many-th of its group and name on the late rank, from 0."""
    step: str | None
    """The step in which it ran on the late rank."""
    elements: int | None
    late_rank: int
    """Who came last."""
    together: int = 1
    """How many came last together, so that the clocks' error does not tell who of them; 0 where it tells nothing."""
    late_ns: int
    """How much later than the first."""
    waited_ns: int
    """Sum over all that waited."""
    waited_exposed_ns: int
    waiting: tuple[Waiting, ...]
    """The eight that waited longest."""
    waiting_ranks: int
    """How many waited."""
    window: Window
    """Of the late rank's kernel, by the times in its own trace: to look at in a timeline."""


class LateIn(msgspec.Struct, frozen=True, kw_only=True):
    """All meetings of one collective of one group in which a rank came last."""

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
    """Sum over the others."""
    made_wait_exposed_ns: int
    """The part of it during which they computed nothing: what its lateness cost."""
    passed_on_ns: int
    """The part of that which it may only have passed on: it had itself waited as long, for other ranks, since this
    group last met."""
    last_in: int
    meetings: int
    others: int
    """How many ranks it has meetings with."""
    lost_ns: int
    """`made_wait_exposed_ns` without what was passed on, for each of the others on average."""
    lost_pct: float | None
    """Of the judged span, the median over ranks."""
    lost_per_step_ns: int | None
    """For each step; None without steps."""
    waiting: tuple[Waiting, ...]
    """The eight that waited longest for it."""
    waiting_ranks: int
    collectives: tuple[LateIn, ...]
    """Up to five, the longest waiting first."""
    worst: tuple[Meeting, ...]
    """Up to three."""

    @property
    def clear(self) -> bool:
        """Whether it costs enough to be called a straggler."""
        return self.lost_pct is not None and self.lost_pct >= LEAST_PCT


class StepSkew(msgspec.Struct, frozen=True, kw_only=True):
    """One step over all ranks that have it whole."""

    name: str
    ranks: int
    min_ns: int
    median_ns: int
    max_ns: int
    slowest_rank: int
    fastest_rank: int

    @property
    def spread_ns(self) -> int:
        """From the fastest rank to the slowest."""
        return self.max_ns - self.min_ns


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """One figure over the ranks that have it."""

    name: str
    """In ns: `span`, `compute`, `exposed comm`, `exposed copy`, `exposed other`, `idle`, `waited`, `waited exposed`,
    `made wait`, `median step`; in pct: `efficiency`, `hidden copy`, `exposed comm share`, `idle share`."""
    unit: Literal["ns", "pct"]
    ranks: int
    """How many have it."""
    min: float
    p25: float
    median: float
    p75: float
    p95: float
    max: float
    min_rank: int
    max_rank: int


class Excess(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has more of than the ranks' median, in the same steps."""

    kind: Literal["bucket", "exposed-copy", "idle"]
    """A bucket, or a cause of exposed copy or of idle time."""
    name: str
    time_ns: int
    median_ns: int

    @property
    def more_ns(self) -> int:
        """By how much."""
        return self.time_ns - self.median_ns


class WorstRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank worth a look, and what explains it."""

    rank: int
    source: str
    device: int
    why: tuple[Literal["makes-others-wait", "slowest-steps", "least-efficient"], ...]
    excess: tuple[Excess, ...]
    """Up to five, largest first; over the steps that all ranks have, or over the windows where there are none."""
    over: Literal["steps", "window"]
    """What `excess` was measured over."""
    top_causes: tuple[CauseTime, ...]
    findings: tuple[Finding, ...]
    """Up to three, costliest first."""


class RanksReport(Shown, msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of one job beside one another."""

    kind: Literal["ranks"] = "ranks"
    schema_version: int = SCHEMA_VERSION
    tool: Tool = Tool()
    world_size: int | None
    """As the traces state it."""
    expected: int | None
    """How many ranks there should be: as asked for, else `world_size`."""
    ranks: tuple[RankRow, ...]
    """By rank, then device, then source; those without a rank last."""
    unreadable: tuple[Unreadable, ...]
    missing: tuple[int, ...]
    """Ranks below `expected` that no trace is of, readable or not."""
    duplicated: tuple[Duplicate, ...]
    clocks: Clocks
    matching: Matching
    stragglers: tuple[Straggler, ...]
    """Who made the others wait, most of what it cost and was not passed on first, up to twenty; see
    `Straggler.clear`."""
    meetings: tuple[Meeting, ...]
    """The twenty in which most was waited with nothing to compute."""
    step_names: tuple[str, ...]
    """Steps that at least one rank has whole, in order."""
    steps: tuple[StepSkew, ...]
    """In the order of `step_names`."""
    spreads: tuple[Spread, ...]
    worst: tuple[WorstRank, ...]
    """Up to eight."""
    notes: tuple[str, ...]
    """Sentences on what could not be known, and why."""

    @property
    def straggler(self) -> Straggler | None:
        """The one that costs most, if it costs enough to be named."""
        return self.stragglers[0] if self.stragglers and self.stragglers[0].clear else None


def to_json(report: RanksReport) -> bytes:
    """The report as indented JSON, ending in a newline."""
    return encode(report)


def from_json(data: bytes) -> RanksReport:
    """Read a report of ranks back.

    Raises msgspec.ValidationError where it is not one, msgspec.DecodeError where it is not JSON.
    """
    return decode(data, RanksReport)

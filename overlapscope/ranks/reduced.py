"""Reduction of a rank to the data that the comparison needs, made where the file is and small enough to send.

The only single ops it keeps are the communication kernels and the intervals of exposed communication, so that waiting
can be measured once the clocks are known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict, replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.average import comparable, known_plain_step
from overlapscope.analysis.collectives import (
    comm_kinds,
    element_bytes,
    has_splits,
    message_bytes,
    reaches_all,
    split_rows,
)
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.facts import Facts, rounded_mean
from overlapscope.analysis.figures import PerStep, TimeFigures, figures_in
from overlapscope.analysis.periods import Periods, after_warm_up, find_steps
from overlapscope.analysis.results import PlainStep, Trust
from overlapscope.analysis.timeline import Timeline, build
from overlapscope.analysis.trust import judge_file, verdict
from overlapscope.base.columns import mask_of, pick
from overlapscope.base.intervals import EMPTY, I64, Bool, Intervals, join, subtract
from overlapscope.base.marks import step_number
from overlapscope.catalog.buckets import bucket_of
from overlapscope.catalog.causes import COMM_CAUSES, COMM_RANK, COPY_CAUSES, IDLE_CAUSES, CommCause
from overlapscope.catalog.measures import of_group
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.messages import NO_MESSAGES, CommKernels, Messages, on_device, step_numbers
from overlapscope.rules.finding import Finding
from overlapscope.rules.findings import find_all
from overlapscope.trace.model import GpuOps, Kind, Trace

LARGEST_RANK = 2**31 - 1
"""Largest valid rank; larger or negative numbers are ignored."""
MAX_RANKS = 1_000_000
"""Larger world sizes are treated as damage."""
MAX_FINDINGS = 5
"""Maximum number of findings kept."""


COLUMN_OF_TIME: Final[Mapping[tuple[Literal["bucket", "exposed-copy", "idle"], str], str]] = {
    **{("bucket", bucket_of(measure.id).json_name): measure.name for measure in of_group("buckets")},
    **{("exposed-copy", str(cause)): f"exposed-copy:{cause}" for cause in COPY_CAUSES},
    **{("idle", str(cause)): f"idle:{cause}" for cause in IDLE_CAUSES},
}
"""Column of facts of each time that ranks are compared by: the buckets first, which add up to the step."""


def spent_ns(facts: Facts) -> I64:
    """Return times of shape (rows, `COLUMN_OF_TIME`)."""
    return np.stack([facts[column] for column in COLUMN_OF_TIME.values()], axis=1)


class RankSteps(Struct, frozen=True, eq=False):
    """Steps of one device by start. Delays and waits are measured in the judged ones."""

    names: tuple[str, ...]
    judged: Bool
    """Mask of the judged steps: neither cut by the lead-in, nor warm-up, nor a device's last of several."""
    start_ns: I64
    """Start by the trace's own clock."""
    span_ns: I64

    def windows(self) -> dict[str, tuple[int, int]]:
        """Return begin and end of each judged step by its name, without steps that share a name."""
        times = Counter(self.judged_names())
        ends = (self.start_ns + self.span_ns).tolist()
        steps = zip(self.names, self.judged.tolist(), self.start_ns.tolist(), ends, strict=True)
        return {name: (start, end) for name, judged, start, end in steps if judged and times[name] == 1}

    def judged_names(self) -> list[str]:
        """Return the names of the judged steps."""
        return [name for name, judged in zip(self.names, self.judged.tolist(), strict=True) if judged]

    def judged_spans(self) -> dict[str, int]:
        """Return the length of each judged step by its name; of the first one where a name occurs twice."""
        spans = self.span_ns[self.judged].tolist()
        return dict(zip(self.judged_names()[::-1], spans[::-1], strict=True))


_CAUSES_THAT_HOLD_NOTHING = (CommCause.LATE_COMPUTE, CommCause.LAUNCH_LATENCY)
"""Causes of exposed communication beside which compute could have run."""


class ComparedRank(Struct, frozen=True, eq=False, kw_only=True):
    """The part of a rank that arrivals are compared by: its collectives. Times are by the clock of its own trace."""

    source: str
    rank: int | None
    world_size: int | None
    device: int
    span_ns: int
    lead_in_ns: int | None
    judged_from_ns: int
    """End of the lead-in."""
    end_ns: int
    """End of the window."""
    step_ns: int | None
    """Length of an average judged step; None without steps."""
    steps: RankSteps
    turned_back: tuple[int, ...] = ()
    """Numbers of the steps that earlier ones follow, because the clock jumped back: their ends are unknown."""
    comm: CommKernels
    exposed_comm: Intervals
    """Intervals in which communication ran and nothing computed."""
    messages: Messages = NO_MESSAGES
    """Messages that `comm` sends to and receives from single ranks, as far as they were read."""
    on_host: bool = False
    """True if it was recorded without a GPU, so that host ranges take the place of kernels."""
    lossy: bool = False
    """True if its file is cut off or lost events, so that collectives may be missing anywhere."""

    @property
    def blocking_comm(self) -> Intervals:
        """Part of `exposed_comm` in which compute waited for communication, as far as known."""
        return self.exposed_comm


class ReducedRank(ComparedRank, frozen=True, eq=False, kw_only=True):
    """One device of one rank."""

    device_name: str | None
    trust: Trust
    window: TimeFigures
    """Figures of the whole window."""
    judged: PerStep | None
    """As `RankRow.judged`."""
    spent_ns: I64
    """Times in each step, of shape (steps, `COLUMN_OF_TIME`)."""
    findings: tuple[Finding, ...]
    """Up to `MAX_FINDINGS` findings, costliest first."""
    comm_causes: tuple[Intervals, ...] = ()
    """`exposed_comm` by cause, in the order of `COMM_CAUSES`; empty if causes are unknown."""
    compute: Intervals = EMPTY
    """Intervals in which something computed; empty for a rank without `messages`."""
    plain_step: PlainStep | None = None
    """Length of a step without the profiler, if the recorder timed steps."""
    predicted: bool = False
    """True if `overlapscope whatif` predicted the trace instead of recording it."""

    @property
    def blocking_comm(self) -> Intervals:
        """Part of `exposed_comm` without the time in which compute that doesn't wait for it was not launched."""
        unheld = (self.comm_causes[COMM_RANK[cause]] for cause in _CAUSES_THAT_HOLD_NOTHING if self.comm_causes)
        return subtract(self.exposed_comm, join(EMPTY, *unheld))


def reduce(trace: Trace) -> tuple[ReducedRank, ...]:
    """Reduce a trace to one rank for each of its devices; nearly every job has one device per rank.

    Returns:
        The reduced ranks, in the order of their devices.

    Raises:
        UnreadableTrace: If nothing ran on a GPU, so that there is nothing to compare.
    """
    analysis = analyze_trace(without_invalid_rank(trace), described=False)
    _check_usable(trace, analysis.result.trust)
    findings = find_all([analysis], replayed=False)
    return tuple(_reduced(analysis, device, findings) for device in analysis.devices)


def collectives_only(trace: Trace) -> tuple[ComparedRank, ...]:
    """Reduce a trace to the collectives of each of its devices, in a fraction of the time that `reduce` takes.

    Returns:
        The compared part of each rank that `reduce` would return, in the same order.

    Raises:
        UnreadableTrace: If nothing ran on a GPU, so that there is nothing to compare.
    """
    trace = without_invalid_rank(trace)
    _check_usable(trace, verdict(judge_file(trace)))
    timelines = [after_warm_up(trace, build(trace, device)) for device in trace.devices]
    return tuple(_compared(trace, timeline, find_steps(trace, timeline)) for timeline in timelines)


def lost_events(trace: Trace) -> bool:
    """Return whether a file is cut off or lost events."""
    return trace.damage.truncated or trace.damage.lost_events > 0


def _check_usable(trace: Trace, trust: Trust) -> None:
    if trust.verdict == "unusable":
        failures = [check.detail for check in trust.checks if check.status == "fail"]
        raise UnreadableTrace(trace.source, " ".join(failures))


def _compared(trace: Trace, timeline: Timeline, steps: Periods) -> ComparedRank:
    lead_in_end_ns = timeline.lead_in_end_ns
    spans_ns: list[int] = (steps.end_ns - steps.start_ns).tolist()
    names = [trace.annotations.name(row) for row in steps.row.tolist()]
    judged = list(comparable(np.flatnonzero(~steps.partial).tolist(), names, spans_ns))
    return ComparedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=timeline.device,
        span_ns=timeline.end_ns - timeline.start_ns,
        lead_in_ns=None if lead_in_end_ns is None else lead_in_end_ns - timeline.start_ns,
        judged_from_ns=timeline.judged_from_ns,
        end_ns=timeline.end_ns,
        step_ns=rounded_mean(sum(spans_ns[number] for number in judged), len(judged)) if judged else None,
        steps=RankSteps(
            tuple(names), mask_of(np.array(judged, np.int64), len(names)), steps.start_ns, steps.end_ns - steps.start_ns
        ),
        turned_back=tuple(number for number, after in pairwise(map(step_number, names)) if 0 <= after < number),
        comm=_comm_kernels(trace, timeline.ops),
        exposed_comm=timeline.exposed_comm,
        lossy=lost_events(trace),
    )


def without_invalid_rank(trace: Trace) -> Trace:
    """Return the trace without a rank that can't be one."""
    is_valid = trace.rank is None or 0 <= trace.rank <= LARGEST_RANK
    return trace if is_valid else replace(trace, rank=None)


def _reduced(analysis: TraceAnalysis, device: DeviceAnalysis, findings: tuple[Finding, ...]) -> ReducedRank:
    trace, result, timeline = analysis.trace, device.result, device.timeline
    compared = _compared(trace, timeline, device.steps)
    comm_ops = timeline.ops.take(timeline.ops.kind == Kind.COMM)
    comm, messages = on_device(trace, comm_ops, compared.comm)
    on_device_findings = [finding for finding in findings if finding.device == result.device]
    judged = result.per_step
    if judged is None and result.judged is not None:
        judged = PerStep(steps=0, first=0, **asdict(figures_in(result.judged)))
    return ReducedRank(
        **asdict(replace(compared, comm=comm, messages=messages)),
        device_name=result.name,
        trust=analysis.result.trust,
        window=figures_in(result),
        judged=judged,
        spent_ns=spent_ns(device.facts),
        # Nothing was replayed, so no saving is certain, and the time that a finding explains decides.
        findings=tuple(
            sorted(on_device_findings, key=lambda finding: (finding.severity == "info", -finding.cost_ns))[
                :MAX_FINDINGS
            ]
        ),
        comm_causes=tuple(device.exposed_comm.of_cause(rank) for rank in range(len(COMM_CAUSES))),
        compute=timeline.compute if len(messages) else EMPTY,
        plain_step=None if compared.step_ns is None else known_plain_step(trace),
        predicted=trace.predicted_by is not None,
    )


def _comm_kernels(trace: Trace, ops: GpuOps) -> CommKernels:
    ops = ops.take(ops.kind == Kind.COMM)
    recorded, described = trace.collectives, comm_kinds(trace, ops)
    row, launched = described.row, ops.launch >= 0
    launched_ns = pick(trace.runtime_calls.start_ns, np.where(launched, ops.launch, -1), 0)
    return CommKernels(
        kinds=described.kinds,
        start_ns=ops.start_ns,
        end_ns=ops.end_ns,
        kind=described.kind,
        # The op's place on the device would not do: an op launched for a step may run before the step's first compute
        # on one rank and after it on another.
        step=np.where(launched, step_numbers(trace.annotations, launched_ns), -1),
        elements=pick(recorded.elements_in, row),
        sequence=pick(recorded.sequence, row),
        received=pick(recorded.elements_out, row),
        bytes=pick(message_bytes(recorded, trace.names), row),
        reaches_all=pick(reaches_all(recorded, trace.names), row),
        splits=pick(has_splits(recorded, trace.names).astype(np.int64), row),
        element_bytes=pick(element_bytes(recorded, trace.names), row),
        sent_rows=pick(split_rows(recorded.parts_in, trace.names), row),
        received_rows=pick(split_rows(recorded.parts_out, trace.names), row),
    )


def stated_world_size(ranks: Sequence[ComparedRank]) -> int | None:
    """Return the world size that most traces state; the larger one in a tie."""
    stated = Counter(rank.world_size for rank in ranks if rank.world_size and 0 < rank.world_size <= MAX_RANKS)
    return min(stated, key=lambda size: (-stated[size], -size)) if stated else None

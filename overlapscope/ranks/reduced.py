"""One rank reduced to what the others have to know of it: made where its file is, small enough to travel.

Nothing of single ops goes along but the communication kernels and the instants at which communication was exposed, so
that waiting can be measured once the clocks are known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from overlapscope.analysis import TraceAnalysis, analyze_trace
from overlapscope.analysis.device import DeviceAnalysis
from overlapscope.analysis.periods import is_step
from overlapscope.analysis.results import Buckets, Device, Engines, Overlap, Period, Trust
from overlapscope.base.columns import Columns, pick
from overlapscope.base.intervals import I64, Bool, Intervals
from overlapscope.catalog.causes import COPY_CAUSES, IDLE_CAUSES
from overlapscope.errors import UnreadableTrace
from overlapscope.ranks.result import Unreadable
from overlapscope.report.findings import find_all
from overlapscope.rules.finding import Finding
from overlapscope.trace.model import Collectives, GpuOps, Kind, Trace

__all__ = ["CommKernels", "CommKind", "ReducedRank", "StepFigures", "Unreadable", "reduce"]

LARGEST_RANK = 2**31 - 1
"""A number beyond it, or below 0, is no rank."""
FINDINGS = 5
"""How many findings travel."""

_NCCL = re.compile(r"(nccl\w+)\(")
_STEP_NUMBER = re.compile(r"ProfilerStep#(\d{1,18})")


class CommKind(Struct, frozen=True):
    """What a communication kernel said of itself. Kernels of one kind on one rank are told apart by their order."""

    collective: str
    """As recorded (`allreduce`); where the kernel says nothing, its name, without what NCCL's all have as arguments."""
    group: str = ""
    """Name of the process group."""
    ranks: str = ""
    """Text of the group's ranks, shortened by torch where there are many."""
    group_size: int = -1
    """-1 where not recorded."""
    recorded: bool = True
    """False where the kernel's name is all there is."""


class CommKernels(Columns, frozen=True):
    """The communication kernels of one device by start, as columns of equal length."""

    kinds: tuple[CommKind, ...]
    """Each once; not a column."""
    start_ns: I64
    end_ns: I64
    kind: I64
    """Index into `kinds`."""
    step: I64
    """Number of the profiler step whose host part launched it; -1 where the launch or the step was not recorded."""
    elements: I64
    """Sent by this rank; -1 where not recorded."""
    sequence: I64
    """The process group's own count; -1 where not recorded."""


class StepFigures(Struct, frozen=True, eq=False):
    """The steps of one device by start."""

    names: tuple[str, ...]
    whole: Bool
    """Not cut by the lead-in, and not the last one where there are others: that one has no end of its own."""
    span_ns: I64
    buckets_ns: I64
    """(steps, 5), in the order of `Buckets`."""
    copy_causes_ns: I64
    """(steps, causes), in the order of `COPY_CAUSES`."""
    idle_causes_ns: I64
    """(steps, causes), in the order of `IDLE_CAUSES`."""

    def whole_names(self) -> list[str]:
        """Names of the whole steps."""
        return [name for name, whole in zip(self.names, self.whole.tolist(), strict=True) if whole]

    def whole_spans(self) -> dict[str, int]:
        """Length of each whole step by its name; of a name that comes twice the first."""
        whole = zip(self.names, self.span_ns.tolist(), self.whole.tolist(), strict=True)
        spans: dict[str, int] = {}
        for name, span, kept in whole:
            if kept:
                spans.setdefault(name, span)
        return spans


class ReducedRank(Struct, frozen=True, eq=False):
    """One device of one rank. Times are those of its own trace."""

    source: str
    rank: int | None
    world_size: int | None
    device: int
    device_name: str | None
    trust: Trust
    span_ns: int
    lead_in_ns: int | None
    judged_from_ns: int
    """Where the lead-in ends."""
    end_ns: int
    """Where the window ends."""
    buckets: Buckets
    engines: Engines
    overlap: Overlap
    exposed_copy_by_cause: dict[str, int]
    idle_by_cause: dict[str, int]
    steps: StepFigures
    findings: tuple[Finding, ...]
    """Up to five, costliest first."""
    comm: CommKernels
    exposed_comm: Intervals
    """When communication ran and nothing computed."""
    predicted: bool = False
    """Whether `overlapscope whatif` predicted it, so that it is no recording."""


def reduce(trace: Trace) -> tuple[ReducedRank, ...]:
    """One for each device of the trace, which is one for each rank of nearly every job.

    Raises UnreadableTrace where nothing ran on a GPU, so that there is nothing to compare.
    """
    if trace.rank is not None and not 0 <= trace.rank <= LARGEST_RANK:
        trace = replace(trace, rank=None)
    analysis = analyze_trace(trace)
    trust = analysis.result.trust
    if trust.verdict == "unusable":
        said = [check.detail for check in trust.checks if check.status == "fail"]
        raise UnreadableTrace(trace.source, " ".join(said))
    findings = find_all([analysis], replayed=False)
    return tuple(_reduced(analysis, device, findings) for device in analysis.devices)


def _reduced(analysis: TraceAnalysis, device: DeviceAnalysis, findings: tuple[Finding, ...]) -> ReducedRank:
    trace, result, timeline = analysis.trace, device.result, device.timeline
    return ReducedRank(
        source=trace.source,
        rank=trace.rank,
        world_size=trace.world_size,
        device=result.device,
        device_name=result.name,
        trust=analysis.result.trust,
        span_ns=result.span_ns,
        lead_in_ns=result.lead_in_ns,
        judged_from_ns=timeline.judged_from_ns,
        end_ns=timeline.end_ns,
        buckets=result.buckets,
        engines=result.engines,
        overlap=result.overlap,
        exposed_copy_by_cause=result.exposed_copy_by_cause,
        idle_by_cause=result.idle_by_cause,
        steps=_steps(result),
        findings=tuple(finding for finding in findings if finding.device == result.device)[:FINDINGS],
        comm=_comm_kernels(trace, timeline.ops),
        exposed_comm=timeline.exposed_comm,
        predicted=trace.predicted_by is not None,
    )


def _steps(device: Device) -> StepFigures:
    steps = device.steps
    last = len(steps) - 1 if len(steps) > 1 else -1
    return StepFigures(
        names=tuple(step.name for step in steps),
        whole=np.array([not step.partial and number != last for number, step in enumerate(steps)], np.bool_),
        span_ns=np.array([step.span_ns for step in steps], np.int64),
        buckets_ns=_table([list(step.buckets.named().values()) for step in steps], 5),
        copy_causes_ns=_table([_causes(step, COPY_CAUSES) for step in steps], len(COPY_CAUSES)),
        idle_causes_ns=_table([_causes(step, IDLE_CAUSES) for step in steps], len(IDLE_CAUSES)),
    )


def _causes(step: Period, causes: tuple[str, ...]) -> list[int]:
    by_cause = step.exposed_copy_by_cause if causes is COPY_CAUSES else step.idle_by_cause
    return [by_cause.get(str(cause), 0) for cause in causes]


def _table(rows: list[list[int]], columns: int) -> I64:
    return np.array(rows, np.int64).reshape(len(rows), columns)


def _comm_kernels(trace: Trace, ops: GpuOps) -> CommKernels:
    ops = ops.take(ops.kind == Kind.COMM)
    said = trace.collectives
    row = _described(said, ops)
    columns = [pick(column, row) for column in (said.name_id, said.group, said.ranks, said.group_size)]
    # A kernel of which nothing is said is told by its own name.
    columns.append(np.where(row < 0, ops.name_id, -1))
    distinct, which = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    kinds: dict[CommKind, int] = {}
    number = [kinds.setdefault(_kind(trace.names, *ids), len(kinds)) for ids in distinct.tolist()]
    return CommKernels(
        kinds=tuple(kinds),
        start_ns=ops.start_ns,
        end_ns=ops.end_ns,
        kind=np.array(number, np.int64)[which.ravel()],
        step=_launched_in(trace, ops),
        elements=pick(said.elements_in, row),
        sequence=pick(said.sequence, row),
    )


def _kind(names: Sequence[str], collective: int, group: int, ranks: int, group_size: int, kernel: int) -> CommKind:
    if kernel >= 0:
        nccl = _NCCL.match(names[kernel])
        return CommKind(nccl[1] if nccl else names[kernel], recorded=False)
    group_name, group_ranks = (names[text] if text >= 0 else "" for text in (group, ranks))
    return CommKind(names[collective], group_name, group_ranks, group_size)


def _described(said: Collectives, ops: GpuOps) -> I64:
    """For each communication kernel the row in `Trace.collectives` that speaks of it, or -1."""
    rows = {key: row for row, key in enumerate(_keys(said))}
    return np.array([rows.get(key, -1) for key in _keys(ops)], np.int64)


def _keys(table: Collectives | GpuOps) -> Iterator[tuple[int, ...]]:
    columns = (table.correlation, table.device, table.stream, table.start_ns, table.end_ns)
    return zip(*(column.tolist() for column in columns), strict=True)


def _launched_in(trace: Trace, ops: GpuOps) -> I64:
    """The number of the profiler step during which the host launched each op, or -1.

    Where an op lies on the device does not decide it: what is launched for a step may run before the step's first
    compute on one rank and after it on another.
    """
    notes = trace.annotations
    rows = np.flatnonzero(is_step(notes))
    matches = [_STEP_NUMBER.fullmatch(notes.name(row)) for row in rows.tolist()]
    numbers = np.array([int(step.group(1)) if step else -1 for step in matches], np.int64)
    starts, ends = notes.start_ns[rows], notes.end_ns[rows]
    launched = ops.launch >= 0
    at = pick(trace.runtime_calls.start_ns, np.where(launched, ops.launch, -1), 0)
    step = np.searchsorted(starts, at, side="right") - 1
    inside = launched & (step >= 0) & (at < pick(ends, step, 0))
    return np.where(inside, pick(numbers, step), -1)
